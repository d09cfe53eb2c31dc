"""What a block takes, where that is not what the block before gave: some models compute it between the blocks.

``x = x + layer(x)`` and ``x = relu(layer(x))`` are written like that, and a norm may run between two blocks. Each is
told by the values, so that a buffer which was overwritten after it was recorded is still found.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Entry
from tensordiff.errors import DumpError

_SAMPLE = 1 << 16
_FEWEST = 32  # elements, below which two factors fit too much
_LEFT = 0.03  # of the norm; a sum that was rounded to bfloat16 leaves less, and what has nothing to do with it more
_TURNS = 8  # how often a function of one number may go up and down its whole range


def is_computed_between(given: Entry, gave: Entry, taken: Iterable[Entry]) -> bool:
    """Whether a block's input follows from the output of the block before, and one of that block's inputs."""
    try:
        wanted, output = _sample(given), _sample(gave)
        if wanted.size < _FEWEST or not (np.isfinite(wanted).all() and np.isfinite(output).all()):
            return False
        return _is_function(wanted, output) or any(_is_sum(wanted, output, _sample(entry)) for entry in taken)
    except DumpError:  # what cannot be read is told where it is read
        return False


def _sample(entry: Entry) -> NDArray[np.float64]:
    array: Array = entry.read().reshape(-1)
    with np.errstate(all="ignore"):
        return array[:_SAMPLE].astype(np.float64)


def _is_sum(wanted: NDArray[np.float64], output: NDArray[np.float64], taken: NDArray[np.float64]) -> bool:
    """Whether it is both added, each times a factor; what the block took and nothing else is none."""
    if not np.isfinite(taken).all():
        return False
    terms = np.stack((output, taken), 1)
    factors = np.linalg.lstsq(terms, wanted, rcond=None)[0]
    least = _LEFT * np.linalg.norm(wanted)
    return bool(np.linalg.norm(wanted - terms @ factors) <= least < np.linalg.norm(factors[0] * output))


def _is_function(wanted: NDArray[np.float64], output: NDArray[np.float64]) -> bool:
    """Whether each element follows from one element alone: in the order of those it hardly goes up and down."""
    way = np.abs(np.diff(wanted[np.argsort(output, kind="stable")])).sum()
    return bool(np.ptp(wanted) > 0 and way <= min(_TURNS, wanted.size / 8) * np.ptp(wanted))
