"""Lists drawn line by line: only the items on the screen are formatted, however many there are.

``LineView`` is any such widget; ``LineList`` has items, one a line, and a cursor. A subclass formats an item
(``spans``), and its parent handles requested actions (``Asked``). Text is never read as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

_WHEEL = 3


class LineView(ScrollView, can_focus=True):
    """Lines, drawn by ``render_line``."""

    _plain: Style | None = None

    def notify_style_update(self) -> None:
        """Drop the cached style."""
        super().notify_style_update()
        self._plain = None

    @property
    def plain_style(self) -> Style:
        """The style of a plain line, cached because Textual computes ``rich_style`` on every access."""
        if self._plain is None:
            self._plain = self.rich_style
        return self._plain

    def _scroll(self, event: events.MouseEvent, by: int) -> None:
        """Scroll without moving the cursor."""
        self.scroll_to(y=self.scroll_y + by, animate=False)
        event.stop()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll towards the last line."""
        self._scroll(event, _WHEEL)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll towards the first line."""
        self._scroll(event, -_WHEEL)


T = TypeVar("T")
Span = tuple[str, str]
"""Text, and the class of its style; empty for plain text."""


class LineList(LineView, Generic[T]):
    """Items, one a line, with a cursor."""

    nothing: ClassVar[str] = ""
    """What is shown if there are no items."""
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "line-list--cursor", "line-list--dim", "line-list--good", "line-list--bad", "line-list--mark",
    }  # fmt: skip
    DEFAULT_CSS = """
    LineList {
        background: $surface; color: $foreground; height: 1fr;
        & > .line-list--cursor { background: $panel; }
        &:focus > .line-list--cursor {
            background: $block-cursor-background; color: $block-cursor-foreground; text-style: bold;
        }
        & > .line-list--dim { color: $text-muted; }
        & > .line-list--good { color: $text-success; }
        & > .line-list--bad { color: $text-error; }
        & > .line-list--mark { color: $accent; text-style: bold; }
    }
    """

    @dataclass
    class Highlighted(Message):
        """The cursor moved, or another item is under it."""

        list: LineList[object]

        @property
        def control(self) -> LineList[object]:
            """The list, for selectors."""
            return self.list

    @dataclass
    class Asked(Message):
        """An action is requested, usually on the line under the cursor."""

        list: LineList[object]
        what: str
        by: int = 0

        @property
        def control(self) -> LineList[object]:
            """The list, for selectors."""
            return self.list

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.items: Sequence[T] = ()
        self.cursor = 0

    # --- what is shown ---------------------------------------------------------------------------

    def spans(self, item: T, width: int) -> Iterable[Span]:
        """The text of an item, in ``width`` cells."""
        raise NotImplementedError

    def show_items(self, items: Sequence[T]) -> None:
        """Show other items; the cursor stays in place, or as near as possible."""
        self.items = items
        self.virtual_size = Size(0, len(items))
        self.move(self.cursor)

    @property
    def current(self) -> T | None:
        """The item under the cursor."""
        return self.items[self.cursor] if 0 <= self.cursor < len(self.items) else None

    def move(self, to: int) -> None:
        """Move the cursor to a line, or the nearest one."""
        self.cursor = max(0, min(to, len(self.items) - 1))
        self._show_cursor()
        self.refresh()
        self.refresh_bindings()
        self.post_message(self.Highlighted(self))  # type: ignore[arg-type]

    def _show_cursor(self) -> None:
        height, top = max(1, self.size.height), round(self.scroll_y)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False)

    def on_resize(self) -> None:
        """Keep the cursor visible."""
        self.call_after_refresh(self._show_cursor)

    # --- drawing ---------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """Draw an item."""
        at, width = y + self.scroll_offset.y, self.scrollable_content_region.width
        if at >= len(self.items):
            return self._nothing(width) if at == 0 else Strip.blank(width, self.plain_style)
        base = self.plain_style
        over = self.get_component_rich_style("line-list--cursor", partial=True) if at == self.cursor else Style()
        segments = [Segment(text, base + self._style(name) + over) for text, name in self.spans(self.items[at], width)]
        return Strip(segments).adjust_cell_length(width, base + over)

    def _nothing(self, width: int) -> Strip:
        return Strip([Segment(f"  {self.nothing}", self.plain_style + self._style("dim"))]).adjust_cell_length(
            width, self.plain_style
        )

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"line-list--{name}", partial=True) if name else Style()

    # --- what can be done ------------------------------------------------------------------------

    def ask(self, what: str, by: int = 0) -> None:
        """Request an action."""
        self.post_message(self.Asked(self, what, by))  # type: ignore[arg-type]

    def action_cursor_down(self) -> None:
        """Go to the next line."""
        self.move(self.cursor + 1)

    def action_cursor_up(self) -> None:
        """Go to the previous line."""
        self.move(self.cursor - 1)

    def action_page(self, by: int) -> None:
        """Go a page up or down."""
        self.move(self.cursor + by * max(1, self.size.height - 1))

    def action_end(self, which: int) -> None:
        """Go to the first line or the last."""
        self.move(len(self.items) - 1 if which > 0 else 0)

    def opened(self) -> None:
        """What a double click does."""

    def on_click(self, event: events.Click) -> None:
        """Select a line; a double click opens it."""
        at = event.y + self.scroll_offset.y
        if at < len(self.items):
            self.move(at)
            if event.chain == 2:
                self.opened()
