"""What the user may make this process do: everything on a terminal, little under ``serve``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from textual.message_pump import MessagePump

NO_RERUNS = "running models again is off under serve; start it with --allow-reruns"
NO_WRITES = "writing to a file is off under serve; start it with --allow-writes"


class Permissions(NamedTuple):
    """What is permitted."""

    reruns: bool = True
    """Run a source, which runs its code."""
    writes: bool = True
    """Write files anywhere; without it, files are passed to the browser instead."""

    @property
    def spelled(self) -> str:
        """The permissions as a word, for a command line."""
        return next(word for word, meant in SPELLINGS.items() if meant == self)


ALL_PERMISSIONS = Permissions()
SPELLINGS = {
    "looks": Permissions(reruns=False, writes=False),
    "writes": Permissions(reruns=False),
    "runs": ALL_PERMISSIONS,
}


def permissions_of(node: MessagePump) -> Permissions:
    """The permissions in the app that a node is part of."""
    app: Any = node.app
    permissions: Permissions = app.permissions
    return permissions
