"""A form for the few settings that people change when a source is run again."""

from __future__ import annotations

from dataclasses import replace

from textual import on
from textual.app import ComposeResult
from textual.widgets import Input, Label

from tensordiff.capture.settings import Settings
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
            value = getattr(self.settings, name)
            yield Label(label, markup=False)
            yield Input("" if value is None else str(value), placeholder=usual, id=name, compact=True)

    @on(Input.Submitted)
    def _take(self) -> None:
        self.action_accept()

    def answer(self) -> Settings | None:
        """The settings as they were, with what was changed."""
        said = {name: self.query_one(f"#{name}", Input).value.strip() or None for name, _, _ in _FIELDS}
        count = said.pop("num_hidden_layers")
        if count is not None and not (count.isascii() and count.isdecimal() and int(count) > 0):
            self.say(f"{count} is no number of layers")
            return None
        changed: dict[str, object] = {**said, "device": said["device"] or "auto"}
        if said["prompt"] != self.settings.prompt:
            changed |= {"input_ids": None, "prompt_file": None}
        settings = replace(self.settings, **changed)  # type: ignore[arg-type]
        return replace(settings, num_hidden_layers=int(count) if count else None)
