"""The start screen: recently compared pairs, dumps to pick, the samples, a capture.

Recent pairs are stored in the user's state folder. They are only a convenience: if the file cannot be read or written,
there are no recent pairs, and nothing else fails.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, cast

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import DirectoryTree, OptionList, Static
from textual.widgets.option_list import Option

from tensordiff.capture.engines import spellings
from tensordiff.capture.job import parse_source
from tensordiff.errors import TensordiffError, WriteError, printable
from tensordiff.session.samples import sample
from tensordiff.tui.dialogs import Ask, Dialog
from tensordiff.tui.key_line import KeyLine
from tensordiff.tui.keys import bindings
from tensordiff.tui.notice import tell
from tensordiff.tui.permissions import NO_RERUNS, permissions_of
from tensordiff.tui.sized_screen import SizedScreen
from tensordiff.util.atomic_write import write_file
from tensordiff.util.remote.paths import check_url, is_url, user_path

if TYPE_CHECKING:
    from tensordiff.tui.app import TensordiffApp


MOST = 20


class Recent(NamedTuple):
    """Two dumps that were compared."""

    reference: str
    candidate: str


def recent_file() -> Path:
    """The file of recent pairs."""
    from platformdirs import user_state_path

    return user_state_path("tensordiff", appauthor=False) / "recent.json"


def read_recent(path: Path | None = None) -> list[Recent]:
    """Recent pairs, latest first; none if the file is missing or damaged."""
    try:
        found = json.loads((path or recent_file()).read_text("utf-8"))
        return [Recent(str(reference), str(candidate)) for reference, candidate in found][:MOST]
    except (OSError, ValueError, TypeError, RecursionError):
        return []


def note_recent(reference: Path, candidate: Path, path: Path | None = None) -> None:
    """Put a pair first."""
    pair = Recent(str(reference.absolute()), str(candidate.absolute()))
    _write([pair, *(one for one in read_recent(path) if one != pair)], path)


def forget_recent(pair: Recent, path: Path | None = None) -> None:
    """Remove a pair."""
    _write([one for one in read_recent(path) if one != pair], path)


def _write(pairs: list[Recent], path: Path | None) -> None:
    path = path or recent_file()
    try:
        write_file(path, json.dumps(pairs[:MOST], indent=1), make_folders=True)
    except WriteError:
        return  # a list of recent pairs is not worth a message


_CAPTURE = (
    f"{spellings()}; or the path of a dump. A source is run in a process of its own and needs its extra, such as: "
    "pip install 'tensordiff[torch]'."
)


_WAYS = (
    ("browse", "pick two dumps…  (o)"),
    ("demo", "the samples, with a planted bug  (d)"),
    ("capture", "capture…  (c)"),
)


class StartScreen(SizedScreen[None]):
    """Asks what to compare."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("start")
    BINDING_GROUP_TITLE = "Start"
    DEFAULT_CSS = """
    StartScreen > Vertical { padding: 1 2; }
    StartScreen .title { text-style: bold; }
    StartScreen OptionList { height: auto; max-height: 1fr; margin-top: 1; }
    """

    def compose(self) -> ComposeResult:
        """A list of pairs and other choices."""
        with Vertical():
            yield Static("tensordiff: find the first tensor where two runs stop agreeing", classes="title")
            yield OptionList()
        yield KeyLine()

    def on_mount(self) -> None:
        """List the recent pairs and the other choices."""
        self._list()

    def on_screen_resume(self) -> None:
        """List again: the pair that was just shown is a recent one."""
        self._list()

    def _list(self) -> None:
        self.recent = read_recent()
        listed = self.query_one(OptionList)
        listed.clear_options()
        pairs = [Option(_line(pair), id=f"recent{k}") for k, pair in enumerate(self.recent)]
        listed.add_options([*pairs, *(Option(text, id=name) for name, text in _WAYS)])
        listed.highlighted = 0
        listed.focus()

    @on(OptionList.OptionSelected)
    def _choose(self, event: OptionList.OptionSelected) -> None:
        name = event.option.id or ""
        if name.startswith("recent"):
            self._open(self.recent[int(name.removeprefix("recent"))])
        else:
            getattr(self, f"action_{name}")()

    @property
    def _app(self) -> TensordiffApp:
        return cast("TensordiffApp", self.app)

    def _open(self, pair: Recent) -> None:
        self._app.compare(Path(pair.reference), Path(pair.candidate))

    def action_open(self) -> None:
        """Open what is highlighted."""
        self.query_one(OptionList).action_select()

    def action_forget(self) -> None:
        """Remove the highlighted pair from the list."""
        at = self.query_one(OptionList).highlighted
        if at is not None and at < len(self.recent):
            forget_recent(self.recent[at])
            self._list()

    def action_browse(self) -> None:
        """Pick a reference, then a candidate."""

        def then(reference: Path | None) -> None:
            if reference is not None:
                pick = Pick("Pick the candidate: the dump under test", reference.parent)
                self.app.push_screen(pick, lambda candidate: self._pair(reference, candidate))

        self.app.push_screen(Pick("Pick the reference: the dump you trust", Path.cwd()), then)

    def _pair(self, reference: Path, candidate: Path | str | None) -> None:
        if isinstance(candidate, Path):
            self._app.compare(reference, candidate)

    def action_demo(self) -> None:
        """Open the samples."""
        try:
            self._app.compare(sample("reference"), sample("candidate"))
        except TensordiffError as error:
            self.notify(printable(error), severity="error", markup=False)

    def action_capture(self) -> None:
        """Ask for sources in place of dumps; each is run first."""
        if not permissions_of(self).reruns:
            tell(self, NO_RERUNS, "warning")
            return

        def then(reference: str | None) -> None:
            if reference:
                ask = Ask("Candidate: a source or a dump", "max:", _CAPTURE, _wrong)
                self.app.push_screen(
                    ask, lambda candidate: self._pair(_side(reference), candidate and _side(candidate))
                )

        self.app.push_screen(Ask("Reference: a source or a dump", "hf:", _CAPTURE, _wrong), then)


def _side(text: str) -> Path:
    """A side of a comparison: a source as it is, else a path or a URL."""
    return user_path(text) if is_url(text) or parse_source(text) is not None else Path(text).expanduser()


def _wrong(text: str) -> str | None:
    """What is wrong with a side, from its spelling and the disk; None if nothing is."""
    try:
        check_url(text)
        if parse_source(text) is not None or is_url(text):
            return None
    except TensordiffError as error:
        return str(error)
    if not text.strip():
        return "give a source or the path of a dump"
    return None if Path(text).expanduser().exists() else f"{text}: there is no such file, and it is not a source"


def _line(pair: Recent) -> Text:
    return Text(f"{printable(pair.reference)}  ↔  {printable(pair.candidate)}")


class Pick(Dialog[Path]):
    """Asks for a file or a folder; ctrl+s picks a folder, enter opens it."""

    DEFAULT_CSS = """
    Pick DirectoryTree { height: 50vh; }
    """

    def __init__(self, title: str, folder: Path) -> None:
        super().__init__(title)
        self.folder = folder

    def ask(self) -> ComposeResult:
        """The files of the folder."""
        yield DirectoryTree(self.folder)
        yield Static("enter opens a folder or picks a file; ctrl+s picks a folder", classes="hint", markup=False)

    @on(DirectoryTree.FileSelected)
    def _take(self, event: DirectoryTree.FileSelected) -> None:
        self.dismiss(event.path)

    def answer(self) -> Path | None:
        """The path under the cursor."""
        node = self.query_one(DirectoryTree).cursor_node
        return None if node is None or node.data is None else node.data.path
