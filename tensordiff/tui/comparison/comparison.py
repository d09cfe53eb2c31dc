"""A comparison on the screen: its parts, and how they follow what threads find out.

This half of the screen opens, measures, watches the disk and keeps the session file; what keys do is in
``diff``. Whatever fails in a thread becomes one notification, and the screen stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.geometry import Size
from textual.message import Message
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Static
from textual.worker import Worker, WorkerState, get_current_worker

from tensordiff.compare.row import Row
from tensordiff.dump.lint import Finding
from tensordiff.errors import WriteError, printable
from tensordiff.search.outcome import Outcome
from tensordiff.session.request import Request
from tensordiff.session.reruns import is_rerun
from tensordiff.session.session import Session
from tensordiff.session.state import DumpIdentity
from tensordiff.session.state import row_name as key_of
from tensordiff.tui.comparison import measurement
from tensordiff.tui.comparison.bisect_bar import BisectBar
from tensordiff.tui.comparison.opening_screen import CouldNotOpen, sentence_of
from tensordiff.tui.comparison.session_keeper import Keeper, identities
from tensordiff.tui.jobs.job_line import JobLine
from tensordiff.tui.key_line import KeyLine
from tensordiff.tui.start import note_recent
from tensordiff.tui.table.filter_bar import FilterBar
from tensordiff.tui.table.model import Listing, Order
from tensordiff.tui.table.run_plot import Plot, PlotView, painted, picture
from tensordiff.tui.table.summary import Facts, Summary
from tensordiff.tui.table.table import LayerTable
from tensordiff.tui.text import plain
from tensordiff.util.garbage_collector import heap_frozen

_WATCH_S, _PLOT_S, _PLOT_MEASURING_S, _KEEP_S = 2.0, 0.15, 0.5, 0.6


class Comparison(Screen[None]):
    """Two dumps, side by side."""

    @dataclass
    class _Kept(Message):
        """The session file was read."""

        keeper: Keeper

    @dataclass
    class _Touched(Message):
        """The dumps on disk are not those that are shown."""

        found: tuple[DumpIdentity, DumpIdentity]

    @dataclass
    class _Drawn(Message):
        """The plot is drawn."""

        drawn: Text

    def __init__(self, request: Request, *, keeps: bool = True, columns: tuple[str, ...] | None = None) -> None:
        super().__init__()
        self.request, self.keeps, self.columns = request, keeps, columns
        self.session: Session | None = None
        self.outcome: Outcome | None = None
        self.findings: tuple[Finding, ...] = ()
        self.culprits: frozenset[int] = frozenset()
        self.keeper = Keeper(None)
        self.shows_injected = True
        self.plot_metric = "rel_l2"
        self._on_disk: tuple[DumpIdentity, DumpIdentity] | None = None
        self._plot_timer: Timer | None = None
        self._keep_timer: Timer | None = None
        self._is_restored = False

    def compose(self) -> ComposeResult:
        """Summary, rules at the left, table over plot, and the lines at the bottom."""
        yield Summary()
        with Horizontal(id="middle"):
            yield Vertical(id="side")
            with Vertical(id="main"):
                yield LayerTable(id="table")
                yield Static("", id="about", markup=False)
                yield Plot(id="plot")
        yield FilterBar()
        yield BisectBar()
        yield JobLine()
        yield KeyLine()

    def on_mount(self) -> None:
        """Paint first; open after."""
        self.table.chosen = self.columns
        self.query_one(Summary).wait_for(self.request.reference, self.request.candidate)
        self.table.focus()
        self.call_after_refresh(self.open, self.request)
        self.set_interval(_WATCH_S, self._look_at_disk)

    def on_unmount(self) -> None:
        """What was done last is kept too."""
        self._keep_now()

    @property
    def table(self) -> LayerTable:
        """The table."""
        return self.query_one("#table", LayerTable)

    @property
    def listing(self) -> Listing:
        """What the table lists."""
        return self.table.listing

    @property
    def rows(self) -> list[Row]:
        """What was measured so far, in order."""
        return [row for row in self.listing.rows if row is not None]

    # --- opening and measuring -------------------------------------------------------------------

    def open(self, request: Request) -> None:
        """Open and align in a thread."""
        self.request = request
        self.in_thread("open", partial(self._open, request, self.listing))

    def in_thread(self, group: str, do: Callable[[], object]) -> None:
        """Do something that may block; the same again replaces it. Named, or Textual would spell out all it holds."""
        self.run_worker(do, name=group, group=group, description=group, thread=True, exclusive=True,
                        exit_on_error=False)  # fmt: skip

    def _open(self, request: Request, before: Listing) -> None:
        worker = get_current_worker()
        keeper = self.keeper if self._is_restored else Keeper.of(request, self.keeps)
        found = identities(request)
        with heap_frozen():
            opened = measurement.opened(Session.open(request, keeper.state), before)
        if worker.is_cancelled:
            return
        if self.keeps:
            note_recent(request.reference, request.candidate)
        self.post_message(self._Kept(keeper))
        self._on_disk = found
        self.post_message(opened)
        _load_the_rest()

    @on(_Kept)
    def _restore_first(self, message: _Kept) -> None:
        if not self._is_restored:
            self.keeper = message.keeper
            for sentence in message.keeper.sentences:
                self.tell(sentence, "warning")

    @on(measurement.Opened)
    def _show_session(self, message: measurement.Opened) -> None:
        self.findings = message.findings
        self.show_session(message.session, message.listing)
        if not self._is_restored:
            self._is_restored = True
            self.restore()
        if not message.listing.pairs:
            self.tell("nothing could be paired; write rules that make the names alike (m)", "warning")

    def show_session(self, session: Session, listing: Listing) -> None:
        """Show an alignment, and measure it. The cursor stays with its pair."""
        self.session, self.request, self.outcome, self.culprits = session, session.request, None, frozenset()
        self._place_extra_columns(session)
        self.table.show_listing(listing)
        self.measure()

    def _place_extra_columns(self, session: Session) -> None:
        shown = {"injected": bool(session.engine.injected) and self.shows_injected, "golden": session.engine.golden}
        self.table.missing = frozenset(name for name, there in shown.items() if not there)
        self.table.place_columns()

    def measure(self) -> None:
        """Measure all pairs in a thread, once what is known of them is painted: two that compute are half as quick."""
        if (session := self.session) is not None:
            self.listing.measured = 0
            self.call_after_refresh(self.in_thread, "measure", partial(self._measure, session))
            self.summarize()

    def _measure(self, session: Session) -> None:
        worker = get_current_worker()
        measurement.measure(session, self.post_message, lambda: worker.is_cancelled)

    @on(measurement.Measured)
    def _show_batch(self, message: measurement.Measured) -> None:
        if message.session is not self.session:
            return
        before = self.listing.measured
        self.listing.put(message.batch)
        self.table.show_more(before, self.listing.measured)
        self.summarize()
        self.plot_soon(_PLOT_MEASURING_S)

    @on(measurement.Finished)
    def _show_outcome(self, message: measurement.Finished) -> None:
        if message.session is not self.session:
            return
        self.outcome, self.culprits = message.outcome, message.culprits
        self.findings = tuple(dict.fromkeys((*self.findings, *message.findings)))
        self.table.culprits = message.culprits
        self.table.move(self.table.cursor)
        self.summarize()
        self.refresh_bindings()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """One path for all that fails in a thread."""
        if event.state is WorkerState.ERROR and event.worker.error is not None:
            self.failed(event.worker.group, event.worker.error)

    def failed(self, what: str, error: BaseException) -> None:
        """Tell of a failure; where nothing could be opened there is nothing to stay for."""
        if what == "open" and self.session is None:
            self.post_message(CouldNotOpen(sentence_of(error)))
        else:
            self.tell(sentence_of(error), "error")

    def tell(self, sentence: str, severity: str = "information") -> None:
        """A notification; text from outside is never markup."""
        self.notify(printable(sentence), severity=severity, markup=False, timeout=8)  # type: ignore[arg-type]

    # --- what the lines at top and bottom say ----------------------------------------------------

    def mode(self) -> str:
        """What is out of the ordinary now, in a few words."""
        if self.session is None or self.session.engine.injected is None:
            return ""
        beside = self.session.request.injected
        name = "rerun" if beside is None or is_rerun(beside) else printable(beside.name)
        return f"injected: {name}" if self.shows_injected else "injected errors hidden (i)"

    def summarize(self) -> None:
        """Say again what is compared."""
        if self.session is not None:
            self.query_one(Summary).tell(Facts(self.session, self.listing, self.outcome, self.findings, self.mode()))

    def plot_soon(self, after_s: float = _PLOT_S) -> None:
        """Draw the plot anew, not more often than it can be looked at."""
        if self._plot_timer is None:
            self._plot_timer = self.set_timer(after_s, self._plot)

    @on(Plot.Resized)
    def _plot_in_other_room(self) -> None:
        self.plot_soon()

    def _plot(self) -> None:
        self._plot_timer = None
        plot = self.query_one("#plot", Plot)
        if any(worker.group == "plot" and worker.node is self and not worker.is_finished for worker in self.workers):
            self.plot_soon()  # begun anew each time, it would not be done before all is measured
        elif plot.display and self.session is not None:
            self.in_thread("plot", partial(self._draw, self.listing, self._seen(), plot.content_size))

    def _seen(self) -> PlotView:
        """What the plot shows: the run, the cursor in it, and what a search suspects."""
        table, is_light = self.table, not self.app.current_theme.dark
        return PlotView(self.plot_metric, "injected" not in table.missing, table.position, table.suspects, is_light)

    def _draw(self, listing: Listing, seen: PlotView, room: Size) -> None:
        """In a thread: it takes as long as painting all the rest."""
        drawn = painted(picture(listing, seen, max(20, room.width)), *room)
        if not get_current_worker().is_cancelled:
            self.post_message(self._Drawn(plain(drawn, self.app.no_color)))

    @on(_Drawn)
    def _show_drawn(self, message: _Drawn) -> None:
        self.query_one("#plot", Plot).drawn = message.drawn

    # --- the disk --------------------------------------------------------------------------------

    def _look_at_disk(self) -> None:
        if self._on_disk is not None and self.session is not None:
            self.in_thread("watch", self._look)

    def _look(self) -> None:
        found = identities(self.request)
        if found != self._on_disk:
            self.post_message(self._Touched(found))

    @on(_Touched)
    def _follow_disk(self, message: _Touched) -> None:
        if message.found == self._on_disk or self.session is None:
            return
        self._on_disk = message.found
        if self.session.reference.interrupted or self.session.candidate.interrupted:
            self.open(self.request)
        else:
            self.tell("the dumps changed on disk; ctrl+r reads them again", "warning")

    # --- the session file ------------------------------------------------------------------------

    def keep(self, **changes: object) -> None:
        """Keep what was done, soon."""
        if not self._is_restored:
            return
        self.keeper.note(**changes)
        if self.keeper.is_dirty and self._keep_timer is None:
            self._keep_timer = self.set_timer(_KEEP_S, self._keep_later)

    def _keep_later(self) -> None:
        self._keep_timer = None
        self.in_thread("keep", self.keeper.write)

    def _keep_now(self) -> None:
        try:
            self.keeper.write()
        except WriteError as error:
            self.log(str(error))

    def keep_cursor(self, position: int) -> None:
        """Where the cursor stands goes with whatever else is kept; by itself it is not worth a file."""
        if self._is_restored:
            self.keeper.state = replace(self.keeper.state, cursor=key_of(self.listing.pairs[position]))

    def restore(self) -> None:
        """Show the rows as they were left."""
        state, table = self.keeper.state, self.table
        table.chosen = state.columns or self.columns
        table.marks = frozenset(state.marks)
        order = Order(state.sort, state.descending, state.faults, state.inputs)
        table.place_columns()
        if state.filter:
            self.query_one(FilterBar).open(state.filter)
        table.show_order(order)
        if (at := self.listing.positions.get(state.cursor)) is not None:
            table.go(at)


def _load_the_rest() -> None:
    """What keys will ask for, so that no key waits for it: the screens and panels that are not shown yet."""
    with heap_frozen():
        from textual.widgets import HelpPanel  # noqa: F401

        import tensordiff.tui.layer.screen
        import tensordiff.tui.rules.panel  # noqa: F401
