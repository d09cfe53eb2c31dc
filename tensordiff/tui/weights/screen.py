"""The screen for two checkpoints: every parameter with the verdict and the words of ``tensordiff weights``.

Parameters have no execution order, so there is no culprit, no search and nothing to inject here. ``weights.comparison``
judges them, as on the command line.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import Static
from textual.worker import get_current_worker

from tensordiff.dump import Dump
from tensordiff.errors import printable
from tensordiff.report.comparison_json import dumps, parameter_json, weights_json
from tensordiff.report.labels import COLOURS, GLYPHS, PARAMETER_COLOURS, PARAMETER_GLYPHS
from tensordiff.session.request import Request
from tensordiff.session.weights import compare_checkpoints
from tensordiff.tui.comparison.opening_screen import CouldNotOpen
from tensordiff.tui.dialogs import Ask
from tensordiff.tui.download import download
from tensordiff.tui.key_line import KeyLine
from tensordiff.tui.line_list import LineList
from tensordiff.tui.notice import sentence_of, tell
from tensordiff.tui.permissions import permissions_of
from tensordiff.tui.sized_screen import SizedScreen
from tensordiff.tui.start import note_recent
from tensordiff.tui.table.filter_bar import FilterBar
from tensordiff.tui.table.frames import SummaryFrame
from tensordiff.tui.text import bar, fit, plain, right
from tensordiff.tui.threads import ThreadFailed, in_thread
from tensordiff.tui.weights.parameter_list import ParameterList, columns
from tensordiff.util.atomic_write import write_file
from tensordiff.util.garbage_collector import collect_closed
from tensordiff.weights.comparison import ParameterRow, WeightsComparison, WeightsOutcome

_BATCH_S = 0.05
_BAR = 20


@dataclass
class Paired(Message):
    """The parameters are paired, and can be read."""

    comparison: WeightsComparison


@dataclass
class Read(Message):
    """More parameters were compared."""

    rows: list[ParameterRow]


@dataclass
class Compared(Message):
    """All parameters were compared."""

    outcome: WeightsOutcome


class WeightsScreen(SizedScreen[None]):
    """Two checkpoints as parameters."""

    BINDINGS: ClassVar[list[BindingType]] = []
    BINDING_GROUP_TITLE = "Checkpoints"
    DEFAULT_CSS = """
    WeightsScreen > #headings { height: 1; background: $panel; text-style: bold; }
    WeightsScreen > #told { height: 3; padding: 0 1; background: $panel; color: $foreground; }
    """

    def __init__(self, request: Request, reference: Dump, candidate: Dump, *, saves_state: bool = True) -> None:
        super().__init__()
        self.request, self.sides, self.saves_state = request, (reference, candidate), saves_state
        self.comparison: WeightsComparison | None = None
        self.outcome: WeightsOutcome | None = None
        """None until all parameters are read."""

    def compose(self) -> ComposeResult:
        """The sides, the list, and the details of one parameter."""
        yield SummaryFrame()
        yield Static(id="headings", markup=False)
        yield ParameterList()
        yield FilterBar()
        yield Static(id="told", markup=False)
        yield KeyLine()

    def on_mount(self) -> None:
        """Paint first, then read."""
        self.list.focus()
        self.summarize()
        self.call_after_refresh(in_thread, self, "weights", self._compare)

    def on_unmount(self) -> None:
        """Release what was read."""
        collect_closed(self)

    @property
    def list(self) -> ParameterList:
        """The list of parameters."""
        return self.query_one(ParameterList)

    # --- comparing -------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Compare; runs in a thread, until everything is read or the screen is left."""
        worker = get_current_worker()
        comparison = compare_checkpoints(self.request, *self.sides)
        self.post_message(Paired(comparison))
        if self.saves_state:
            note_recent(self.request.reference, self.request.candidate)
        rows: list[ParameterRow] = []
        sent, told = 0, time.monotonic()
        for row in comparison.rows():
            if worker.is_cancelled:
                return
            rows.append(row)
            if time.monotonic() - told >= _BATCH_S:
                self.post_message(Read(rows[sent:]))
                sent, told = len(rows), time.monotonic()
        self.post_message(Read(rows[sent:]))
        self.post_message(Compared(comparison.outcome(rows)))

    @on(Paired)
    def _begin(self, message: Paired) -> None:
        self.comparison = message.comparison
        self.summarize()

    @on(Read)
    def _add(self, message: Read) -> None:
        self.list.add(message.rows)
        self.summarize()

    @on(Compared)
    def _end(self, message: Compared) -> None:
        self.outcome = message.outcome
        self.summarize()

    @on(ThreadFailed)
    def _give_up(self, message: ThreadFailed) -> None:
        if message.group == "weights":
            message.stop()
            self.post_message(CouldNotOpen(sentence_of(message.error)))

    # --- what is shown ---------------------------------------------------------------------------

    def on_resize(self) -> None:
        """Place the headings above their columns."""
        width = self.list.scrollable_content_region.width or self.size.width
        cells = (right(text, size) if is_number else fit(text, size) for text, size, is_number in columns(None, width))
        self.query_one("#headings", Static).update(f"  {' '.join(cells)} what")

    def summarize(self) -> None:
        """Show the sides, the progress, and the result."""
        names = [Text(printable(dump.path.name or dump.path), "bold") for dump in self.sides]
        counts = [len(dump.parameters) or len(dump) for dump in self.sides]
        who = Text(" ↔ ").join(names).append(f" · checkpoints of {counts[0]} and {counts[1]} tensors")
        self.query_one(SummaryFrame).update(plain(Text("\n").join((who, self._what())), self.app.no_color))

    def _what(self) -> Text:
        if self.comparison is None:
            return Text("pairing …")
        if self.outcome is None:
            done, total = len(self.list.all), len(self.comparison)
            return Text(f"compared {done} of {total} ").append(bar(done, max(1, total), _BAR))
        outcome = self.outcome
        parts = [Text(f"{GLYPHS[outcome.verdict]} {outcome.verdict}", f"bold {COLOURS[outcome.verdict]}")]
        for name, count in outcome.counts.items():
            if count:
                parts.append(Text(f"{PARAMETER_GLYPHS[name]} {count} {name}", PARAMETER_COLOURS[name]))
        parts += [Text(sentence, "yellow") for sentence in outcome.doubts]
        parts += [Text(printable(note)) for note in outcome.notes]
        return Text(" · ").join(parts)

    @on(LineList.Highlighted)
    def _tell_of_row(self) -> None:
        row = self.list.current
        self.query_one("#told", Static).update("" if row is None else _told(row))

    # --- what can be done ------------------------------------------------------------------------

    @on(LineList.Asked)
    def _do(self, message: LineList.Asked) -> None:
        if message.what == "filter":
            self.query_one(FilterBar).open()
        elif message.what == "export":
            self._export()
        else:
            self._copy(message.what.removeprefix("copy "))

    @on(FilterBar.Changed)
    def _filter(self, message: FilterBar.Changed) -> None:
        self.list.choose(only_findings=self.list.only_findings, pattern=message.pattern)

    @on(FilterBar.Left)
    def _leave_filter(self) -> None:
        self.list.focus()

    def leave_transient(self) -> bool:
        """Clear the filter on escape."""
        filters = self.query_one(FilterBar)
        if not filters.has_class("-shown"):
            return False
        filters.clear()
        self.list.focus()
        return True

    def _copy(self, what: str) -> None:
        row = self.list.current
        if row is None:
            tell(self, "there is no parameter under the cursor", "warning")
            return
        text = row.name if what == "name" else dumps(parameter_json(self.list.all.index(row), row))
        self.app.copy_to_clipboard(text)
        tell(self, f"copied {text:.60}")

    def _export(self) -> None:
        if self.comparison is None or self.outcome is None:
            tell(self, "still comparing; a report needs all parameters", "warning")
            return
        content = dumps(weights_json(self.comparison, self.outcome)) + "\n"
        if not permissions_of(self).writes:
            download(self, "weights.json", content)
            return

        def write(text: str | None) -> None:
            if text is not None:
                path = Path(text).expanduser()
                in_thread(self, "export", lambda: self._write(path, content))

        hint = "as tensordiff weights --json prints it; an existing file is overwritten"
        self.app.push_screen(Ask("Export to", str(Path.cwd() / "weights.json"), hint, _wrong_file), write)

    def _write(self, path: Path, content: str) -> None:
        write_file(path, content)
        self.app.call_from_thread(tell, self, f"written to {path.absolute()}")


def _told(row: ParameterRow) -> Text:
    """Everything that is known of a parameter, in words."""
    names = " ↔ ".join(printable(name or "(none)") for name in (row.reference, row.candidate))
    views = f" · {', '.join(map(printable, row.views))}" if row.views else ""
    why = "" if row.why == row.sentence else f"; {printable(row.why)}"
    said = f"{PARAMETER_GLYPHS[row.verdict]} {row.verdict}: {printable(row.sentence)}{why}"
    return Text(f"{names}{views}\n{said}")


def _wrong_file(text: str) -> str | None:
    if not text.endswith(".json"):
        return "the name must end in .json"
    return "this is a folder; give a file in it" if Path(text).expanduser().is_dir() else None
