"""The main screen: two dumps side by side.

The screen puts its parts together and carries messages between them. What the owner of the session has aligned and
measured goes to the table, the rules panel, the bisect bar and the summary; the user's changes there go back to the
owner. The keys of the whole screen are here too; most of them call the part that does the work.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from textual import on
from textual._styles_cache import StylesCache
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.events import Key as KeyEvent

from tensordiff.align.rules.tables import check_limit
from tensordiff.compare.row import Row
from tensordiff.errors import AlignError, TensordiffError
from tensordiff.session.request import Request
from tensordiff.session.storage.state import SessionState
from tensordiff.tui.comparison.bisect_bar import BisectBar
from tensordiff.tui.comparison.export_dialog import export_report
from tensordiff.tui.comparison.messages import (
    Aligned,
    AlignmentFailed,
    CheckpointsOpened,
    DumpsChanged,
    MeasurementEnded,
    RowsMeasured,
    StreamEnded,
)
from tensordiff.tui.comparison.offered_dialog import offer_session
from tensordiff.tui.comparison.opening_screen import NEEDS_DUMPS, CouldNotOpen
from tensordiff.tui.comparison.session_owner import SessionOwner
from tensordiff.tui.comparison.view_state import ViewState
from tensordiff.tui.dialogs import Ask
from tensordiff.tui.jobs.job_line import JobLine
from tensordiff.tui.jobs.reruns import Reruns
from tensordiff.tui.key_line import KeyLine
from tensordiff.tui.keys import bindings
from tensordiff.tui.notice import LoggedNotices, sentence_of, tell
from tensordiff.tui.permissions import permissions_of
from tensordiff.tui.rules.side import RulesSide
from tensordiff.tui.sized_screen import SizedScreen
from tensordiff.tui.start import note_recent
from tensordiff.tui.table.columns import ThirdDump, columns_without
from tensordiff.tui.table.filter_bar import FilterBar
from tensordiff.tui.table.model import Order
from tensordiff.tui.table.pane import TablePane
from tensordiff.tui.table.summary import Facts, Summary, findings_dialog
from tensordiff.tui.table.table import LayerTable
from tensordiff.tui.threads import ThreadFailed, in_thread
from tensordiff.util.garbage_collector import collect_closed, heap_frozen
from tensordiff.util.temporary_folders import is_temporary

if TYPE_CHECKING:
    from tensordiff.tui.app import TensordiffApp
    from tensordiff.tui.rules.panel import RulesPanel

_WATCH_S = 2.0
_NEEDS_VALUES = frozenset({"toggle_rules", "bisect", "ops", "capture"})
"""Actions that read values or run a source: unavailable while another thread takes values from a run."""
_MEASURES_AGAIN = frozenset({"tolerance", "choose_tolerance", "inject", "inject_here", "reload"})
"""Actions that measure pairs again: unavailable for a stream."""


class ComparisonScreen(SizedScreen[None]):
    """A comparison.

    With ``saves_state``, its state is read from a file and written back; otherwise it starts from ``state``.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings("diff")
    BINDING_GROUP_TITLE = "Comparison"

    def __init__(
        self, request: Request, *, saves_state: bool = True, columns: tuple[str, ...] | None = None,
        state: SessionState | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.saves_state, self.columns = saves_state, columns
        self.owner = SessionOwner(
            request, partial(in_thread, self), self.post_message, saves_state=saves_state, state=state,
            permissions=permissions_of(self),
        )  # fmt: skip
        self.reruns = Reruns(self)
        self.view_state = ViewState(self)
        self._notices = LoggedNotices(self, "tensordiff.compare.cluster")

    def compose(self) -> ComposeResult:
        """Summary, rules on the left, table above the plot, and the lines at the bottom."""
        yield Summary()
        with Horizontal(id="middle"):
            yield RulesSide(id="side")
            yield TablePane(id="main")
        yield FilterBar()
        yield BisectBar()
        yield JobLine()
        yield KeyLine()

    def on_mount(self) -> None:
        """Paint first, then open the dumps."""
        request = self.owner.request
        self.table.chosen = self.columns
        self.query_one(Summary).wait_for(request.reference, request.candidate)
        self.table.focus()
        self.call_after_refresh(self.open, request)
        self.set_interval(_WATCH_S, self.owner.look_at_disk)

    def on_unmount(self) -> None:
        """Save the last changes, and leave no child process behind."""
        self._notices.close()
        self.reruns.close()
        self.view_state.close()
        # the cache is keyed by painted lines of widgets, and holds a thousand of them
        StylesCache.get_inner_outer.cache_clear()
        collect_closed(self)

    @property
    def pane(self) -> TablePane:
        """The table with its plot."""
        return self.query_one(TablePane)

    @property
    def table(self) -> LayerTable:
        """The table."""
        return self.pane.table

    @property
    def side(self) -> RulesSide:
        """The rules."""
        return self.query_one(RulesSide)

    @property
    def bar(self) -> BisectBar:
        """The search."""
        return self.query_one(BisectBar)

    # --- messages of the session's owner ---------------------------------------------------------

    def open(self, request: Request) -> None:
        """Open dumps; a source is run first."""
        try:
            if not self.reruns.run_sources(request):
                self.owner.open(request)
        except TensordiffError as error:
            self.give_up(str(error))

    def give_up(self, sentence: str) -> None:
        """Say why dumps could not be opened; if nothing is shown yet, leave the screen."""
        if self.owner.session is None:
            self.post_message(CouldNotOpen(sentence))
        else:
            tell(self, sentence, "error")

    @on(Aligned)
    def _show_alignment(self, message: Aligned) -> None:
        if not self.owner.take_alignment(message):
            return
        if self.owner.is_streaming and self.side.is_shown:
            self._hide_rules()
        self.show_columns()
        self.pane.show_listing(self.owner.listing, self.query_one(FilterBar).pattern)
        self._measure()
        if not self.view_state.is_restored:
            self.view_state.restore()
            in_thread(self, "begin", self._after_first_open)
            if self.owner.keeper.offered is not None:
                offer_session(self, self.owner.keeper.offered)
        if not self.owner.listing.pairs:
            tell(
                self,
                "nothing could be paired by name; m, then tab, looks for partners by value, or pair by pointing",
                "warning",
            )

    @on(CheckpointsOpened)
    def _show_parameters(self, message: CheckpointsOpened) -> None:
        """Switch to the screen for parameters."""
        if self.owner.takes(message):
            app = cast("TensordiffApp", self.app)
            app.show_parameters(self, message.task.request, message.reference, message.candidate)

    def take_session(self) -> None:
        """Begin again with the session that came with the dumps."""
        self.view_state.forget()
        self.owner.take_offered()

    def _after_first_open(self) -> None:
        """In a thread, once the first dumps are open: note the pair as recent, and load the other screens."""
        request = self.owner.request
        if self.saves_state and not (is_temporary(request.reference) or is_temporary(request.candidate)):
            note_recent(request.reference, request.candidate)
        _load_the_rest()

    @on(ThreadFailed)
    def _source_failed(self, message: ThreadFailed) -> None:
        if message.group == "source":
            message.stop()
            self.give_up(sentence_of(message.error))

    @on(AlignmentFailed)
    def _tell_failure(self, message: AlignmentFailed) -> None:
        if self.owner.take_failure(message):
            self.give_up(sentence_of(message.error))
            self._show_in_panel()

    def _measure(self) -> None:
        """Start measuring after the next repaint, and update the summary, the rules panel and the search.

        A repaint and a measurement that run at the same time slow each other down.
        """
        self.call_after_refresh(self.owner.measure)
        self.summarize()
        self._show_in_panel()
        if self.bar.bisect is not None:
            self.search_again(self.bar.bisect.log())

    @on(RowsMeasured)
    def _show_rows(self, message: RowsMeasured) -> None:
        before = self.owner.listing.measured
        if self.owner.take_rows(message):
            self.pane.show_rows(before, self.owner.listing.measured)
            self.summarize()

    @on(MeasurementEnded)
    def _show_result(self, message: MeasurementEnded) -> None:
        if self.owner.take_result(message):
            self.pane.show_culprits(self.owner.culprits)
            self.summarize()
            self.refresh_bindings()

    @on(StreamEnded)
    def _end_stream(self, message: StreamEnded) -> None:
        self.owner.take_stream_end(message)
        self.summarize()
        self._show_in_panel()
        self.refresh_bindings()

    @on(DumpsChanged)
    def _follow_disk(self, message: DumpsChanged) -> None:
        session = self.owner.session
        if session is None or not self.owner.take_change_on_disk(message):
            return
        if session.reference.interrupted or session.candidate.interrupted:
            self.open(self.owner.request)
        else:
            tell(self, "the dumps changed on disk; ctrl+r reads them again", "warning")

    def summarize(self) -> None:
        """Update the summary."""
        owner = self.owner
        if owner.session is not None:
            facts = Facts(owner.session, owner.listing, owner.outcome, owner.findings, self._mode())
            self.query_one(Summary).tell(facts)

    def _mode(self) -> str:
        return " · ".join(filter(None, (self.owner.stream_note, self.reruns.mode())))

    def show_columns(self) -> None:
        """Show the columns that have numbers."""
        if (session := self.owner.session) is not None:
            comparer = session.comparer
            there: list[ThirdDump] = []
            if comparer.injected and self.reruns.shows_injected:
                there.append("injected")
            if comparer.golden:
                there.append("golden")
            self.pane.show_columns(columns_without(there))

    # --- whether something can be done, and why not ----------------------------------------------

    def why_not(self, action: str) -> str | None:
        """Why a key does nothing now, to show when it is pressed; None if it works."""
        if action in ("cancel_job", "job_log") and self.query_one(JobLine).run is None:
            return "nothing is running" if action == "cancel_job" else "nothing is running, so there is no log"
        if action in NEEDS_DUMPS and self.owner.session is None:
            return "the dumps are still being opened"
        if (action in _NEEDS_VALUES and self.owner.is_streaming) or action in _MEASURES_AGAIN:
            return self.owner.why_fixed
        if action == "export" and self.owner.outcome is None:
            return "still measuring; a report needs all rows"
        if action == "bisect" and not self.owner.listing.pairs:
            return "nothing is paired, so there is nothing to search"
        return None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual calls with it
        """Grey keys that do not work now."""
        return True if not self.is_mounted or self.why_not(action) is None else None

    def on_key(self, event: KeyEvent) -> None:
        """Say why a greyed key does nothing."""
        bound = self.active_bindings.get(event.key)
        greyed = bound.binding.action.partition("(")[0] if bound is not None and not bound.enabled else ""
        if (why := self.why_not(greyed)) is not None:
            tell(self, why, "warning")
            event.stop()

    # --- rules -----------------------------------------------------------------------------------

    def action_focus_part(self, part: str) -> None:
        """Focus the table or the rules, or show or hide the plot."""
        {"rules": self._focus_rules, "plot": self.pane.toggle_plot}.get(part, self._focus_table)()

    def _focus_table(self) -> None:
        if self.side.is_shown and self.has_class("-narrow"):
            self._hide_rules()  # they cover the table there
        else:
            self.table.focus()

    def _focus_rules(self) -> None:
        self.side.open(self.owner.session, self.owner.book, self.pane.pair)

    def action_toggle_rules(self) -> None:
        """Show or hide the rules."""
        if self.side.is_shown and (self.side.has_keys or not self.table.has_focus):
            self._hide_rules()
        else:
            self.side.open(self.owner.session, self.owner.book, self.pane.pair)

    def _hide_rules(self) -> None:
        self.side.close()
        self.table.focus()

    def _show_in_panel(self) -> None:
        self.side.show(self.owner.session, self.owner.book, is_aligning=self.owner.is_aligning)
        self.side.select(self.pane.pair)

    def on_rules_panel_edited(self, message: RulesPanel.Edited) -> None:
        """Align by the changed rules."""
        try:
            self.owner.edit_rules(message.book)
        except AlignError as error:
            tell(self, str(error), "warning")
            if self.side.panel is not None:
                self.side.panel.book = self.owner.book
        self._follow_rules()

    def on_rules_panel_written(self, message: RulesPanel.Written) -> None:
        """Note that the rules are in a file now."""
        self.owner.rules_written(message.book, message.path)
        self._follow_rules()

    def _follow_rules(self) -> None:
        self._show_in_panel()
        self.view_state.write_soon()

    # --- tolerance -------------------------------------------------------------------------------

    def action_tolerance(self, way: int) -> None:
        """Multiply or divide the tolerance by ten."""
        self.judge_by(self.owner.scaled_threshold(way))

    def action_choose_tolerance(self) -> None:
        """Choose the tolerance."""
        hint = "largest rel_l2 that still agrees; empty: automatic, by dtype and by the error of the inputs"
        now = "" if self.owner.threshold is None else f"{self.owner.threshold:g}"

        def judge(text: str | None) -> None:
            if text is not None:
                self.judge_by(float(text) if text.strip() else None)

        self.app.push_screen(Ask("Tolerance", now, hint, _wrong_threshold), judge)

    def judge_by(self, threshold: float | None) -> None:
        """Judge all rows by another threshold."""
        if self.owner.session is not None:
            self.owner.judge_by(threshold)
            self.table.culprits = frozenset()
            self._measure()

    # --- search ----------------------------------------------------------------------------------

    def action_bisect(self) -> None:
        """Begin a search, or go back to the bar."""
        if self.bar.bisect is None and not self.bar.is_busy:
            self.search_again("")
        self.bar.focus()

    def search_again(self, log: str) -> None:
        """Continue a search from its log; if the log is of other pairs, the bar says so and ends it."""
        if self.owner.session is not None:
            self.bar.start(self.owner.session, self.owner.rows, log)

    @on(BisectBar.Changed)
    def _follow_search(self, message: BisectBar.Changed) -> None:
        self.pane.show_suspects(self.bar.suspects(self.owner.listing))
        self.view_state.keep(bisect="" if message.bisect is None else message.bisect.log())
        if message.bisect is None:
            self.table.focus()
        elif self.bar.pair is not None:
            self.pane.reveal(self.bar.pair)

    @on(BisectBar.ProbeOpened)
    def _open_probe(self, message: BisectBar.ProbeOpened) -> None:
        self.open_row(message.row)

    # --- reruns ----------------------------------------------------------------------------------

    def action_inject(self) -> None:
        """Show injected errors, or say how to get them."""
        self.reruns.toggle_injected()

    def action_inject_here(self) -> None:
        """Rerun with inputs injected."""
        self.reruns.inject()

    def action_capture(self) -> None:
        """Run the candidate again."""
        self.reruns.capture()

    def action_ops(self) -> None:
        """Look inside a layer."""
        self.reruns.operations()

    def action_keep(self) -> None:
        """Keep captured dumps when the app ends."""
        self.reruns.keep()

    def compare_inside(self, request: Request, state: SessionState) -> None:
        """Open another comparison on top of this one."""
        self.app.push_screen(ComparisonScreen(request, saves_state=False, state=state))

    @on(JobLine.Ended)
    def _end_job(self, message: JobLine.Ended) -> None:
        self.reruns.ended(message)

    def action_cancel_job(self) -> None:
        """End what runs."""
        self.query_one(JobLine).cancel()

    def action_job_log(self) -> None:
        """Show what the child printed."""
        self.query_one(JobLine).toggle_log()

    # --- rows ------------------------------------------------------------------------------------

    @on(LayerTable.Opened)
    def _open_layer(self, message: LayerTable.Opened) -> None:
        row = self.owner.listing.rows[message.position]
        if row is None:
            tell(self, "this row is not measured yet", "warning")
        elif self.owner.is_streaming:
            tell(self, f"{self.owner.why_fixed}, or wait for its end to look at a row", "warning")
        else:
            self.open_row(row)

    def open_row(self, row: Row) -> None:
        """Open the layer screen for a row; the cursor follows to the last row shown there."""
        from tensordiff.tui.layer.screen import LayerScreen

        owner = self.owner
        if owner.session is None:
            return
        rows, at = owner.rows_around(row.pair)
        if at is None:
            rows, at = [*rows, row], len(rows)
        faults = None if owner.outcome is None else tuple(sorted(owner.culprits))

        def come_back(at: int | None) -> None:
            if at is not None:
                self.pane.reveal(rows[at].pair)

        self.app.push_screen(LayerScreen(owner.session, rows, at, owner.outcome, faults), come_back)

    def run_for_row(self, what: str, row: Row) -> None:
        """Run an action of this screen for the row that the layer screen shows."""
        self.pane.reveal(row.pair)
        {"inject": self.action_inject_here, "ops": self.action_ops, "export": self.action_export}[what]()

    def action_culprit(self, way: int) -> None:
        """Go to the next culprit or, if there is none, the next row that diverges."""
        self.pane.next_fault(way, is_all_measured=self.owner.outcome is not None)

    def action_faults(self) -> None:
        """Show only rows that do not agree, or all."""
        self.pane.toggle_faults()

    def action_inputs(self) -> None:
        """Show or hide inputs."""
        self.pane.toggle_inputs()

    def action_tree(self) -> None:
        """Show rows by module, or as one list."""
        self.pane.toggle_tree()

    def action_go(self) -> None:
        """Go to a layer by typing its name."""
        self.pane.go_to_layer()

    def action_columns(self) -> None:
        """Choose the columns."""
        self.pane.choose_columns()

    def action_copy(self, what: str) -> None:
        """Copy the name, or the row as JSON."""
        self.pane.copy(what)

    def action_plot_metric(self) -> None:
        """Plot MSE, or rel L2."""
        self.pane.switch_plot_metric()

    def action_findings(self) -> None:
        """Show all findings of lint."""
        self.app.push_screen(findings_dialog(self.owner.findings))

    def action_filter(self) -> None:
        """Type a filter."""
        self.query_one(FilterBar).open()

    @on(FilterBar.Changed)
    def _filter(self, message: FilterBar.Changed) -> None:
        self.view_state.keep(filter=message.text)
        self.pane.filter(message.pattern)

    @on(FilterBar.Left)
    def _leave_filter(self) -> None:
        self.table.focus()

    def action_export(self) -> None:
        """Write a report."""
        session, outcome = self.owner.session, self.owner.outcome
        if session is not None and outcome is not None:
            marked, notes = self.pane.marked_rows(), self.owner.keeper.state.notes
            export_report(self, session, outcome, selected=self.pane.row, marked=marked, notes=notes)

    def action_reload(self) -> None:
        """Read the dumps again."""
        tell(self, "reading the dumps again")
        self.open(self.owner.request)

    def leave_transient(self) -> bool:
        """Leave the filter, the bar or the panel; returns whether there was anything to leave."""
        filter_bar, focused = self.query_one(FilterBar), self.focused
        if filter_bar.has_class("-shown") and (filter_bar.text or filter_bar.query("*:focus")):
            filter_bar.clear()
            self.pane.filter(None)  # with the same repaint that hides the bar
        elif focused is not None and any(node.id == "side" for node in focused.ancestors):
            self._hide_rules()
        elif focused is not None and focused is not self.table:
            pass
        elif self.table.suspects:
            self.bar.action_reset()
        elif self.owner.is_streaming:
            self.action_cancel_job()
        else:
            return False
        self.table.focus()
        return True

    # --- saving the view -------------------------------------------------------------------------

    @on(LayerTable.Highlighted)
    def _follow_cursor(self, message: LayerTable.Highlighted) -> None:
        self.side.select(self.pane.pair)
        if message.position is not None:
            self.view_state.keep_cursor(message.position)

    @on(LayerTable.Ordered)
    def _keep_order(self, message: LayerTable.Ordered) -> None:
        how: Order = message.order
        self.view_state.keep(sort=how.by, descending=how.descending, faults=how.faults, inputs=how.inputs)

    @on(LayerTable.Marked)
    def _keep_marks(self, message: LayerTable.Marked) -> None:
        self.view_state.keep(marks=tuple(sorted(message.marks)))

    @on(TablePane.ColumnsChosen)
    def _keep_columns(self, message: TablePane.ColumnsChosen) -> None:
        self.view_state.keep(columns=message.columns)

    def action_note(self) -> None:
        """Write a note on the layer."""
        self.view_state.ask_note()


def _wrong_threshold(text: str) -> str | None:
    """What is wrong with a typed tolerance; None if nothing is, as with an empty text."""
    try:
        check_limit("rel_l2", float(text) if text.strip() else None)
    except (ValueError, AlignError):
        return f"{text!r:.40} is not a tolerance; give 0 or a positive number, such as 1e-3"
    return None


def _load_the_rest() -> None:
    """Load the screens and panels that are not shown yet, so that no key waits for them."""
    with heap_frozen():
        import tensordiff.tui.key_help
        import tensordiff.tui.layer.screen
        import tensordiff.tui.rules.panel  # noqa: F401
