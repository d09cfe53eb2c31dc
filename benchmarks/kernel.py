"""One large pair: tensordiff's pass against today's arithmetic and against reading the bytes once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.timing import best_of
from benchmarks.today import compare_like_today
from tensordiff.compare.measure import measure, warm_up
from tensordiff.dump.dtypes import DTYPES, Array

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


def pair(types: tuple[str, str], megabytes: int) -> tuple[Array, Array]:
    """A reference and a candidate a thousandth off."""
    rng = np.random.default_rng(0)
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
    ref, cand = pair(types, megabytes)
    torch_ref, torch_cand = as_torch(ref), as_torch(cand)
    warm_up(ref.dtype, cand.dtype)
    best = best_of(
        {
            "today": lambda: compare_like_today(torch_ref, torch_cand, 1e-3, 1e-5),
            "ours": lambda: measure(ref, cand, compiled=True),
            "limit": lambda: read_once(ref, cand),
        },
        seconds=0.5 if megabytes < 256 else 3.0,
    )
    today, ours, limit = best["today"], best["ours"], best["limit"]
    return [
        f"{megabytes} MB {types[0]}/{types[1]}",
        *(f"{seconds * 1e3:.2f} ms" for seconds in (today, ours, limit)),
        f"**{today / ours:.0f}×**",
        f"**{ours / limit:.2f}×**",
    ]
