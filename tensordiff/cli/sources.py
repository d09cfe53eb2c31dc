"""Sources where a command takes a dump: they are run first, into a folder of their own, and it is said where.

The candidate is asked what the reference was asked, unless the user says what both are asked.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tensordiff.cli.streams import say
from tensordiff.errors import printable

if TYPE_CHECKING:
    from tensordiff.capture.settings import Settings
    from tensordiff.capture.source import Source
    from tensordiff.session import Request


def source_in(path: Path) -> Source | None:
    """The source that stands where a dump could; None where it is a dump."""
    from tensordiff.capture.source import parse_source

    return None if os.path.exists(path) else parse_source(str(path))  # noqa: PTH110 - a Path raises on a name too long


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


def settings_for(source: Source, other: Source | None, said: Settings, reference: Path | None = None) -> Settings:
    """How to run a side; a candidate is asked what the reference's dump was asked."""
    if _is_only(source, other):
        return _of_function(said)
    return said if reference is None else _asked_alike(said, source, reference)


def _is_only(source: Source, other: Source | None) -> bool:
    """Whether a function asks its own model, while what the user says is for the other side."""
    return source.kind == "py" and other is not None and other.kind != "py"


def _of_function(said: Settings) -> Settings:
    """What is for a function too."""
    from tensordiff.capture.settings import Settings

    return Settings(seed=said.seed, deterministic=said.deterministic, python=said.python)


def _asked_alike(said: Settings, source: Source, reference: Path) -> Settings:
    """What the reference was asked, where the user did not say."""
    from tensordiff.capture.again import ASKED, same_input
    from tensordiff.capture.settings import Settings
    from tensordiff.dump import open_dump

    usual = Settings()
    if source.kind == "py" or any(getattr(said, name) != getattr(usual, name) for name in ASKED):
        return said
    alike = same_input(open_dump(reference))
    return replace(said, **{name: getattr(alike, name) for name in ASKED})


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
