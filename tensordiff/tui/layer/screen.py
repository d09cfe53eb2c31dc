"""The layer screen: facts at the top, seven views below, and keys to go to the layers around.

The screen knows which row and which view is shown, and passes keys to that view, which computes in a thread. Reruns,
operations and reports are requested from the comparison (``Asked``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import ContentSwitcher, Tab, Tabs
from textual.worker import get_current_worker

from tensordiff.compare.row import Row
from tensordiff.errors import printable
from tensordiff.report.labels import label
from tensordiff.search.outcome import Outcome, culprits
from tensordiff.session.session import Session
from tensordiff.tui.key_line import KeyLine
from tensordiff.tui.keys import bindings
from tensordiff.tui.layer.facts import FactsPane
from tensordiff.tui.layer.heatmap import HeatmapPane
from tensordiff.tui.layer.histogram import HistogramPane
from tensordiff.tui.layer.neighbours import NeighboursPane
from tensordiff.tui.layer.pane import Pane
from tensordiff.tui.layer.profile import ProfilePane
from tensordiff.tui.layer.statistics import StatisticsPane
from tensordiff.tui.layer.subject import Subject
from tensordiff.tui.layer.typing import LayerTyping
from tensordiff.tui.layer.values import ValuesPane
from tensordiff.tui.layer.worst import WorstPane
from tensordiff.tui.prompt import Prompt
from tensordiff.tui.threads import in_thread

RowAction = Literal["inject", "ops", "export"]
VIEWS: dict[str, type[Pane[Any]]] = {
    "profile": ProfilePane, "histogram": HistogramPane, "heatmap": HeatmapPane, "values": ValuesPane,
    "worst": WorstPane, "statistics": StatisticsPane, "neighbours": NeighboursPane,
}  # fmt: skip
_PANE_ACTIONS = {"axis", "side", "log", "shades", "zoom", "heads", "move", "page", "slice", "go", "open"}


class LayerScreen(LayerTyping):
    """Shows one row; on leaving, returns the position of the last row shown."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("layer")
    BINDING_GROUP_TITLE = "Layer"
    HORIZONTAL_BREAKPOINTS = []  # noqa: RUF012 - as Textual declares it
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]  # noqa: RUF012
    DEFAULT_CSS = """
    LayerScreen {
        & Tabs { height: 2; margin-top: 1; padding: 0 1; }
        & Tab { padding: 0 1 0 0; }
        & ContentSwitcher { height: 1fr; }
    }
    LayerScreen.-short Tabs { margin-top: 0; }
    """

    @dataclass
    class Asked(Message):
        """An action on a row is requested that another screen does."""

        what: RowAction
        row: Row

    def __init__(
        self, session: Session, rows: Sequence[Row], at: int, outcome: Outcome | None = None,
        faults: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.session, self.rows, self.at = session, rows, max(0, min(at, len(rows) - 1))
        self.outcome = outcome
        self.faults = faults or ()
        """Positions of the culprits."""
        self._knows_faults = faults is not None
        self._subject = Subject(session, rows, self.at)

    def compose(self) -> ComposeResult:
        """Facts, tabs, views."""
        yield FactsPane(id="facts")
        tabs = Tabs(*(Tab(f"{k} {name}", id=f"tab-{name}") for k, name in enumerate(VIEWS, 1)))
        tabs.can_focus = False  # a click on a tab is meant for the view
        yield tabs
        with ContentSwitcher(initial="profile"):
            yield ProfilePane(id="profile")  # the others are made when they are shown: seven take long
        yield Prompt()
        yield KeyLine()

    def on_mount(self) -> None:
        """Show the row, and find the culprits if they were not given."""
        if not self._knows_faults:
            in_thread(self, "faults", self._find_faults)
        self._look()
        self.pane.focus()

    def on_resize(self) -> None:
        """A short terminal has no line to spare."""
        self.facts.repaint()

    # --- which row -------------------------------------------------------------------------------

    @property
    def pane(self) -> Pane[Any]:
        """The view that is shown."""
        return self.query_one(f"#{self.query_one(ContentSwitcher).current}", Pane)

    def view(self, name: str) -> Pane[Any]:
        """A view by name; made where it was never shown."""
        switcher = self.query_one(ContentSwitcher)
        if pane := switcher.query(f"#{name}"):
            return pane.first(Pane)
        made = VIEWS[name](id=name)
        if isinstance(made, ValuesPane):
            made.takes_key = self.takes_key
        made.display = False
        switcher.mount(made)
        made.look_at(self._subject)
        return made

    @property
    def facts(self) -> FactsPane:
        """The head of the screen."""
        return self.query_one(FactsPane)

    @property
    def row(self) -> Row:
        """The row that is shown."""
        return self.rows[self.at]

    def walk_to(self, at: int) -> None:
        """Show another row, in the same view."""
        if 0 <= at < len(self.rows) and at != self.at:
            self.at = at
            self._look()

    def _look(self) -> None:
        self._subject = Subject(self.session, self.rows, self.at)
        for pane in self.query(Pane):
            pane.look_at(self._subject)
        self._tell_role()
        self.refresh_bindings()

    def _find_faults(self) -> None:
        worker = get_current_worker()
        wrong = {id(row) for row in culprits(self.rows)}
        found = tuple(k for k, row in enumerate(self.rows) if id(row) in wrong)
        if not worker.is_cancelled:
            self.app.call_from_thread(self._take_faults, found)

    def _take_faults(self, found: tuple[int, ...]) -> None:
        self.faults = found
        self._tell_role()

    def _tell_role(self) -> None:
        if self.at in self.faults:
            first = self.outcome is not None and self.outcome.culprit is self.row
            self.facts.show_role("the first culprit" if first else "a culprit")

    @on(NeighboursPane.Walked)
    def walk_to_neighbour(self, message: NeighboursPane.Walked) -> None:
        """Go to a chosen neighbour."""
        self.walk_to(message.at)

    @on(Pane.Pointed)
    def see_element(self, message: Pane.Pointed) -> None:
        """Show an element among its neighbours."""
        self.view("values")
        self.query_one(ValuesPane).go(message.index)
        self.action_show("values")

    @on(Tabs.TabActivated)
    def show_tab(self, message: Tabs.TabActivated) -> None:
        """Show the view of a chosen tab, unless another one was chosen since."""
        if message.tab.id == message.tabs.active and message.tab.id:
            self.show_view(message.tab.id.removeprefix("tab-"))

    def show_view(self, name: str) -> None:
        """Show a view at once: the next key may be waiting already."""
        switcher = self.query_one(ContentSwitcher)
        if switcher.current != name:
            self.view(name)
            switcher.current = name
            self.query_one(Tabs).active = f"tab-{name}"
            self.refresh_bindings()
        self.pane.ask()
        if not self.query_one(Prompt).display:
            self.set_focus(self.pane)

    # --- what can be done ------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable actions that do not work in the current view."""
        if not self.is_mounted:
            return True
        if action in _PANE_ACTIONS:
            return action in self.pane.can
        if action == "walk":
            return True if 0 <= self.at + int(str(parameters[0])) < len(self.rows) else None
        return True

    def action_walk(self, by: int) -> None:
        """Go to the next row, or the previous one."""
        self.walk_to(self.at + by)

    def action_fault(self, by: int) -> None:
        """Go to the next culprit or, if there is none, the next row that diverges."""
        found = self.faults or tuple(k for k, row in enumerate(self.rows) if row.verdict.name == "diverges")
        ahead = [k for k in found if (k - self.at) * by > 0]
        if ahead:
            self.walk_to(ahead[0] if by > 0 else ahead[-1])
        else:
            self.notify("no culprit further on" if by > 0 else "no culprit before this", markup=False)

    def action_parent(self) -> None:
        """Go to the module around this one, which a thread finds."""
        in_thread(self, "parent", self._find_parent)

    def _find_parent(self) -> None:
        found = Subject(self.session, self.rows, self.at).around.parent
        self.app.call_from_thread(self._go_to_parent, found)

    def _go_to_parent(self, found: int | None) -> None:
        if found is None:
            self.notify("no module around this layer was compared", markup=False)
        else:
            self.walk_to(found)

    def action_tab(self, by: int) -> None:
        """Show the next view, or the previous one."""
        names = list(VIEWS)
        self.action_show(names[(names.index(str(self.pane.id)) + by) % len(names)])

    def action_show(self, name: str) -> None:
        """Show a view by name."""
        self.show_view(name)

    def action_axis(self) -> None:
        """Show the next axis."""
        if isinstance(self.pane, ProfilePane | HeatmapPane | ValuesPane):
            self.pane.next_axis()

    def action_side(self) -> None:
        """Show the next of the four quantities."""
        self.query_one(ValuesPane).next_side()

    def action_log(self) -> None:
        """Switch between a log and a linear scale."""
        if isinstance(self.pane, ProfilePane | HistogramPane):
            self.pane.toggle_log()

    def action_shades(self) -> None:
        """Switch between shades and colours."""
        self.query_one(HeatmapPane).toggle_shades()

    def action_zoom(self, by: int) -> None:
        """Zoom into the heatmap, out of it, or show all of it."""
        self.query_one(HeatmapPane).zoom(by)

    def action_move(self, x: int, y: int) -> None:
        """Move the view's cursor."""
        self.pane.move(x, y)

    def action_page(self, x: int, y: int) -> None:
        """Move the view's cursor by screenfuls."""
        self.pane.page(x, y)

    def action_slice(self, by: int) -> None:
        """Show another slice of the values."""
        self.query_one(ValuesPane).next_slice(by)

    def action_open(self) -> None:
        """Open what the view's cursor points to."""
        if isinstance(self.pane, HeatmapPane | WorstPane | NeighboursPane):
            self.pane.open()

    def action_ask(self, what: str) -> None:
        """Request an action from the comparison."""
        for wish in get_args(RowAction):
            if what == wish:
                self.post_message(self.Asked(wish, self.row))

    def action_copy(self, what: str) -> None:
        """Copy the name, or the view as text."""
        text = self.row.pair.name if what == "name" else f"{self.facts.text()}\n\n{self.pane.text()}\n"
        self.app.copy_to_clipboard(text)
        self.notify(f"copied {printable(label(self.row.pair)) if what == 'name' else 'what is shown'}", markup=False)

    def action_leave(self) -> None:
        """Go back, returning the last row shown."""
        self.dismiss(self.at)
