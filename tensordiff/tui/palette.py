"""The command palette, from the same table as the keys, so that nothing can be done only by key.

A command is named after the part of the screen it belongs to and what it does. Only commands that work on the current
screen are offered.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any

from textual.binding import Binding
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.dom import DOMNode
from textual.widget import Widget

from tensordiff.tui.keys import BY_ID, Key

_HIDDEN = ("app.palette", "app.escape", "app.interrupt")
_NOUNS = {"app": "app", "diff": "comparison"}


def name_of(key: Key) -> str:
    """The name of a command in the list."""
    return f"{_NOUNS.get(key.where, key.where)}: {key.help[0].lower()}{key.help[1:]}"


class Commands(Provider):
    """All keys of the visible parts of the screen."""

    def _offered(self) -> Iterator[tuple[Key, DOMNode]]:
        seen: set[str] = set(_HIDDEN)
        shown = (node for node in self.screen.query("*") if isinstance(node, Widget) and node.display)
        for node in (*shown, self.screen, self.app):
            for binding in type(node).BINDINGS:
                if isinstance(binding, Binding) and binding.id in BY_ID and binding.id not in seen:
                    seen.add(binding.id)
                    yield BY_ID[binding.id], node

    def _command(self, key: Key, node: DOMNode) -> partial[Coroutine[Any, Any, bool]]:
        return partial(self.app.run_action, key.action, node)

    async def discover(self) -> Hits:
        """All commands, before anything is typed."""
        for key, node in self._offered():
            yield DiscoveryHit(Content(name_of(key)), self._command(key, node), name_of(key), key_help(key))

    async def search(self, query: str) -> Hits:
        """The commands that match what is typed."""
        matcher = self.matcher(query)
        for key, node in self._offered():
            name = name_of(key)
            if (score := matcher.match(name)) > 0:
                yield Hit(score, matcher.highlight(name), self._command(key, node), name, key_help(key))


def key_help(key: Key) -> str:
    """The keys of a command."""
    return f"key: {key.keys.replace(',', ', ')}"
