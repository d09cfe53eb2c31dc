"""Printing: data goes to stdout, messages to stderr, and neither fails on any character.

Characters that a terminal's character set lacks are written in ASCII: our own glyphs by a table (``✓`` is ``+``),
others escaped. Commands print only through ``echo``, ``say`` and ``Page``, which never show a secret of a URL.
"""

from __future__ import annotations

import codecs
import io
import logging
import os
import shutil
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click

from tensordiff.errors import printable
from tensordiff.secrets import masked, masked_message
from tensordiff.util.text_width import wrap

_HANDLER = "tensordiff.plain"
_PLAIN = str.maketrans("✓✗·…Δ×∞━─▁▂▃▄▅▆▇█", "+x.~dx^=-12345678")


def prepare() -> None:
    """Make both output streams accept any text, and stdin any bytes. Call this once, before anything is printed."""
    _fill_closed()
    codecs.register_error(_HANDLER, _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")


def _fill_closed() -> None:
    """Replace standard streams that were closed when the process was started (``>&-``) by empty ones.

    Python has no such stream then. Worse, the next file that is opened, perhaps a dump being written, would get its
    file descriptor, and a child would write its log there.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - open as long as the process lives


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return text.encode("ascii", "backslashreplace").decode(), error.end


def echo(text: str = "") -> None:
    """Print data on stdout, in colour only on a terminal that wants it."""
    _write(masked(text), sys.stdout)


class Page(NamedTuple):
    """Prints data on stdout, wrapped to the terminal's width; without a terminal nothing is wrapped."""

    width: int | None

    @classmethod
    def here(cls) -> Page:
        """The page of the current stdout."""
        return cls(shutil.get_terminal_size().columns if sys.stdout.isatty() else None)

    def print(self, text: str = "", first: str = "", rest: str = "  ", **style: Any) -> None:
        """Print text, with ``first`` before its first line and ``rest`` before the following ones."""
        for line in wrap(text, self.width, first, rest):
            echo(click.style(line, **style) if style else line)


def say(text: str) -> None:
    """Print a message on stderr; does nothing if stderr is gone."""
    with suppress(OSError):
        _write(masked_message(text), sys.stderr)


def has_person() -> bool:
    """Whether a person can be asked: both stderr and stdin are a terminal."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def has_screen() -> bool:
    """Whether the app can be shown: on a terminal for all three streams, or for a server that asked for it."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return "TEXTUAL_DRIVER" in os.environ or all(stream is not None and stream.isatty() for stream in streams)


def ask(text: str) -> str | None:
    """Ask for one line; None at the end of the input."""
    _write(masked_message(text), sys.stderr, end="")
    line = sys.stdin.readline()
    return line.strip() if line else None


def abandon_stdout() -> None:
    """Discard unwritten output, so that Python does not complain while closing stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write(text: str, stream: object, end: str = "\n") -> None:
    # Named, because click by default writes UTF-8 to a stream that says it is ASCII.
    click.echo(text + end, file=stream, nl=False, color=False if os.environ.get("NO_COLOR") else None)  # type: ignore[arg-type]


@cache  # a suite opens many sessions
def say_if_slow() -> None:
    """Say that this install measures in numpy, and why."""
    from tensordiff.compare.measure import kernel  # numpy and more, which --help does without

    if notice := kernel.slow_notice():
        say(printable(notice))


class _SayHandler(logging.Handler):
    """Prints log records in place of a progress line."""

    def emit(self, record: logging.LogRecord) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
        say(printable(record.getMessage()))


@cache  # an option is parsed again by a command that calls another
def say_log_of(name: str) -> None:
    """Print on stderr what the modules below a name log."""
    logging.getLogger(name).addHandler(_SayHandler())
