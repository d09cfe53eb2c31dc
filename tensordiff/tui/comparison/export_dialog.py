"""What to export, as what, and where to: the dialog before a report is written."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Input, Label, RadioButton, RadioSet

from tensordiff.tui.dialogs import Dialog

SUFFIXES = (".md", ".html", ".txt", ".json", ".csv", ".png")
SCOPES = {"all": "all rows", "marked": "marked rows", "pair": "the selected pair"}


class ExportChoice(NamedTuple):
    """What was chosen."""

    scope: str
    path: Path


class Radio(RadioButton):
    """A button whose dot is there when it is chosen, and not there when it is not, whatever the colours."""

    @property
    def BUTTON_INNER(self) -> str:  # type: ignore[override] # noqa: N802 - Textual's name
        """The dot."""
        return "●" if self.value else " "


class Export(Dialog[ExportChoice]):
    """Scope, format, file."""

    def __init__(self, selected: str, marked: int, folder: Path) -> None:
        super().__init__("Export a report")
        self.selected, self.marked, self.folder = selected, marked, folder

    def ask(self) -> ComposeResult:
        """Two choices and a field."""
        told = {"all": "", "marked": f" ({self.marked})", "pair": f": {self.selected}"}
        with Horizontal():
            with RadioSet(id="scope"):
                for name, text in SCOPES.items():
                    yield Radio(_plain(text + told[name]), name == "all", disabled=not self._is_there(name))
            with RadioSet(id="format"):
                for suffix in SUFFIXES:
                    yield Radio(suffix[1:], suffix == ".md")
        yield Label("to", markup=False)
        yield Input(str(self.folder / "tensordiff-report.md"))

    def _is_there(self, scope: str) -> bool:
        return scope == "all" or bool(self.marked if scope == "marked" else self.selected)

    @on(RadioSet.Changed, "#format")
    def _follow_format(self, event: RadioSet.Changed) -> None:
        field = self.query_one(Input)
        field.value = str(Path(field.value or "tensordiff-report").with_suffix(SUFFIXES[event.index]))

    @on(Input.Submitted)
    def _take(self) -> None:
        self.action_accept()

    def answer(self) -> ExportChoice | None:
        """The choice, where the file can be one."""
        path = Path(self.query_one(Input).value).expanduser()
        if path.suffix.lower() not in SUFFIXES:
            self.say(f"the name must end in one of {' '.join(SUFFIXES)}")
            return None
        if path.is_dir():
            self.say("this is a folder; give a file in it")
            return None
        scope = self.query_one("#scope", RadioSet).pressed_index
        return ExportChoice(list(SCOPES)[max(0, scope)], path)


def _plain(text: str) -> str:
    """A label of Textual's buttons is markup; a layer's name is not."""
    return text.replace("[", r"\[")
