"""What a command compares: its sources are run, then its session is opened; stderr says what a person should know."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tensordiff.cli.streams import say
from tensordiff.errors import printable
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.session.sources import Sources, source_in, temporary_folder
from tensordiff.session.state import identity_of, read_state, what_changed

if TYPE_CHECKING:
    from tensordiff.capture.job import Job


def dump_of(path: Path) -> Path:
    """The dump at a path; where that is a source, one of a run with the usual settings."""
    source = source_in(path)
    if source is None:
        return path
    from tensordiff.capture.job import Job
    from tensordiff.capture.settings import Settings

    return run_source(Job(source.absolute(), Settings(), str(temporary_folder(source.kind))))


def run_sources(request: Request) -> Request:
    """The same request about dumps alone: those of its sources are made first."""
    sources = Sources.of(request)
    while (side := sources.side) is not None:
        sources = sources.with_dump(run_source(sources.job(), side))
    return sources.request


def run_source(job: Job, label: str = "") -> Path:
    """Run a source, and say where its dump lies."""
    from tensordiff.capture.runner import Run
    from tensordiff.cli.commands.capture import follow

    done = follow(Run(job), label)
    say(f"captured {printable(job.source)}: {done.entries:,} tensors, in {printable(job.output)}")
    return Path(job.output)


def opened(request: Request) -> Session:
    """Open what is to be compared, with what a session file says where one is given; sources are run first."""
    request = run_sources(request)
    if request.session is None:
        return Session.open(request)
    kept = read_state(request.session)
    session = Session.open(request, kept)
    for sentence in what_changed(kept, identity_of(request.reference), identity_of(request.candidate)):
        say(sentence)
    return session
