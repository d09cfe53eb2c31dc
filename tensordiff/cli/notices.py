"""What is said once, before a command does what was asked for."""

from __future__ import annotations

from tensordiff.cli.streams import say
from tensordiff.compare.measure import kernel
from tensordiff.errors import printable


def say_if_slow() -> None:
    """Say that this install measures in numpy, and why."""
    if why := kernel.why_missing():
        say(f"tensordiff measures in numpy here, right but many times slower: {printable(why)}")
