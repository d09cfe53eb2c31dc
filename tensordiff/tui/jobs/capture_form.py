"""A form for the few settings that people change when a source is run again."""

from __future__ import annotations

from dataclasses import replace

from textual import on
from textual.app import ComposeResult
from textual.widgets import Input, Label

from tensordiff.capture.settings import Settings
from tensordiff.errors import printable
from tensordiff.tui.dialogs import Dialog

_FIELDS = (
    ("prompt", "prompt", "as it was"),
    ("layers", "layers (regular expression of those to write)", "all"),
    ("dtype", "dtype", "the source's own"),
    ("device", "device", "auto"),
    ("num_hidden_layers", "only the first so many layers", "all"),
)


class CaptureForm(Dialog[Settings]):
    """The settings of one run; those that are left as they are stay as the source was run before."""

    def __init__(self, source: str, settings: Settings) -> None:
        super().__init__(f"Capture {source}")
        self.settings = settings

    def ask(self) -> ComposeResult:
        """One field a setting."""
        for name, label, usual in _FIELDS:
            yield Label(label, markup=False)
            yield Input(self._shown(name), placeholder=usual, id=name, compact=True)

    def _shown(self, name: str) -> str:
        """A setting as its field shows it at first."""
        value = getattr(self.settings, name)
        return "" if value is None else printable(value)

    @on(Input.Submitted)
    def _take(self) -> None:
        self.action_accept()

    def answer(self) -> Settings | None:
        """The settings as they were, with what was changed."""
        typed = {name: self.query_one(f"#{name}", Input).value for name, _, _ in _FIELDS}
        changed: dict[str, object] = {
            name: text.strip() or None for name, text in typed.items() if text != self._shown(name)
        }
        if isinstance(count := changed.get("num_hidden_layers"), str):
            if not (count.isascii() and count.isdecimal() and int(count) > 0):
                self.say(f"{count} is no number of layers")
                return None
            changed["num_hidden_layers"] = int(count)
        if "device" in changed:
            changed["device"] = changed["device"] or "auto"
        if "prompt" in changed:
            changed |= {"input_ids": None, "prompt_file": None}
        return replace(self.settings, **changed)  # type: ignore[arg-type]
