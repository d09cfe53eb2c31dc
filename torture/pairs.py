"""Random pairs, measured by both passes and held against long doubles: all types, layouts, sizes and odd values.

Sizes gather around the borders of blocks, chunks and pieces. Values are of every magnitude that a type has, with zeros,
denormals, values that overflow when squared, NaN and infinity, on one side or both.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tensordiff.compare.measure.chunks import CHUNK
from tensordiff.compare.measure.dispatch import measure, measure_many
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.compare.measure.scheduler import PIECE
from tensordiff.dump.dtypes import DTYPES, Array
from torture.part import Check
from torture.truth import check_is_possible, wrong_numbers

_EDGES = (1, 2, 7, 8, 16, 31, 32, 33, 64, 128, 255, 256, 512, 1024, 4096, 1 << 14, 1 << 16)
_LARGE = (CHUNK, PIECE, 1 << 19)
_ODD = (0.0, -0.0, math.nan, math.inf, -math.inf, 1.0, -1.0, 5e-324, 1e-45, 1e-38, 1e-10, 1e154, 1e200, 1.79e308)
_TOLERANCES = (0.0, 1e-12, 1e-6, 1e-3, 0.1, 1e300)


@contextmanager
def opened(_: Path) -> Iterator[Check]:
    """Nothing is needed."""
    check_is_possible()
    yield _check


def _check(rng: random.Random) -> list[str]:
    numbers = np.random.default_rng(rng.getrandbits(64))
    names = rng.choice(sorted(DTYPES)), rng.choice(sorted(DTYPES))
    if rng.random() < 0.4:
        names = names[0], names[0]
    shape = _shape(rng)
    with np.errstate(all="ignore"):
        ref, cand = _pair(rng, numbers, shape, names)
    ref, cand = _laid_out(rng, ref), _laid_out(rng, cand)
    tolerance = Tolerance(rng.choice(_TOLERANCES), rng.choice(_TOLERANCES))
    found = []
    for compiled in (False, True):
        if rng.random() < 0.8:
            diff = measure(ref, cand, tolerance, compiled=compiled)
        else:  # within a batch of others
            small = ref[:1] if ref.ndim else ref
            other = cand[:1] if cand.ndim else cand
            batch = [(small, other, None), (ref, cand, tolerance), (small, other, None)]
            diff = measure_many(batch, compiled=compiled)[1]
        how = f"{names[0]} against {names[1]}, {shape}, {'compiled' if compiled else 'numpy'}, {tolerance}"
        found += [f"{wrong} ({how})" for wrong in wrong_numbers(diff, ref, cand, tolerance)]
    return found


def _shape(rng: random.Random) -> tuple[int, ...]:
    if rng.random() < 0.04:
        return (rng.choice(_LARGE) + rng.choice((-1, 0, 1, 17)),)
    if rng.random() < 0.1:
        return rng.choice(((), (0,), (3, 0, 2), (1,), (1, 1, 1)))
    size = max(rng.choice(_EDGES) + rng.choice((-1, 0, 0, 1)), 1)
    parts: list[int] = []
    while len(parts) < 3 and size > 3 and rng.random() < 0.5:
        parts.append(rng.randint(1, 5))
        size = max(size // parts[-1], 1)
    return (*parts, size)


def _pair(
    rng: random.Random, numbers: np.random.Generator, shape: tuple[int, ...], names: tuple[str, str]
) -> tuple[Array, Array]:
    """Two sides that are near each other, or not; rounded to their types."""
    scale = 10.0 ** rng.choice((0, 0, 0, -3, 3, -30, 30, -150, 150, -300, 300, rng.uniform(-320, 307)))
    ref = np.asarray(numbers.standard_normal(shape) * scale)
    match rng.randrange(5):
        case 0:
            cand = ref.copy()
        case 1:
            cand = ref * (1 + 10.0 ** rng.uniform(-16, 1))
        case 2:
            cand = np.asarray(numbers.standard_normal(shape) * scale)
        case _:
            cand = ref + numbers.standard_normal(shape) * scale * 10.0 ** rng.uniform(-14, 2)
    for side in (ref, cand):
        if side.size and rng.random() < 0.3:
            for _ in range(rng.randint(1, 4)):
                side.reshape(-1)[rng.randrange(side.size)] = rng.choice(_ODD)
    if ref.size and rng.random() < 0.15:  # the same odd value in the same place
        at, value = rng.randrange(ref.size), rng.choice(_ODD)
        ref.reshape(-1)[at] = cand.reshape(-1)[at] = value
    return _rounded(rng, ref, names[0]), _rounded(rng, cand, names[1])


def _rounded(rng: random.Random, values: Array, name: str) -> Array:
    dtype = DTYPES[name]
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        wide = np.nan_to_num(values, nan=3, posinf=bounds.max, neginf=bounds.min)
        return np.asarray(np.clip(wide, float(bounds.min), float(bounds.max) * (1 - 2**-10))).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(values > 0)
    if dtype.kind == "c":
        other = np.roll(values, 1) if rng.random() < 0.8 else np.zeros_like(values)
        made = np.empty(values.shape, dtype)
        made.real, made.imag = values, other
        return made
    return np.asarray(values).astype(dtype)


def _laid_out(rng: random.Random, array: Array) -> Array:
    """The same values, as they may lie in memory."""
    match rng.randrange(7):
        case 0 if array.ndim:
            wide = np.zeros((*array.shape[:-1], array.shape[-1] * 2), array.dtype)
            wide[..., ::2] = array
            return wide[..., ::2]
        case 1 if array.ndim:
            return np.ascontiguousarray(array[::-1])[::-1]
        case 2:
            return np.asfortranarray(array).reshape(array.shape, order="A")
        case 3:  # not aligned
            data = np.zeros(array.nbytes + 1, np.uint8)
            moved = data[1:].view(np.uint8)
            moved[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            return np.frombuffer(moved.data, array.dtype).reshape(array.shape)
        case 4 if array.dtype.isbuiltin == 1 and array.dtype.kind in "iuf":
            return array.astype(array.dtype.newbyteorder(">"))
    return array
