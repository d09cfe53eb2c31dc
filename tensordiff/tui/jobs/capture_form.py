"""A form for the few settings that users change when a source is run again."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Checkbox, Input, Label

from tensordiff.capture.settings import Settings
from tensordiff.errors import printable
from tensordiff.session.streaming.options import WINDOW_BYTES
from tensordiff.tui.dialogs import Dialog
from tensordiff.util.sizes import format_bytes, parse_bytes

_FIELDS = (
    ("prompt", "prompt", "as it was"),
    ("layers", "layers (regular expression of those to write)", "all"),
    ("dtype", "dtype", "the source's own"),
    ("device", "device", "auto"),
    ("num_hidden_layers", "number of layers to run, from the first", "all"),
)


_STREAM = "stream: compare while it runs, keep only what diverges"


class _Tick(Checkbox):
    """A box that is empty when it is off; Textual's own differs only in colour."""

    BUTTON_INNER = " "

    def watch_value(self) -> None:
        """Show the tick."""
        self.BUTTON_INNER = "✓" if self.value else " "
        super().watch_value()


class CaptureChoice(NamedTuple):
    """How to run a source."""

    settings: Settings
    window_bytes: int | None = None
    """How many bytes may wait to be compared, to compare while it runs; None captures a dump."""


class CaptureForm(Dialog[CaptureChoice]):
    """The settings of one run; unchanged fields keep the values of the previous run."""

    DEFAULT_CSS = """
    CaptureForm {
        & Checkbox { margin-top: 1; }
        & Horizontal.window { margin: 0; height: 1; }
        & Horizontal.window Input { width: 1fr; }
    }
    CaptureForm.-short > Vertical { max-height: 100%; padding: 0 2; }
    CaptureForm.-short Checkbox { margin: 0; }
    """

    def __init__(self, source: str, settings: Settings) -> None:
        super().__init__(f"Capture {source}")
        self.settings = settings

    def ask(self) -> ComposeResult:
        """A field for each setting."""
        for name, label, usual in _FIELDS:
            yield Label(label, markup=False)
            yield Input(self._shown(name), placeholder=usual, id=name, compact=True)
        yield _Tick(_STREAM, id="stream", compact=True)
        with Horizontal(classes="window"):
            yield Label("memory for streaming: ", markup=False)
            yield Input(placeholder=format_bytes(WINDOW_BYTES), id="window", compact=True)

    def _shown(self, name: str) -> str:
        """The first text of a setting's field."""
        value = getattr(self.settings, name)
        return "" if value is None else printable(value)

    @on(Input.Submitted)
    def _take(self) -> None:
        self.action_accept()

    def answer(self) -> CaptureChoice | None:
        """The previous settings with the changes, and whether to stream."""
        settings = self._settings()
        text = self.query_one("#window", Input).value.strip()
        window = parse_bytes(text) if text else WINDOW_BYTES
        if settings is None:
            return None
        if not self.query_one(Checkbox).value:
            return CaptureChoice(settings)
        if not window:
            self.say(f"{text} is not a size such as 500MB or 2GB")
            return None
        return CaptureChoice(settings, window)

    def _settings(self) -> Settings | None:
        typed = {name: self.query_one(f"#{name}", Input).value for name, _, _ in _FIELDS}
        changed: dict[str, object] = {
            name: text.strip() or None for name, text in typed.items() if text != self._shown(name)
        }
        if isinstance(count := changed.get("num_hidden_layers"), str):
            if not (count.isascii() and count.isdecimal() and int(count) > 0):
                self.say(f"{count} is not a number of layers")
                return None
            changed["num_hidden_layers"] = int(count)
        if "device" in changed:
            changed["device"] = changed["device"] or "auto"
        if "prompt" in changed:
            changed |= {"input_ids": None, "prompt_file": None}
        return replace(self.settings, **changed)  # type: ignore[arg-type]
