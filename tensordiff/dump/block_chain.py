"""Whether the input of a block is computed from the output of the previous block.

Usually both are the same tensor. Some models compute something in between: ``x = x + layer(x)``, ``x = relu(layer(x))``
or a norm between two blocks. The values decide whether that is so, to tell it from a buffer that was overwritten after
it was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Entry
from tensordiff.errors import DumpError

_SAMPLE = 1 << 16
_FEWEST_ELEMENTS = 32  # with fewer elements, two factors fit almost anything
_LARGEST_RESIDUAL = 0.03  # relative to the norm; a sum rounded to bfloat16 leaves less, unrelated tensors leave more
_MOST_TURNS = 8  # how often a function of one number may run through its whole range


def is_computed_between(block_input: Entry, previous_output: Entry, previous_inputs: Iterable[Entry]) -> bool:
    """Whether a block's input follows from the previous block's output, possibly with one of that block's inputs."""
    try:
        target, output = _sample(block_input), _sample(previous_output)
        if target.size < _FEWEST_ELEMENTS or not (np.isfinite(target).all() and np.isfinite(output).all()):
            return False
        return _is_function(target, output) or any(_is_sum(target, output, _sample(entry)) for entry in previous_inputs)
    except DumpError:  # unreadable entries are reported by whoever reads them
        return False


def _sample(entry: Entry) -> NDArray[np.float64]:
    array: Array = entry.read().reshape(-1)
    with np.errstate(all="ignore"):
        return array[:_SAMPLE].astype(np.float64)


def _is_sum(target: NDArray[np.float64], output: NDArray[np.float64], previous_inputs: NDArray[np.float64]) -> bool:
    """Whether the target is a sum of both, each times a factor. The previous block's output must matter in it."""
    if not np.isfinite(previous_inputs).all():
        return False
    terms = np.stack((output, previous_inputs), 1)
    factors = np.linalg.lstsq(terms, target, rcond=None)[0]
    least = _LARGEST_RESIDUAL * np.linalg.norm(target)
    return bool(np.linalg.norm(target - terms @ factors) <= least < np.linalg.norm(factors[0] * output))


def _is_function(target: NDArray[np.float64], output: NDArray[np.float64]) -> bool:
    """Whether each element is a function of one element of the output: sorted by that, values hardly go up and down."""
    way = np.abs(np.diff(target[np.argsort(output, kind="stable")])).sum()
    return bool(np.ptp(target) > 0 and way <= min(_MOST_TURNS, target.size / 8) * np.ptp(target))
