"""The bisect bar: a binary search in progress, its probe, and the keys that answer it.

``search.bisect`` does the search, with a pure state. The bar holds the current state, measures probes in a thread, and
tells the screen what is still suspect. While it has the focus, its letters are answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np
from rich.text import Text
from textual import on
from textual.binding import BindingType
from textual.events import Click
from textual.message import Message
from textual.widgets import Static
from textual.worker import get_current_worker

from tensordiff.align.match import Pair
from tensordiff.compare.row import Row
from tensordiff.errors import TensordiffError, printable
from tensordiff.report.labels import GLYPHS, label
from tensordiff.search.bisect import ASSUMPTION, Bisect, Mark
from tensordiff.search.bisect_outcome import BisectOutcome, NeighbourCheck, check_neighbours, search_and_check
from tensordiff.search.oracle import RowsByPosition, VerdictOracle
from tensordiff.session.session import Session
from tensordiff.tui.keys import bindings
from tensordiff.tui.table.model import Listing, Suspects
from tensordiff.tui.text import plain
from tensordiff.tui.threads import ThreadFailed, in_thread
from tensordiff.util.garbage_collector import heap_frozen

_AT_ONCE = 5_000
"""The number of pairs up to which a search begins without a thread."""
_HINT = "g good  b bad  s skip  u undo  a auto  enter opens  r ends it  esc table"


class BisectBar(Static, can_focus=True):
    """The bar; hidden while nothing is searched."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("bisect")
    BINDING_GROUP_TITLE = "Bisect"
    HELP = f"A binary search for the first bad place. It assumes that {ASSUMPTION}."
    DEFAULT_CSS = """
    BisectBar {
        height: auto; max-height: 10; display: none; padding: 0 1; background: $panel; border-left: thick $panel;
    }
    BisectBar.-shown { display: block; }
    BisectBar:focus { border-left: thick $primary; }
    """

    @dataclass
    class Changed(Message):
        """The set of suspects changed."""

        bisect: Bisect | None

    @dataclass
    class ProbeOpened(Message):
        """The user wants to look at the probe."""

        row: Row

    @dataclass
    class _Seen(Message):
        """The probe was measured, or the automatic search reached a state."""

        oracle: VerdictOracle
        bisect: Bisect
        is_auto: bool = False
        check: NeighbourCheck | None = None

    @dataclass
    class _Begun(Message):
        """A search can begin, or its log is of other pairs."""

        oracle: VerdictOracle
        bisect: Bisect | None
        doubts: tuple[str, ...]
        sentence: str = ""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self.oracle: VerdictOracle | None = None
        self.bisect: Bisect | None = None
        self.check: NeighbourCheck | None = None
        self.doubts: tuple[str, ...] = ()
        self.shows_log = False
        self.is_busy = False

    # --- beginning and ending --------------------------------------------------------------------

    def start(self, session: Session, rows: Sequence[Row], log: str = "") -> None:
        """Begin a search, or continue from a log. Rows that were measured are not measured again."""
        self.add_class("-shown")
        begin = partial(_begun, session, rows, log)
        if len(session.pairs) <= _AT_ONCE:
            self.on_bisect_bar__begun(begin())
            return
        self.is_busy = True
        if self.bisect is None:
            self.update("beginning…")
        in_thread(self, "begin", partial(self._begin, begin))

    def _begin(self, begin: Callable[[], _Begun]) -> None:
        with heap_frozen():  # it looks through all pairs
            begun = begin()
        self.post_message(begun)

    def on_bisect_bar__begun(self, message: _Begun) -> None:
        """Show the first probe, or say why there is none."""
        self.is_busy = False
        if message.bisect is None:
            self.action_reset()
            self.notify(f"the search is ended: {message.sentence}", severity="warning", markup=False, timeout=8)
            return
        self.oracle, self.doubts = message.oracle, message.doubts
        self._become(message.bisect)

    def suspects(self, listing: Listing) -> Suspects:
        """The positions of a listing that are still suspect; none if nothing is searched, or everything is good."""
        if self.bisect is None or self.bisect.all_good:
            return Suspects()
        outputs = np.flatnonzero(~listing.is_input) if not listing.is_input.all() else np.arange(len(listing))
        found = self.bisect.suspects
        return Suspects(outputs[found.start : found.stop])

    def action_reset(self) -> None:
        """Forget the search."""
        self.workers.cancel_node(self)
        self.oracle = self.bisect = self.check = None
        self.is_busy = False
        self.remove_class("-shown")
        self.post_message(self.Changed(None))

    def _become(self, bisect: Bisect, *, is_auto: bool = False, seen: NeighbourCheck | None = None) -> None:
        self.bisect, self.check = bisect, seen
        self.post_message(self.Changed(bisect))
        self._show()
        if not is_auto:
            self._measure_probe(bisect)

    def _measure_probe(self, bisect: Bisect) -> None:
        oracle, at = self.oracle, self._at
        if oracle is None or at is None or at in oracle.rows:
            return

        def read() -> None:
            oracle.row(at)
            self.post_message(self._Seen(oracle, bisect))

        in_thread(self, "probe", read)

    # --- answers ---------------------------------------------------------------------------------

    def action_answer(self, mark: Mark | Literal["good", "bad", "skip"]) -> None:
        """Judge the probe."""
        if self.bisect is None or self.is_busy:
            return
        try:
            self._become(self.bisect.mark(mark))
        except TensordiffError as error:
            self.notify(str(error), severity="warning", markup=False)

    def action_undo(self) -> None:
        """Undo the last answer."""
        if self.bisect is not None and not self.is_busy:
            self._become(self.bisect.undo())

    def action_log(self) -> None:
        """Show or hide all answers."""
        self.shows_log = not self.shows_log
        self._show()

    def action_open(self) -> None:
        """Open the probe, or the answer."""
        row = self._row()
        if row is not None:
            self.post_message(self.ProbeOpened(row))

    def action_auto(self) -> None:
        """Let the verdicts answer, and check the neighbours of the answer."""
        if self.bisect is None or self.oracle is None or self.is_busy:
            return
        bisect, oracle = self.bisect, self.oracle
        self.is_busy = True

        def search() -> None:
            worker, reached = get_current_worker(), bisect
            for reached in search_and_check(bisect, oracle):
                if worker.is_cancelled:
                    return
                self.post_message(self._Seen(oracle, reached, True))
            check = check_neighbours(reached, oracle)
            _ = check.is_monotone  # looked up here, so that the bar does not look through all marks
            self.post_message(self._Seen(oracle, reached, True, check))

        in_thread(self, "auto", search)

    def on_bisect_bar__seen(self, message: _Seen) -> None:
        """Show what was measured or reached."""
        message.stop()
        if message.oracle is not self.oracle:
            return
        if message.is_auto:
            self.is_busy = message.check is None
            self._become(message.bisect, is_auto=True, seen=message.check)
        else:
            self._show()

    @on(ThreadFailed)
    def _leave_busy(self) -> None:
        """Accept answers again; the app reports the failure."""
        self.is_busy = False

    def on_click(self, event: Click) -> None:
        """Focus the bar, so that its keys answer."""
        event.stop()
        self.focus()

    # --- what is shown ---------------------------------------------------------------------------

    @property
    def _at(self) -> int | None:
        """The position of the probe or, when the search is done, of its answer."""
        bisect = self.bisect
        return None if bisect is None else bisect.first_bad if bisect.probe is None else bisect.probe

    @property
    def pair(self) -> Pair | None:
        """The pair to look at."""
        return None if self.oracle is None or self._at is None else self.oracle.pairs[self._at]

    def _row(self) -> Row | None:
        return None if self.oracle is None or self._at is None else self.oracle.rows.get(self._at)

    def _show(self) -> None:
        if self.bisect is not None and self.oracle is not None:
            self.update(plain(Text("\n").join(self._lines(self.bisect, self.oracle)), self.app.no_color))

    def _lines(self, bisect: Bisect, oracle: VerdictOracle) -> list[Text]:
        lines = _answer(BisectOutcome(bisect, oracle, self.check, self.doubts)) if bisect.is_done else [self._probe()]
        if self.shows_log:
            lines += [Text(printable(line), "dim") for line in bisect.log().splitlines()[-6:]]
        return [*lines, Text(_HINT, "dim")]

    def _probe(self) -> Text:
        if self.bisect is None or self.oracle is None or self.bisect.probe is None:
            return Text("")
        pair = self.oracle.pairs[self.bisect.probe]
        line = Text.assemble("Probe ", (f"#{pair.index} {label(pair)}", "bold"))
        if (row := self.oracle.rows.get(self.bisect.probe)) is not None:
            line.append(f"  {GLYPHS[row.verdict.name]} {printable(row.verdict.why)}")
        return line.append(f" — {len(self.bisect.suspects)} suspects, roughly {self.bisect.steps} steps left")


def _begun(session: Session, rows: Sequence[Row], log: str) -> BisectBar._Begun:
    """A search over the session's outputs, with the rows that are already measured: those of its first pairs."""
    oracle, doubts = VerdictOracle.over(session.comparer, session.pairs), session.doubts
    if not session.comparer.in_eight_bits:  # else a drift counts as good, even one caused by a culprit
        is_part = len(oracle.pairs) < len(session.pairs)
        known = [row for row in rows if not row.is_input] if is_part else rows
        oracle = replace(oracle, rows=RowsByPosition(known))
    try:
        return BisectBar._Begun(oracle, oracle.start().replay(log), doubts)
    except TensordiffError as error:
        return BisectBar._Begun(oracle, None, doubts, str(error))


def _answer(outcome: BisectOutcome) -> list[Text]:
    """The result of the search, and its evidence."""
    bisect, pairs = outcome.bisect, outcome.oracle.pairs
    if bisect.first_bad is not None and outcome.unproven:
        far = label(pairs[bisect.first_bad])
        lines = [Text(f"? {far} is the first that is far off, but {outcome.unproven}", "bold yellow")]
    elif bisect.first_bad is not None:
        row = outcome.oracle.rows.get(bisect.first_bad)
        why = f": {printable(outcome.why_bad)}" if row is not None else ""
        pair = pairs[bisect.first_bad]
        lines = [Text(f"✗ First bad: #{pair.index} {label(pair)}{why}", "bold red")]
    elif bisect.any_bad:
        names = ", ".join(label(pairs[at]) for at in bisect.suspects[:4])
        lines = [Text(f"? Skips leave {len(bisect.suspects)} suspects: {names}", "bold yellow")]
    elif bisect.all_good and outcome.reasons:
        lines = [Text(f"? Nothing is bad, but {outcome.reasons[0]}", "bold yellow")]
    elif bisect.all_good:
        lines = [Text("✓ Nothing is bad", "bold green")]
    else:
        lines = [Text("? All that is left was skipped, and nothing is known to be bad", "bold yellow")]
    return lines + _evidence(outcome)


def _evidence(outcome: BisectOutcome) -> list[Text]:
    asked = len(outcome.bisect.marks)
    told = f"{asked} answers; assuming that {ASSUMPTION}"
    found = outcome.check
    if found is not None and found.is_monotone:
        told += f"; {'all pairs' if found.is_scanned else f'{len(found.checked)} more places'} confirm this"
    lines = [Text(told, "dim")]
    if found is not None and found.is_monotone is False:
        again = ", ".join(label(outcome.oracle.pairs[at]) for at in found.good_again[:3])
        lines.append(
            Text(
                f"! not monotone (good after a bad one: {again}); the table, where everything is measured, may differ",
                "yellow",
            )
        )
    return lines
