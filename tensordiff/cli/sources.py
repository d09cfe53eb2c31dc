"""Sources where a command takes a dump: they are run first, into a folder of their own, and it is said where."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tensordiff.cli.streams import say
from tensordiff.errors import printable
from tensordiff.sources import settings_for, source_in

if TYPE_CHECKING:
    from tensordiff.capture.settings import Settings
    from tensordiff.session import Request


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
    from tensordiff.cli.capturing import follow

    folder = Path(tempfile.mkdtemp(prefix="tensordiff-")) / (label or source.kind)
    done = follow(Run(Job(source.absolute(), settings or Settings(), str(folder))), label)
    say(f"captured {printable(source)}: {done.entries:,} tensors, in {printable(folder)}")
    return folder
