"""Large pairs: the comparer against today's arithmetic and against reading the bytes once, per pair."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from benchmarks.baseline import compare_with_torch
from benchmarks.timing import best_of
from tensordiff.align import Pair
from tensordiff.compare.comparer import Comparer
from tensordiff.compare.measure.compiled_pass import read_once
from tensordiff.compare.measure.dispatch import measure_many
from tensordiff.dump.dtypes import DTYPES, Array
from tensordiff.dump.model import MemoryTensor, entry

PAIRS = (
    ("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float16"), ("float32", "bfloat16"),
    ("float64", "float64"), ("float8_e4m3fn", "float8_e4m3fn"), ("float8_e5m2", "float8_e5m2"),
    ("int8", "int8"), ("int32", "int32"), ("int64", "int64"),
)  # fmt: skip
GOALS = {"float32": 1.2, "bfloat16": 1.5, "float16": 1.5}
"""At most so many times the limit; 3 for all others."""
MEGABYTES = (1, 16, 256)
_pool = ThreadPoolExecutor(1)


def read_pairs(pairs: list[tuple[Array, Array]]) -> None:
    """Both cores read all buffers once, the second its half of each: the limit."""
    parts = [part for sides in pairs for side in sides for part in np.array_split(side.view(np.uint8), 2)]
    other = _pool.submit(lambda: [read_once(part) for part in parts[1::2]])
    for part in parts[::2]:
        read_once(part)
    other.result()


def pair(types: tuple[str, str], megabytes: int, seed: int) -> tuple[Array, Array]:
    """A reference and a candidate a thousandth off."""
    rng = np.random.default_rng(seed)
    size = megabytes * 2**20 // DTYPES[types[0]].itemsize
    ref = np.float32(1 if "float" in types[0] else 30) * rng.standard_normal(size, dtype=np.float32)
    cand = ref + np.float32(1e-3) * rng.standard_normal(size, dtype=np.float32)
    return ref.astype(DTYPES[types[0]]), cand.astype(DTYPES[types[1]])


def as_torch(array: Array) -> torch.Tensor:
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    plain = torch.from_numpy(array.view(np.uint16 if array.itemsize == 2 else np.uint8))
    return plain.view(getattr(torch, array.dtype.name))


def rows() -> list[list[str]]:
    """One row a size and pair of types."""
    return [_row(types, size) for size in MEGABYTES for types in PAIRS if size < 256 or types[0] in GOALS]


def _row(types: tuple[str, str], megabytes: int) -> list[str]:
    count = 8 if megabytes < 16 else 2 if megabytes < 256 else 1  # so few that they stay in the cache
    pairs = [pair(types, megabytes, seed) for seed in range(count)]
    tensors = [(as_torch(ref), as_torch(cand)) for ref, cand in pairs]
    comparer, aligned = Comparer(), [_aligned(k, *sides) for k, sides in enumerate(pairs)]
    best = best_of(
        {
            "today": lambda: [compare_with_torch(ref, cand, 1e-3, 1e-5) for ref, cand in tensors],
            "compared": lambda: list(comparer.rows(aligned)),
            "measured": lambda: measure_many((ref, cand, None) for ref, cand in pairs),
            "limit": lambda: read_pairs(pairs),
        },
        seconds=0.7 if megabytes < 256 else 2.0,
    )
    today, compared, measured, limit = (best[name] / count for name in ("today", "compared", "measured", "limit"))
    return [
        f"{count} × {megabytes} MB {types[0]}/{types[1]}",
        *(f"{seconds * 1e3:.3f} ms" for seconds in (today, compared, measured, limit)),
        f"**{today / compared:.0f}×**",
        f"**{measured / limit:.2f}×**",
        f"{GOALS.get(types[0], 3)}×",
    ]


def _aligned(number: int, ref: Array, cand: Array) -> Pair:
    sides = (entry(f"layer{number}-output", MemoryTensor(side)) for side in (ref, cand))
    return Pair(number, f"layer{number}", *sides, by="name")
