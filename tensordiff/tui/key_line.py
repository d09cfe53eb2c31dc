"""The keys at the foot of the screen, drawn as one line.

Textual's own ``Footer`` has a widget for each key, and replaces all of them whenever one is greyed, which takes as long
as painting the table. In a browser's page that lost the focus it also shows outdated keys. This widget looks the same.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import ActiveBinding
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from tensordiff.tui.keys import SHOWN_WHILE_ENABLED


class _KeyCell(NamedTuple):
    """A key, and the cells it takes."""

    bound: ActiveBinding
    begin: int
    end: int
    display: str
    label: str


class KeyLine(Widget):
    """What can be done now; a click does it."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {"key-line--key", "key-line--label", "key-line--hover"}
    DEFAULT_CSS = """
    KeyLine {
        dock: bottom; height: 1; color: $footer-foreground; background: $footer-background;
        & > .key-line--key { color: $footer-key-foreground; background: $footer-key-background; text-style: bold; }
        & > .key-line--label { color: $footer-description-foreground; background: $footer-description-background; }
        & > .key-line--hover { background: $block-hover-background; }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self.bound: dict[str, ActiveBinding] = {}
        """By action; the first of several keys with the same action."""
        self._left = 0
        """How many keys are scrolled out on the left."""
        self._under: str | None = None
        """The action under the mouse."""

    def on_mount(self) -> None:
        """Update the keys whenever the bindings change."""
        self.screen.bindings_updated_signal.subscribe(self, self._follow)

    def _follow(self, _screen: Screen[object]) -> None:
        self.call_after_refresh(self._look)

    def _look(self) -> None:
        if not self.is_attached:
            return
        bound: dict[str, ActiveBinding] = {}
        for one in self.screen.active_bindings.values():
            if one.binding.show and (one.enabled or one.binding.action not in SHOWN_WHILE_ENABLED):
                bound.setdefault(one.binding.action, one)
        # Without the terminal's focus no part of the screen has it: keep the keys of the part that had it.
        bound = bound if self.app.app_focus else self.bound | bound
        if bound != self.bound:
            self.bound = bound
            self.refresh()

    def shown(self) -> list[_KeyCell]:
        """The keys from left to right. If not all fit, help, commands and back stay, without their labels."""
        everything = list(self.bound.values())
        found = self._laid_out(everything)
        if not found or found[-1].end <= self.size.width:
            return found
        own = [one for one in everything if one.node is self.app]
        room = self.size.width - sum(len(self.app.get_key_display(one.binding)) + 2 for one in own)
        others = [one for one in everything if one.node is not self.app]
        fitting = [one for one in self._laid_out(others[self._left :]) if one.end <= room]
        return fitting + self._laid_out(own, room, with_labels=False)

    def _laid_out(self, keys: list[ActiveBinding], at: int = 0, *, with_labels: bool = True) -> list[_KeyCell]:
        found = []
        for one in keys:
            display, label = self.app.get_key_display(one.binding), one.binding.description if with_labels else ""
            end = at + len(display) + 2 + (len(label) + 1 if label else 0)
            found.append(_KeyCell(one, at, end, display, label))
            at = end
        return found

    def render_line(self, y: int) -> Strip:  # noqa: ARG002 - there is only one line
        """Draw the keys that fit."""
        key, label = (self.get_component_rich_style(f"key-line--{name}") for name in ("key", "label"))
        segments: list[Segment] = []
        at = 0
        for one in self.shown():
            over = self._over(one)
            segments += [Segment(" " * (one.begin - at), label)] if one.begin > at else []
            segments += [Segment(f" {one.display} ", key + over)]
            segments += [Segment(f"{one.label} ", label + over)] if one.label else []
            at = one.end
        return Strip(segments).adjust_cell_length(self.size.width, self.rich_style.background_style)

    def _over(self, one: _KeyCell) -> Style:
        dim = Style() if one.bound.enabled else Style(dim=True)
        if one.bound.binding.action != self._under:
            return dim
        return dim + self.get_component_rich_style("key-line--hover", partial=True)

    # --- the mouse -------------------------------------------------------------------------------

    def _at(self, x: int) -> _KeyCell | None:
        return next((one for one in self.shown() if one.begin <= x < one.end), None)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Act as if the key were pressed."""
        if (one := self._at(event.x)) is not None:
            self.app.simulate_key(one.bound.binding.key) if one.bound.enabled else self.app.bell()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Show what the key does, as a tooltip."""
        self._point(self._at(event.x))

    def on_leave(self) -> None:
        """Remove the highlight."""
        self._point(None)

    def _point(self, one: _KeyCell | None) -> None:
        action = one.bound.binding.action if one is not None else None
        if action != self._under:
            self._under = action
            self.tooltip = one.bound.tooltip or one.bound.binding.description if one is not None else None
            self.refresh()

    def _scroll(self, event: events.MouseEvent, by: int) -> None:
        """Scroll to keys that do not fit."""
        event.stop()
        self._left = max(0, min(self._left + by, sum(one.node is not self.app for one in self.bound.values()) - 1))
        self.refresh()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll to the keys on the right."""
        self._scroll(event, 1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll back to the left."""
        self._scroll(event, -1)
