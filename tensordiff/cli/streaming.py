"""``--stream``: compares sources while they run, and says what was kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args

import click

from tensordiff.cli.sources import follow, say_unused_options
from tensordiff.cli.streams import say, say_if_slow
from tensordiff.dump.native.manifest import MANIFEST
from tensordiff.errors import printable
from tensordiff.report.labels import label
from tensordiff.search.outcome import Outcome
from tensordiff.session.request import Request
from tensordiff.session.sources import Sources
from tensordiff.session.streaming.options import WINDOW_BYTES, Keep, StreamOptions
from tensordiff.util.shell_line import shell_line
from tensordiff.util.sizes import format_bytes

if TYPE_CHECKING:
    from tensordiff.session.streaming.session import StreamedSession
    from tensordiff.session.streaming.side import StreamedSide

_FOLDER = "tensordiff-kept"
KEEPS: tuple[Keep, ...] = get_args(Keep)


class StreamChoice(NamedTuple):
    """The options given on the command line."""

    stream: bool = False
    stop: bool = False
    window: int | None = None


def parse_keep(text: str, default: Path | None = None) -> tuple[Keep, Path]:
    """Parse ``--keep`` as it is used with ``--stream``: ``all``, ``all:DIR``, or DIR alone, for what diverges."""
    word, _, folder = text.partition(":")
    for keep in KEEPS:
        if word == keep:
            return keep, Path(folder) if folder else default or _free_folder()
    return "diverging", Path(text)


def _free_folder() -> Path:
    """A new folder in the current one."""
    number = 1
    while (path := Path(_FOLDER if number == 1 else f"{_FOLDER}-{number}")).exists():
        number += 1
    return path


def require_stream(choice: StreamChoice) -> None:
    """Refuse options of a stream without ``--stream``."""
    if not choice.stream and (choice.stop or choice.window is not None):
        name = "--stop" if choice.stop else "--window"
        raise click.UsageError(f"{name} is for --stream", click.get_current_context())


def make_stream_options(choice: StreamChoice, keep: Keep, folder: Path) -> StreamOptions:
    """The options of a stream."""
    window = WINDOW_BYTES if choice.window is None else choice.window
    return StreamOptions(window, keep, folder.absolute(), choice.stop)


@contextmanager
def open_streamed(request: Request, options: StreamOptions) -> Iterator[StreamedSession]:
    """Compare sources while they run; at the end, with or without an error, stderr says what was kept."""
    from tensordiff.session.streaming.session import open_stream

    say_if_slow()
    say_unused_options(Sources.of(request))
    session = None
    try:
        with open_stream(replace(request, keep=None), options, follow) as session:
            yield session
    except BaseException:
        if session is not None:
            _say_compared(session)
        raise
    finally:
        if session is not None:
            kept = [side for side in session.streamed if _is_kept(side, options)]
            for side in kept:
                _say_kept(side, options)
            _say_open(session, kept, options)


def _say_compared(session: StreamedSession) -> None:
    """Say what was found before the comparison failed or was interrupted."""
    rows, pairs = session.judged, len(session.pairs)
    if rows and len(rows) < pairs:
        culprit = Outcome(tuple(rows)).culprit
        found = f", the first culprit so far is {label(culprit.pair)}: {culprit.verdict.why}" if culprit else ""
        say(printable(f"{len(rows):,} of {pairs:,} pairs were compared{found or ', none of which diverges'}"))


def _is_kept(side: StreamedSide, options: StreamOptions) -> bool:
    """Whether a dump of a side was written: a full disk may have prevented it."""
    folder = options.folder
    return (
        options.keep != "none" and folder is not None and bool(side.kept) and (folder / side.side / MANIFEST).exists()
    )


def _say_kept(side: StreamedSide, options: StreamOptions) -> None:
    nbytes = sum(tensor.spec.nbytes for tensor in side.kept.values())
    left = f"; {side.not_kept:,} more that diverge would have gone beyond --window" if side.not_kept else ""
    folder = printable((options.folder or Path()) / side.side)
    say(f"kept {len(side.kept):,} of {len(side.dump):,} tensors ({format_bytes(nbytes)}) in {folder}{left}")


def _say_open(session: StreamedSession, sides: Sequence[StreamedSide], options: StreamOptions) -> None:
    """Say how to open what was kept."""
    kept = {side.side: str((options.folder or Path()) / side.side) for side in sides}
    request = session.request
    paths = kept.get("reference", str(request.reference)), kept.get("candidate", str(request.candidate))
    if kept and len(kept) == len(session.streamed):
        say(f"open it with: {shell_line(['tensordiff'], paths)}")
