"""Between a comparison and its session file: what a person did, restored when they come back.

Everything in a session file is by name (see ``session.state``). A file is written only once there is something to
keep.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from tensordiff.session.request import Request
from tensordiff.session.state import (
    DumpIdentity,
    SessionPaths,
    SessionState,
    identity_of,
    restore_state,
    session_paths,
    what_changed,
    write_state,
)


@dataclass
class SessionKeeper:
    """The session file of one comparison."""

    paths: SessionPaths | None = None
    """Where the file may stand; None where nothing is to be kept on disk."""
    state: SessionState = field(default_factory=SessionState)
    sentences: tuple[str, ...] = ()
    """What a person should be told about the file."""
    is_dirty: bool = False

    @classmethod
    def restored(cls, request: Request) -> SessionKeeper:
        """Read what was kept for two dumps. Looks at files, so not in the event loop."""
        paths = session_paths(request.reference, request.candidate, request.session)
        restored = restore_state(paths)
        now = identities(request)
        changed = what_changed(restored.state, *now)
        return cls(paths, replace(restored.state, dumps=now), (*restored.sentences, *changed))

    def note(self, **changes: object) -> None:
        """Change the state; ``write`` puts it on disk."""
        changed = replace(self.state, **changes)  # type: ignore[arg-type]
        self.is_dirty = self.is_dirty or changed != self.state
        self.state = changed

    def write(self) -> Path | None:
        """Write the file if there is anything new; raises ``WriteError``."""
        if self.paths is None or not self.is_dirty:
            return None
        self.is_dirty = False
        return write_state(self.paths, self.state)


def identities(request: Request) -> tuple[DumpIdentity, DumpIdentity]:
    """What lies on disk now: the reference and the candidate."""
    return identity_of(request.reference), identity_of(request.candidate)
