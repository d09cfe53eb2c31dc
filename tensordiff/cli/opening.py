"""Opening a session for a command, and saying on stderr what a person should know of a session file."""

from __future__ import annotations

from tensordiff.cli.sources import captured
from tensordiff.cli.streams import say
from tensordiff.session import Request, Session
from tensordiff.state import identity_of, read_state, what_changed


def opened(request: Request) -> Session:
    """Open what is to be compared, with what a session file says where one is given; sources are run first."""
    request = captured(request)
    if request.session is None:
        return Session.open(request)
    kept = read_state(request.session)
    session = Session.open(request, kept)
    for sentence in what_changed(kept, identity_of(request.reference), identity_of(request.candidate)):
        say(sentence)
    return session
