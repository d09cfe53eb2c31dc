"""What keys do on a comparison beyond looking at it: rules, tolerances, the search, reruns, reports.

How it is opened and measured is in ``comparison``, what only changes the view in ``viewing``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import Vertical
from textual.events import Key as KeyEvent
from textual.message import Message
from textual.worker import get_current_worker

from tensordiff.align.rules.file import RulesFile
from tensordiff.compare.judge.verdict import floor_for
from tensordiff.compare.row import Row
from tensordiff.errors import TensordiffError
from tensordiff.report import write_report
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.tui.comparison import measurement
from tensordiff.tui.comparison.bisect_bar import BisectBar
from tensordiff.tui.comparison.export_dialog import Export, ExportChoice
from tensordiff.tui.comparison.opening_screen import NEEDS_DUMPS
from tensordiff.tui.comparison.viewing import Viewing
from tensordiff.tui.dialogs import Ask
from tensordiff.tui.jobs.job_line import JobLine
from tensordiff.tui.jobs.reruns import Reruns
from tensordiff.tui.keys import bindings
from tensordiff.tui.table.filter_bar import FilterBar
from tensordiff.tui.table.model import Listing
from tensordiff.tui.table.table import LayerTable
from tensordiff.util.garbage_collector import heap_frozen

if TYPE_CHECKING:
    from tensordiff.tui.rules.panel import RulesPanel


class DiffScreen(Viewing):
    """The main screen."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("diff")
    BINDING_GROUP_TITLE = "Comparison"

    @dataclass
    class _Realigned(Message):
        """The listing of what the rules panel has aligned is made."""

        opened: measurement.Opened

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reruns = Reruns(self)
        self._panel: RulesPanel | None = None

    def on_unmount(self) -> None:
        """Leave no child behind, beside what every comparison does at its end."""
        self.reruns.close()

    def restore(self) -> None:
        """As it was left, with its search."""
        super().restore()
        if self.keeper.state.bisect:
            self.search_again(self.keeper.state.bisect)

    # --- whether something can be done, and why not ----------------------------------------------

    def why_not(self, action: str) -> str | None:
        """Why a key does nothing now, for those who press it; None where it does something."""
        if action == "cancel_job" and self.query_one(JobLine).run is None:
            return "nothing is running"
        if action == "job_log" and self.query_one(JobLine).run is None:
            return "nothing is running, so there is no log"
        if action in NEEDS_DUMPS and self.session is None:
            return "the dumps are still being opened"
        if action == "export" and self.outcome is None:
            return "still measuring; a report is of all rows"
        if action == "bisect" and not self.listing.pairs:
            return "nothing is paired, so there is nothing to search"
        return None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual calls with it
        """Grey what cannot be done."""
        return True if not self.is_mounted or self.why_not(action) is None else None

    def on_key(self, event: KeyEvent) -> None:
        """A greyed key says why."""
        found = self.active_bindings.get(event.key)
        greyed = found.binding.action.partition("(")[0] if found is not None and not found.enabled else ""
        if (why := self.why_not(greyed)) is not None:
            self.tell(why, "warning")
            event.stop()

    # --- rules -----------------------------------------------------------------------------------

    def action_focus_part(self, part: str) -> None:
        """To the table; show the plot or hide it; to the rules."""
        if part == "rules":
            self.action_map()
        elif part == "plot":
            self.show_plot(not self.query_one("#plot").display)
        else:
            self.table.focus()

    def action_map(self) -> None:
        """Show the rules, or hide them."""
        middle = self.query_one("#middle")
        if middle.has_class("-rules") and (self.query("#side *:focus") or not self.table.has_focus):
            self.hide_rules()
            return
        middle.add_class("-rules")
        self.call_later(self._show_panel)

    def hide_rules(self) -> None:
        """All room for the table."""
        self.query_one("#middle").remove_class("-rules")
        self.set_focus(None)  # at once: a key typed ahead must not reach what is hidden
        self.table.focus()

    async def _show_panel(self) -> None:
        from tensordiff.tui.rules.panel import RulesPanel

        if self.session is not None and self._panel is None:
            self._panel = RulesPanel(self.session)
            await self.query_one("#side", Vertical).mount(self._panel)
            self._tell_panel()
        if self._panel is not None:
            self._panel.rules.focus()

    def _tell_panel(self) -> None:
        """The panel pins the pair under the cursor."""
        if self._panel is not None:
            self._panel.selected = self.pair
            if self.session is not None and self._panel.session is not self.session:
                self._panel.show_session(self.session)

    @on(LayerTable.Highlighted)
    def _tell_panel_of_cursor(self) -> None:
        if self._panel is not None:
            self._panel.selected = self.pair

    @property
    def rules(self) -> RulesFile:
        """The rules as the panel shows them, written or not, also while the dumps are still being aligned by them."""
        if self._panel is not None:
            return self._panel.book.rules
        return RulesFile() if self.session is None else self.session.rules

    def on_rules_panel_aligned(self, message: RulesPanel.Aligned) -> None:
        """In a thread: a listing of many rows takes a moment."""
        session = message.session
        self.keep(rules=session.rules, rules_base=session.saved_rules)
        self.in_thread("open", partial(self._realign, session, self.listing))

    def _realign(self, session: Session, before: Listing) -> None:
        worker = get_current_worker()
        with heap_frozen():
            opened = measurement.opened(session, before)
        if not worker.is_cancelled:
            self.post_message(self._Realigned(opened))

    @on(_Realigned)
    def _show_realigned(self, message: _Realigned) -> None:
        """The tolerance may have changed since, and the rules been written: that is the screen's to say."""
        opened = message.opened
        session = opened.session if self.session is None else opened.session.with_settings_of(self.session)
        self._show_session(measurement.Opened(session, opened.listing, opened.findings))

    def on_rules_panel_written(self, message: RulesPanel.Written) -> None:
        """The rules are those of a file now; pairs and numbers stay."""
        written = message.session.saved_rules
        self.keep(rules=written, rules_base=written)
        if self.session is not None:
            self.session = self.session.with_rules_file(message.path, written)
            self.request = self.session.request
            self._tell_panel()
            if self.outcome is None:
                self.measure()  # what is being measured is of the session before

    # --- tolerance -------------------------------------------------------------------------------

    def action_tolerance(self, way: int) -> None:
        """Ten times the tolerance, or a tenth."""
        self.judge_by(self._threshold() * 10.0**way)

    def _threshold(self) -> float:
        """What decides now: what was said, else what precision explains."""
        said = self.session.engine.limits.threshold if self.session else None
        if said is not None:
            return said
        dtypes = next((row.dtypes for row in self.rows if row.dtypes and not row.is_exact), ("float32", "float32"))
        return floor_for(*dtypes)[1].agrees

    def action_metric(self) -> None:
        """Choose the tolerance."""
        hint = "largest rel_l2 that still agrees; empty: what precision explains, and what came in, decide"
        said = self.session.engine.limits.threshold if self.session else None
        ask = Ask("Tolerance", "" if said is None else f"{said:g}", hint, _wrong_threshold)
        self.app.push_screen(ask, self._take_threshold)

    def _take_threshold(self, text: str | None) -> None:
        if text is not None:
            self.judge_by(float(text) if text.strip() else None)

    def judge_by(self, threshold: float | None) -> None:
        """Judge all rows anew."""
        if self.session is not None:
            self.session = self.session.with_threshold(threshold)
            self.request = self.session.request
            self.outcome, self.table.culprits = None, frozenset()
            self.measure()
            self._tell_others()

    def open(self, request: Request) -> None:
        """Open; what is a source is run first."""
        try:
            if not self.reruns.run_sources(request):
                super().open(request)
        except TensordiffError as error:
            self.failed("open", error)

    def show_session(self, session: Session, listing: Listing) -> None:
        """The panel and a search follow, as far as they can."""
        super().show_session(session, listing)
        self._tell_others()

    def _tell_others(self) -> None:
        self._tell_panel()
        bar = self.query_one(BisectBar)
        if bar.bisect is not None:
            self.search_again(bar.bisect.log())

    def search_again(self, log: str) -> None:
        """Go on with a search from its log; where that is of other pairs, the bar says so and ends it."""
        if self.session is not None:
            self.query_one(BisectBar).start(self.session, self._measured, log)

    @property
    def _measured(self) -> list[Row | None]:
        """The rows of this session, without those that are shown of the one before until they are measured anew."""
        return self.listing.rows[: self.listing.measured]

    # --- bisect ----------------------------------------------------------------------------------

    def action_bisect(self) -> None:
        """Begin, or back to the bar."""
        bar = self.query_one(BisectBar)
        if bar.bisect is None and not bar.is_busy and self.session is not None:
            bar.start(self.session, self._measured)
        bar.focus()

    @on(BisectBar.Changed)
    def _follow_search(self, message: BisectBar.Changed) -> None:
        bisect, bar = message.bisect, self.query_one(BisectBar)
        self.table.suspects = bar.suspects(self.listing)
        self.table.refresh()
        self.keep(bisect="" if bisect is None else bisect.log())
        self.plot_soon()
        if bisect is None:
            self.table.focus()
        elif (pair := bar.pair) is not None and (found := self.listing.find(pair)) is not None:
            self.table.reveal(found)

    @on(BisectBar.ProbeOpened)
    def _open_probe(self, message: BisectBar.ProbeOpened) -> None:
        self.open_row(message.row)

    # --- reruns ----------------------------------------------------------------------------------

    def action_inject(self) -> None:
        """Show injected errors, or how to get them."""
        self.reruns.toggle_injected()

    def show_injected(self, shown: bool) -> None:
        """Show the injected column, or hide it."""
        self.shows_injected = shown
        if self.session is not None:
            self._place_extra_columns(self.session)
        self.summarize()
        self.plot_soon()

    def action_inject_here(self) -> None:
        """Rerun with inputs injected."""
        self.reruns.inject()

    def action_capture(self) -> None:
        """Run the candidate again."""
        self.reruns.capture()

    def action_ops(self) -> None:
        """Look inside a layer."""
        self.reruns.ops()

    def asked(self, what: str, row: Row) -> None:
        """What the layer screen cannot do itself, for the row it shows."""
        if (at := self.listing.find(row.pair)) is not None:
            self.table.reveal(at)
        {"inject": self.action_inject_here, "ops": self.action_ops, "export": self.action_export}[what]()

    def compare_inside(self, request: Request) -> None:
        """Another comparison, on top of this one."""
        self.app.push_screen(DiffScreen(request, keeps=False))

    @on(JobLine.Ended)
    def _end_job(self, message: JobLine.Ended) -> None:
        self.reruns.ended(message)

    def action_cancel_job(self) -> None:
        """End what runs."""
        self.query_one(JobLine).cancel()

    def action_job_log(self) -> None:
        """What the child printed."""
        self.query_one(JobLine).toggle_log()

    # --- out and again ---------------------------------------------------------------------------

    def action_export(self) -> None:
        """Write a report."""
        at = self.table.position
        selected = "" if at is None else self.listing.labels[at]
        self.app.push_screen(Export(selected, len(self._marked()), Path.cwd()), self._export)

    def _marked(self) -> list[Row]:
        places = (self.listing.positions.get(key) for key in self.table.marks)
        rows = (self.listing.rows[at] for at in sorted(at for at in places if at is not None))
        return [row for row in rows if row is not None]

    def _export(self, choice: ExportChoice | None) -> None:
        session, outcome, row = self.session, self.outcome, self.row_here()
        if choice is None or session is None or outcome is None:
            return
        rows = {"all": None, "marked": self._marked(), "pair": [row] if row else []}[choice.scope]

        def write() -> None:
            write_report(session, outcome, choice.path, rows=rows)
            self.app.call_from_thread(self.tell, f"written to {choice.path.absolute()}")

        self.in_thread("export", write)

    def action_reload(self) -> None:
        """Read the dumps again."""
        self.tell("reading the dumps again")
        self.open(self.request)

    def leave_transient(self) -> bool:
        """Leave the filter, the bar, the panel; whether there was anything to leave."""
        bar, filter_bar, focused = self.query_one(BisectBar), self.query_one(FilterBar), self.focused
        if filter_bar.has_class("-shown") and (filter_bar.text or filter_bar.query("*:focus")):
            filter_bar.clear()
        elif focused is not None and any(node.id == "side" for node in focused.ancestors):
            self.hide_rules()
        elif focused is not None and focused is not self.table:
            pass
        elif self.table.suspects:
            bar.action_reset()
        else:
            return False
        self.table.focus()
        return True


def _wrong_threshold(text: str) -> str | None:
    try:
        fine = not text.strip() or 0 <= float(text) < float("inf")
    except ValueError:
        fine = False
    return None if fine else f"{text!r:.40} is no tolerance; give a number from 0 up, such as 1e-3"
