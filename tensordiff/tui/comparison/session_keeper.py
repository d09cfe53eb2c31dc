"""What a person did, restored when they come back: between the screen and the session file.

Everything in a session file is by name (see ``state``). A file is written only once there is something to
keep, and a failure to write is told once and stops nothing.
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
class Keeper:
    """The session file of one comparison."""

    places: SessionPaths | None
    """None where nothing is to be kept."""
    state: SessionState = field(default_factory=SessionState)
    sentences: tuple[str, ...] = ()
    """What a person should be told about the file."""
    is_dirty: bool = False
    failed: bool = False

    @classmethod
    def of(cls, request: Request, keeps: bool) -> Keeper:
        """Restore what was kept; looks at files, so not in the event loop."""
        if not keeps:
            return cls(None)
        places = session_paths(request.reference, request.candidate, request.session)
        restored = restore_state(places)
        now = identity_of(request.reference), identity_of(request.candidate)
        changed = what_changed(restored.state, *now)
        return cls(places, replace(restored.state, dumps=now), (*restored.sentences, *changed))

    def note(self, **changes: object) -> None:
        """Something to keep."""
        changed = replace(self.state, **changes)  # type: ignore[arg-type]
        self.is_dirty = self.is_dirty or changed != self.state
        self.state = changed

    def write(self) -> Path | None:
        """Write, if there is anything new; raises ``WriteError``."""
        if self.places is None or not self.is_dirty:
            return None
        self.is_dirty = False
        return write_state(self.places, self.state)


def identities(request: Request) -> tuple[DumpIdentity, DumpIdentity]:
    """What lies on disk now."""
    return identity_of(request.reference), identity_of(request.candidate)
