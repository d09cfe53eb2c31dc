"""The session file of a comparison: what the user did, restored when they come back.

Everything in a session file is identified by name (see ``session.storage.state``). A file is written only once there is
something to save. A file that came with the dumps is available as ``offered``, and has no effect until the user accepts
it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from tensordiff.errors import printable
from tensordiff.session.request import Request
from tensordiff.session.storage.session_offer import SessionOffer, find_session_offer
from tensordiff.session.storage.state import (
    DumpIdentity,
    SessionState,
    identity_of,
    restore_state,
    session_path,
    what_changed,
    write_state,
)
from tensordiff.tui.permissions import ALL_PERMISSIONS, NO_WRITES, Permissions


@dataclass
class SessionKeeper:
    """The session file of one comparison."""

    path: Path | None = None
    """Where it is written; None if nothing is saved on disk."""
    state: SessionState = field(default_factory=SessionState)
    sentences: tuple[str, ...] = ()
    """What the user should be told about the file."""
    offered: SessionOffer | None = None
    """A session that came with the dumps, and was neither accepted nor declined yet."""
    is_dirty: bool = False

    @classmethod
    def restored(cls, request: Request, permissions: Permissions = ALL_PERMISSIONS) -> SessionKeeper:
        """Read what was saved for two dumps. It reads files, so it must not run in the event loop."""
        is_named = request.session is not None
        may_write = permissions.writes or not is_named
        path = request.session or session_path(request.reference, request.candidate)
        kept = restore_state(path, may_rename=may_write)
        offered = None if is_named else find_session_offer(request.reference, request.candidate)
        now = identities(request)
        sentences = *kept.sentences, *what_changed(kept.state, *now), *([offered] if isinstance(offered, str) else [])
        if not may_write:
            sentences = *sentences, f"{printable(path)}: your work is not saved there; {NO_WRITES}"
        return cls(
            path=path if may_write else None,
            state=replace(kept.state, dumps=now),
            sentences=sentences,
            offered=offered if isinstance(offered, SessionOffer) else None,
        )

    def note(self, **changes: object) -> None:
        """Change the state; ``write`` saves it."""
        changed = replace(self.state, **changes)  # type: ignore[arg-type]
        self.is_dirty = self.is_dirty or changed != self.state
        self.state = changed

    def take_offered(self) -> None:
        """Accept the offered session in place of everything that was saved."""
        offered, self.offered = self.offered, None
        if offered is not None:
            self.state, self.is_dirty = replace(offered.state, dumps=self.state.dumps), True

    def write(self) -> Path | None:
        """Write the file if anything changed; raises ``WriteError``."""
        if self.path is None or not self.is_dirty:
            return None
        self.is_dirty = False
        write_state(self.path, self.state)
        return self.path


def identities(request: Request) -> tuple[DumpIdentity, DumpIdentity]:
    """The current files on disk: the reference and the candidate."""
    return identity_of(request.reference), identity_of(request.candidate)
