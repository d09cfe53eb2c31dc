"""What the tests of values share: arrays at random, and an expression worked out and held to its plan."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from tensordiff.align.expression import evaluate, parse, plan
from tensordiff.dump.dtypes import DTYPES, Array, DType, is_float
from tensordiff.dump.model import Spec

all_dtypes = st.sampled_from([*DTYPES.values(), np.dtype(">f4")])
float_dtypes = st.sampled_from([dtype for dtype in DTYPES.values() if is_float(dtype)])
real_dtypes = float_dtypes.filter(lambda dtype: dtype.kind != "c")
seeds = st.integers(0, 2**32 - 1)
fast = settings(deadline=None, max_examples=60)


def shapes(least: int = 1, most: int = 4, smallest: int = 1) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(smallest, 4), min_size=least, max_size=most).map(tuple)


def random_array(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> Array:
    values = np.random.default_rng(seed).standard_normal(shape) * 3
    with np.errstate(all="ignore"):
        array = np.asarray(np.abs(values) if dtype.kind in "ub" else values).astype(dtype)
    array.flags.writeable = False  # as a dump gives it
    return array


def spec_of(array: Array) -> Spec:
    return Spec(array.shape, array.dtype)


def worked_out(text: str, **entries: Array) -> Array:
    """What an expression gives, having checked that it was planned so."""
    expression = parse(text)
    result = evaluate(expression, entries.__getitem__)
    assert spec_of(result) == plan(expression, {name: spec_of(array) for name, array in entries.items()})
    return result


def widened(x: Array) -> Array:
    """In the type that arithmetic on it is done in."""
    return x.astype(np.float32) if x.dtype.itemsize < 4 else x


def assert_same(result: Array, expected: Array) -> None:
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    assert result.tobytes() == expected.tobytes()
