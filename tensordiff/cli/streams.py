"""What lines are printed on: a terminal, which has a width, or a file or pipe, which has none.

stdout and stderr: data goes to one, talk to the other, and neither can fail on a character.

A terminal that has no ``✓`` gets ``+``: what its character set lacks is written in ASCII, our own
glyphs by a table, a stranger's names escaped. Everything the commands print goes through ``echo``
and ``say``.
"""

from __future__ import annotations

import codecs
import io
import os
import shutil
import sys
from contextlib import suppress
from typing import Any, NamedTuple

import click

from tensordiff.util.text_width import wrap


class Page(NamedTuple):
    """Where data is printed. Nothing is cut or wrapped where there is no terminal."""

    wide: int | None

    @classmethod
    def here(cls) -> Page:
        """As stdout is now."""
        return cls(shutil.get_terminal_size().columns if sys.stdout.isatty() else None)

    def print(self, text: str = "", first: str = "", rest: str = "  ", **style: Any) -> None:
        """Print text, on as many lines as it takes."""
        for line in wrap(text, self.wide, first, rest):
            echo(click.style(line, **style) if style else line)


_HANDLER = "tensordiff.plain"
_PLAIN = str.maketrans("✓✗·…Δ×∞━─▁▂▃▄▅▆▇█", "+x.~dx^=-12345678")


def prepare() -> None:
    """Make both streams take any text, and stdin any bytes. To be called once, before anything is printed."""
    codecs.register_error(_HANDLER, _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return text.encode("ascii", "backslashreplace").decode(), error.end


def echo(text: str = "") -> None:
    """Print data; colour only for a terminal that wants it."""
    _write(text, sys.stdout)


def say(text: str) -> None:
    """Tell the person something that is not data; where stderr is gone, there is nobody to tell."""
    with suppress(OSError):
        _write(text, sys.stderr)


def has_person() -> bool:
    """Whether somebody can be asked: one who reads stderr and writes to stdin."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def has_screen() -> bool:
    """Whether the app can be shown: on a terminal that is all ours, or by a server that asked for it."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return "TEXTUAL_DRIVER" in os.environ or all(stream is not None and stream.isatty() for stream in streams)


def ask(text: str) -> str | None:
    """Ask the person for one line; None where no more will come."""
    _write(text, sys.stderr, end="")
    line = sys.stdin.readline()
    return line.strip() if line else None


def abandon_stdout() -> None:
    """Whatever is still to be written goes nowhere: Python must not complain while closing stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write(text: str, stream: object, end: str = "\n") -> None:
    # Named, because click by itself writes UTF-8 to a stream that says it is ASCII.
    click.echo(text + end, file=stream, nl=False, color=False if os.environ.get("NO_COLOR") else None)  # type: ignore[arg-type]
