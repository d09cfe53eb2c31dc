"""Running a source from the command line: its events as lines and a moving bar on stderr, its result on stdout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensordiff.capture.events import Done, Event, Failed, Note, Phase, Progress
from tensordiff.capture.job import Job
from tensordiff.capture.runner import Run, dump_at
from tensordiff.capture.settings import Injection
from tensordiff.capture.source import Source, parse_source
from tensordiff.cli.capture_options import settings
from tensordiff.cli.progress import Bar
from tensordiff.cli.streams import echo, say
from tensordiff.errors import CaptureError, WriteError, printable
from tensordiff.report.compare_json import dumps

SCHEMA = "tensordiff.capture/1"


class ChildSaid(Exception):
    """What a child's own traceback or log was; shown with ``--debug``."""


def capture(text: str, output: Path, options: dict[str, Any], *, as_json: bool) -> int:
    """Capture and say what was made; raises where it was not."""
    source = source_of(text)
    inject, at, rules = options.pop("inject"), options.pop("inject_at"), options.pop("rules")
    if inject is not None:
        options["inject"] = Injection(_absolute(inject), at, None if rules is None else _absolute(rules))
    elif rules is not None or at != "all":
        raise CaptureError("--inject-at and --rules are about --inject DUMP, which was not given")
    if dump_at(str(output)) is not None and not options["force"]:
        raise WriteError(
            f"{printable(output)}: holds a dump already; choose a new folder, or overwrite it with --force"
        )
    done = follow(Run(Job(source, settings(**options), str(output.absolute()))))
    if as_json:
        echo(dumps({"schema": SCHEMA, "path": done.path, "entries": done.entries, **done.facts}))
    else:
        echo(f"captured {done.entries:,} tensors, {_shown(done.facts.get('bytes'))}, in {printable(output)}")
    return 0


def source_of(text: str) -> Source:
    """The source that a text names; refuses a path."""
    source = parse_source(text)
    if source is None:
        raise CaptureError(
            f"{printable(text)}: is no source; write hf:PATH_OR_ID, max:PATH_OR_ID, onnx:FILE or py:FILE.py:FUNCTION"
        )
    return source.absolute()


def follow(run: Run, label: str = "") -> Done:
    """Listen to a run until its end, showing how far it is. Leaving this leaves no process behind."""
    with run, Bar(label) as bar:
        try:
            for event in run:
                if isinstance(event, Done):
                    return event
                _show(event, bar)
        except KeyboardInterrupt:
            run.cancel()
            bar.clear()
            if (left := dump_at(run.job.output)) is not None:
                say(f"what was captured so far lies in {printable(left)}, flagged as interrupted")
            raise
    raise CaptureError(f"{printable(run.job.source)}: ended without a word")


def quietly(run: Run) -> Done:
    """Listen to one run of many: the bar, and no notes."""
    with run, Bar() as bar:
        for event in run:
            if isinstance(event, Done):
                return event
            if not isinstance(event, Note):
                _show(event, bar)
    raise CaptureError(f"{printable(run.job.source)}: ended without a word")


def _show(event: Event, bar: Bar) -> None:
    match event:
        case Failed(sentence, detail, _):
            raise CaptureError(sentence) from ChildSaid(f"\n{detail}")
        case Note(text):
            bar.clear()
            say(printable(text))
        case Phase(name, detail):
            bar.show(f"{name} {printable(detail)}".strip(), 0, 0)
        case Progress(done, total, what):
            bar.show(printable(what), done, total)
        case Done():
            pass


def _absolute(path: Path) -> str:
    return str(path.expanduser().absolute())


def _shown(nbytes: object) -> str:
    if not isinstance(nbytes, int):
        return "size unknown"
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} bytes"
