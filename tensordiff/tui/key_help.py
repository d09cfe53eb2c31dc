"""The keys that can be pressed now, as a page over the screen that scrolls by key.

Textual's own help panel is at the side, where a terminal of 80 columns leaves a dozen for each sentence. It takes no
focus, so that only a mouse reaches its lower half, and it lists keys of Textual's among those of our table.
"""

from __future__ import annotations

from itertools import groupby
from typing import ClassVar, NamedTuple

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Label, Static

from tensordiff.tui.keys import BY_ID, KEYS, bindings


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


class KeyHelpScreen(ModalScreen[None]):
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
                yield Static(self._table())
            yield Label("↑ ↓ scroll   ? or esc closes   ctrl+p finds any command by typing", classes="hint")

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", no_wrap=True)
        table.add_column()
        for k, (part, helps) in enumerate(groupby(self.helps, key=lambda one: one.part)):
            if k:
                table.add_row()
            table.add_row("", Text(part, style="bold underline"))
            for one in helps:
                table.add_row(Text(one.keys, style="bold"), Text(one.sentence))
        return table

    def action_close(self) -> None:
        """Go back to the screen."""
        self.dismiss()

    def action_scroll(self, how: str) -> None:
        """Scroll by a line, a page, or to an end."""
        getattr(self.query_one(VerticalScroll), f"scroll_{how}")(animate=False)
