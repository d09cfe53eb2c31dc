"""The keys that can be pressed now, as a page over the screen that scrolls by key.

Textual's own help panel is at the side, where a terminal of 80 columns leaves a dozen for each sentence. It takes no
focus, so that only a mouse reaches its lower half, and it lists keys of Textual's among those of our table.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.geometry import Size
from textual.screen import ModalScreen, Screen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Label

from tensordiff.tui.keys import BY_ID, KEYS, bindings
from tensordiff.tui.sized_screen import SizedScreen
from tensordiff.tui.text import right, wrapped

_GAP = 2
_BOLD, _TITLE = Style(bold=True), Style(bold=True, underline=True)


class KeyHelp(NamedTuple):
    """One thing that can be done on a screen."""

    part: str
    """The part of the screen that handles it."""
    keys: str
    sentence: str


def key_help(screen: Screen[object]) -> list[KeyHelp]:
    """What can be done on a screen now: the focused part first, the app's own keys last."""
    parts: dict[str, str] = {}
    displays: dict[str, list[str]] = {}
    for one in screen.active_bindings.values():
        if (name := one.binding.id) in BY_ID and name is not None and BY_ID[name].where != "app":
            parts.setdefault(name, one.node.BINDING_GROUP_TITLE or "Here")
            displays.setdefault(name, []).append(screen.app.get_key_display(one.binding))
    helps = [KeyHelp(part, " ".join(dict.fromkeys(displays[name])), BY_ID[name].help) for name, part in parts.items()]
    return helps + _everywhere(screen)


def _everywhere(screen: Screen[object]) -> list[KeyHelp]:
    """All keys of the app, including those that Textual binds before they reach it."""
    changed = screen.app.settings.keys if hasattr(screen.app, "settings") else {}
    helps = []
    for key in KEYS:
        if key.where == "app":
            each = changed.get(key.id, key.keys).split(",")
            shown = [screen.app.get_key_display(Binding(one, key.action)) for one in each]
            helps.append(KeyHelp("Everywhere", " ".join(dict.fromkeys(shown)), key.help))
    return helps


class _KeyTable(Widget):
    """Keys on the left, sentences beside them. A Rich table takes as long as the rest of the page together."""

    DEFAULT_CSS = "_KeyTable { height: auto; }"

    def __init__(self, helps: list[KeyHelp]) -> None:
        super().__init__()
        self.helps = helps
        self._width = max((cell_len(one.keys) for one in helps), default=0)
        self._laid_out: tuple[int, list[tuple[str, str, Style]]] = (0, [])

    def _lines(self, width: int) -> list[tuple[str, str, Style]]:
        """The keys, the sentence and its style, line by line."""
        if self._laid_out[0] != width:
            self._laid_out = width, list(self._lay_out(max(1, width - self._width - _GAP)))
        return self._laid_out[1]

    def _lay_out(self, room: int) -> Iterator[tuple[str, str, Style]]:
        for k, (part, helps) in enumerate(groupby(self.helps, key=lambda one: one.part)):
            if k:
                yield "", "", Style()
            yield "", part, _TITLE
            for one in helps:
                for at, text in enumerate(wrapped(one.sentence, room)):
                    yield "" if at else one.keys, text, Style()

    def get_content_height(self, _container: Size, _viewport: Size, width: int) -> int:
        """As many lines as there are."""
        return len(self._lines(width))

    def render_line(self, y: int) -> Strip:
        """One line."""
        width, base = self.size.width, self.rich_style
        keys, text, style = self._lines(width)[y]
        left = Segment(right(keys, self._width), base + _BOLD)
        return Strip([left, Segment(" " * _GAP, base), Segment(text, base + style)]).adjust_cell_length(width, base)


class KeyHelpScreen(ModalScreen[None], SizedScreen[None]):
    """A page of keys; the key that opened it also closes it."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("help")
    DEFAULT_CSS = """
    KeyHelpScreen {
        align: center middle;
        & > Vertical {
            width: 84; max-width: 100%; height: 100%; padding: 0 1; background: $surface; border: round $primary;
        }
        & VerticalScroll { height: 1fr; scrollbar-gutter: stable; }
        & .hint { color: $text-muted; }
    }
    """

    def __init__(self, helps: list[KeyHelp]) -> None:
        super().__init__()
        self.helps = helps

    def compose(self) -> ComposeResult:
        """The keys, and how to continue from here."""
        with Vertical():
            with VerticalScroll():
                yield _KeyTable(self.helps)
            yield Label("↑ ↓ scroll   ? or esc closes   ctrl+p finds any command by typing", classes="hint")

    def action_close(self) -> None:
        """Go back to the screen."""
        self.dismiss()

    def action_scroll(self, how: str) -> None:
        """Scroll by a line, a page, or to an end."""
        getattr(self.query_one(VerticalScroll), f"scroll_{how}")(animate=False)
