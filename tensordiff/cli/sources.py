"""Runs sources for a command, and opens the session that it compares; stderr says what the user should know."""

from __future__ import annotations

from pathlib import Path

from tensordiff.capture.events import Done, Event, Failed, Note, Phase, Progress
from tensordiff.capture.job import Job
from tensordiff.capture.runner import Run, dump_at
from tensordiff.capture.settings import Settings
from tensordiff.cli.progress import Bar
from tensordiff.cli.streams import say, say_if_slow
from tensordiff.errors import CaptureError, printable
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.session.source_checks import check_sources
from tensordiff.session.sources import Sources, capture_folder, source_in
from tensordiff.session.storage.state import identity_of, read_state, what_changed
from tensordiff.util.temporary_folders import is_temporary, keep_temporary_folder


def open_dumps(request: Request) -> Session:
    """Open two dumps, as a session file left them if one is given."""
    say_if_slow()
    if request.session is None:
        return Session.open(request)
    state = read_state(request.session)
    session = Session.open(request, state)
    for sentence in what_changed(state, identity_of(request.reference), identity_of(request.candidate)):
        say(sentence)
    return session


def sources_of(request: Request, *, reruns: bool = False) -> Sources:
    """The sources of a request, after all checks that are possible before a run; stderr names options that one does not
    use.
    """
    sources = Sources.of(request)
    check_sources(sources, reruns=reruns)
    say_unused_options(sources)
    return sources


def say_unused_options(sources: Sources) -> None:
    """Say on stderr which options of the command a source does not use."""
    for sentence in sources.unused_options():
        say(sentence)


def run_sources(request: Request, *, reruns: bool = False) -> Request:
    """Replace each source of a request by a dump. ``reruns`` is as in ``refuse_unused_options``."""
    say_if_slow()
    sources = sources_of(request, reruns=reruns)
    while (side := sources.side) is not None:
        sources = sources.with_dump(run_source(sources.job(), side))
    return sources.request


def dump_or_capture(path: Path, keep: Path | None = None) -> Path:
    """The dump at a path; a source is run with default settings."""
    source = source_in(path)
    if source is None:
        return path
    return run_source(Job(source.absolute(), Settings(), str(capture_folder(source.kind, keep))))


def run_source(job: Job, label: str = "") -> Path:
    """Run a source, and say where its dump is, and for how long."""
    done, path = follow(Run(job), label), Path(job.output)
    until = "; deleted when this ends, --keep DIR keeps it" if is_temporary(path) else ""
    say(f"captured {printable(job.source)}: {done.entries:,} tensors, in {printable(path)}{until}")
    return path


def follow(run: Run, label: str = "") -> Done:
    """Run to the end, showing progress and notes; Ctrl-C ends the child process and says what is left."""
    try:
        return _follow(run, label, notes=True)
    except KeyboardInterrupt:
        left = dump_at(run.job.output)
        if left is not None and not is_temporary(Path(left)):
            say(f"what was captured so far is in {printable(left)}, flagged as interrupted")
        raise


def follow_quietly(run: Run) -> Done:
    """Run to the end as one run of many, showing only progress."""
    return _follow(run, "", notes=False)


def _follow(run: Run, label: str, *, notes: bool) -> Done:
    with run, Bar(label) as bar:
        for event in run:
            if isinstance(event, Done):
                return event
            if notes or not isinstance(event, Note):
                _show(event, bar)
    raise CaptureError(f"{printable(run.job.source)}: ended without a result")


def _show(event: Event, bar: Bar) -> None:
    match event:
        case Failed():
            if event.path is not None:
                keep_temporary_folder(Path(event.path))  # the error says where it is
            raise event.error()
        case Note(text):
            with bar.hidden():
                say(printable(text))
        case Phase(name, detail):
            bar.show(printable(f"{name} {detail}").strip(), 0, 0)
        case Progress(done, total, what):
            bar.show(printable(what), done, total)
        case Done():
            pass
