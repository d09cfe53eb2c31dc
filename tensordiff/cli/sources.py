"""Sources where a command takes a dump: they are run first, into a folder of their own, and it is said where.

Opening a session for a command, and saying on stderr what a person should know of a session file.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tensordiff.cli.streams import say
from tensordiff.errors import printable
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.session.sources import settings_for, source_in
from tensordiff.session.state import identity_of, read_state, what_changed

if TYPE_CHECKING:
    from tensordiff.capture.settings import Settings
    from tensordiff.session.request import Request


def captured(request: Request) -> Request:
    """The same request about dumps alone."""
    ours, theirs = source_in(request.reference), source_in(request.candidate)
    if ours is not None:
        settings = settings_for(ours, theirs, request.settings)
        request = replace(request, reference=dump_of(request.reference, settings, "reference"))
    if theirs is not None:
        settings = settings_for(theirs, ours, request.settings, request.reference)
        request = replace(request, candidate=dump_of(request.candidate, settings, "candidate"))
    return request


def dump_of(path: Path, settings: Settings | None = None, label: str = "") -> Path:
    """A dump: the one that lies there, or one that the source there has just given."""
    source = source_in(path)
    if source is None:
        return path
    from tensordiff.capture.job import Job
    from tensordiff.capture.runner import Run
    from tensordiff.capture.settings import Settings
    from tensordiff.cli.commands.capture import follow

    folder = Path(tempfile.mkdtemp(prefix="tensordiff-")) / (label or source.kind)
    done = follow(Run(Job(source.absolute(), settings or Settings(), str(folder))), label)
    say(f"captured {printable(source)}: {done.entries:,} tensors, in {printable(folder)}")
    return folder


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
