"""Large pairs: the comparer against today's arithmetic and against reading the bytes once, per pair."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.baseline import compare_with_torch
from benchmarks.timing import best_of, load_compiled_pass
from tensordiff.align import Pair
from tensordiff.compare.comparer import Comparer
from tensordiff.dump.dtypes import DTYPES, Array
from tensordiff.dump.model import MemoryTensor, entry

PAIRS = (("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float16"), ("float32", "bfloat16"))
MEGABYTES = (1, 16, 256)
_pool = ThreadPoolExecutor(1)


@numba.njit(nogil=True, cache=True)
def _read(words: NDArray[np.int64]) -> int:
    """Touch every word once; nothing that sees each byte can be quicker."""
    seen = np.int64(0)
    for i in range(words.shape[0]):
        seen ^= words[i]
    return seen


def read_once(ref: Array, cand: Array) -> None:
    """Both cores read both buffers once: the limit."""
    halves = [np.array_split(side.view(np.int64), 2) for side in (ref, cand)]
    other = _pool.submit(lambda: [_read(side[1]) for side in halves])
    for side in halves:
        _read(side[0])
    other.result()


def pair(types: tuple[str, str], megabytes: int, seed: int) -> tuple[Array, Array]:
    """A reference and a candidate a thousandth off."""
    rng = np.random.default_rng(seed)
    size = megabytes * 2**20 // DTYPES[types[0]].itemsize
    ref = rng.standard_normal(size, dtype=np.float32)
    cand = ref + np.float32(1e-3) * rng.standard_normal(size, dtype=np.float32)
    return ref.astype(DTYPES[types[0]]), cand.astype(DTYPES[types[1]])


def as_torch(array: Array) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def rows() -> list[list[str]]:
    """One row a size and pair of types."""
    return [_row(types, megabytes) for megabytes in MEGABYTES for types in PAIRS]


def _row(types: tuple[str, str], megabytes: int) -> list[str]:
    count = 8 if megabytes < 16 else 2 if megabytes < 256 else 1  # so few that they stay in the cache
    pairs = [pair(types, megabytes, seed) for seed in range(count)]
    tensors = [(as_torch(ref), as_torch(cand)) for ref, cand in pairs]
    comparer, aligned = Comparer(), [_aligned(k, *sides) for k, sides in enumerate(pairs)]
    load_compiled_pass(pairs[0][0].dtype, pairs[0][1].dtype)
    best = best_of(
        {
            "today": lambda: [compare_with_torch(ref, cand, 1e-3, 1e-5) for ref, cand in tensors],
            "ours": lambda: list(comparer.rows(aligned)),
            "limit": lambda: [read_once(ref, cand) for ref, cand in pairs],
        },
        seconds=1.0 if megabytes < 256 else 3.0,
    )
    today, ours, limit = (best[name] / count for name in ("today", "ours", "limit"))
    return [
        f"{count} × {megabytes} MB {types[0]}/{types[1]}",
        *(f"{seconds * 1e3:.3f} ms" for seconds in (today, ours, limit)),
        f"{today / limit:.0f}×",
        f"**{today / ours:.0f}×**",
        f"**{ours / limit:.2f}×**",
    ]


def _aligned(number: int, ref: Array, cand: Array) -> Pair:
    sides = (entry(f"layer{number}-output", MemoryTensor(side)) for side in (ref, cand))
    return Pair(number, f"layer{number}", *sides, by="name")
