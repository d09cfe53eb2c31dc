"""What the library's functions tell once, as Python's warnings."""

from __future__ import annotations

import sys
import warnings
from functools import cache

from tensordiff.compare.measure import kernel


@cache  # once in a process, wherever it is called from
def warn_if_slow() -> None:
    """Warn that this install measures in numpy, and why, at the caller's own line.

    Under pytest the plugin keeps this a warning where the user makes warnings errors: a slower install fails no test.
    """
    if notice := kernel.slow_notice():
        warnings.warn(notice, RuntimeWarning, stacklevel=_levels_to_caller())


def warn(sentence: str) -> None:
    """Warn at the caller's own line."""
    warnings.warn(sentence, UserWarning, stacklevel=_levels_to_caller())


def _levels_to_caller() -> int:
    """The ``stacklevel`` of the first frame outside tensordiff, for the function that calls this."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "tensordiff":
        level, frame = level + 1, frame.f_back
    return level + 1
