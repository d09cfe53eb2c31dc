"""What is said once, before a command does what was asked for."""

from __future__ import annotations

from functools import cache

from tensordiff.cli.streams import say
from tensordiff.compare.measure import kernel
from tensordiff.errors import printable


@cache  # a suite opens many sessions
def say_if_slow() -> None:
    """Say that this install measures in numpy, and why."""
    if notice := kernel.slow_notice():
        say(printable(notice))
