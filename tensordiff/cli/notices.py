"""What is said on stderr beside what a command does: once before it, or while something is waited for."""

from __future__ import annotations

import logging
import sys
from functools import cache

from tensordiff.cli.streams import say
from tensordiff.compare.measure import kernel
from tensordiff.errors import printable


@cache  # a suite opens many sessions
def say_if_slow() -> None:
    """Say that this install measures in numpy, and why."""
    if notice := kernel.slow_notice():
        say(printable(notice))


class _Saying(logging.Handler):
    """Says what is logged, in the place of a progress line."""

    def emit(self, record: logging.LogRecord) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
        say(printable(record.getMessage()))


@cache  # an option is parsed again by a command that calls another
def say_logged(name: str) -> None:
    """Say on stderr what the modules below a name log."""
    logging.getLogger(name).addHandler(_Saying())
