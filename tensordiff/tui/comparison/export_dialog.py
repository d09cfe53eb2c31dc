"""Exporting a report: the dialog that asks for scope, format and file; and the writing, in a thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.screen import Screen
from textual.widgets import Input, Label, RadioSet

from tensordiff.compare.row import Row
from tensordiff.report import render_report, write_report
from tensordiff.report.labels import label
from tensordiff.search.outcome import Outcome
from tensordiff.session.session import Session
from tensordiff.tui.dialogs import Dialog
from tensordiff.tui.download import download
from tensordiff.tui.fields import Field, Radio
from tensordiff.tui.notice import tell
from tensordiff.tui.permissions import permissions_of
from tensordiff.tui.side_names import file_name, report_title
from tensordiff.tui.threads import in_thread

SUFFIXES = (".md", ".html", ".txt", ".json", ".csv", ".png")
SCOPES = {"all": "all rows", "marked": "marked rows", "pair": "the selected pair"}


class ExportChoice(NamedTuple):
    """The user's choices."""

    scope: str
    path: Path


class Export(Dialog[ExportChoice]):
    """Asks for scope, format and file; without a folder, the file is a download."""

    def __init__(self, selected: str, marked: int, folder: Path | None, name: str = "tensordiff-report") -> None:
        super().__init__("Export a report")
        self.selected, self.marked, self.folder, self.named = selected, marked, folder, name
        self._asked_about: Path | None = None
        """An existing file that the user was warned about."""

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
        yield Label("to" if self.folder else "as a download, called", markup=False)
        yield Field(_short((self.folder or Path()) / f"{self.named}.md"))

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
        """The choice, if the file is valid."""
        path = Path(self.query_one(Input).value).expanduser()
        if path.suffix.lower() not in SUFFIXES:
            self.say(f"the name must end in one of {' '.join(SUFFIXES)}")
            return None
        if self.folder is None:
            path = Path(path.name)
        elif path.is_dir():
            self.say("this is a folder; give a file in it")
            return None
        elif path.exists() and path != self._asked_about:
            self._asked_about = path
            self.say("this file exists already; accept again to overwrite it")
            return None
        scope = self.query_one("#scope", RadioSet).pressed_index
        return ExportChoice(list(SCOPES)[max(0, scope)], path)


def export_report(
    screen: Screen[None],
    session: Session,
    outcome: Outcome,
    *,
    selected: Row | None,
    marked: Sequence[Row],
    notes: Mapping[str, str],
) -> None:
    """Ask what to write, and write it; if files may not be written, pass it to the browser."""
    may_write, title = permissions_of(screen).writes, report_title(session)

    def write(choice: ExportChoice) -> None:
        rows = {"all": None, "marked": marked, "pair": [selected] if selected else []}[choice.scope]
        if may_write:
            write_report(session, outcome, choice.path, rows=rows, title=title, notes=notes)
            screen.app.call_from_thread(tell, screen, f"written to {choice.path.absolute()}")
        else:
            content = render_report(session, outcome, choice.path, rows=rows, title=title, notes=notes)
            screen.app.call_from_thread(download, screen, choice.path.name, content)

    def take(choice: ExportChoice | None) -> None:
        if choice is not None:
            in_thread(screen, "export", lambda: write(choice))

    name = "" if selected is None else label(selected.pair)
    folder = Path.cwd() if may_write else None
    screen.app.push_screen(Export(name, len(marked), folder, file_name(session)), take)


def _short(path: Path) -> str:
    """A path relative to the home folder if possible, as ``answer`` reads it."""
    with suppress(ValueError, RuntimeError):  # outside the home folder, or there is none
        return str("~" / path.relative_to(Path.home()))
    return str(path)


def _plain(text: str) -> str:
    """Escape a name for a label of Textual's buttons, which is markup."""
    return text.replace("[", r"\[")
