"""An independent computation of every number of a diff: whole arrays, no blocks, no tricks.

Errors are float64, sums are longer still. For integers all of it is longer, so that they stay exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tensordiff.dump.dtypes import Array

Wide = np.longdouble


@dataclass(frozen=True)
class Truth:
    max_abs: float
    max_abs_at: int
    max_rel: float
    max_rel_at: int
    mean_abs: float
    mse: float
    rel_l2: float
    cosine_distance: float
    outside: int
    nan: tuple[int, int]
    inf: tuple[int, int]


def truth(ref: Array, cand: Array, atol: float, rtol: float) -> Truth:
    """What the numbers are, for flat or shaped tensors of one shape and at least one element."""
    exact = Wide if ref.dtype.kind in "iub" and cand.dtype.kind in "iub" else np.float64
    r: Array = ref.reshape(-1).astype(exact)
    c: Array = cand.reshape(-1).astype(exact)
    same_odd = (np.isnan(r) & np.isnan(c)) | (np.isinf(r) & (r == c))
    with np.errstate(all="ignore"):
        d = np.where(same_odd, exact(0), c - r)
    error, size = np.abs(d), np.where(np.isfinite(r), np.abs(r), exact(0))
    nan_apart = np.isnan(d)
    inf_apart = np.isinf(d)
    counts = (int(np.isnan(r).sum()), int(np.isnan(c).sum())), (int(np.isinf(r).sum()), int(np.isinf(c).sum()))
    outside = int((nan_apart | inf_apart | (error > atol + rtol * size)).sum())
    if nan_apart.any() or inf_apart.any():
        value = math.nan if nan_apart.any() else math.inf
        at = int(np.argmax(nan_apart if nan_apart.any() else inf_apart))
        return Truth(value, at, value, at, value, value, value, math.nan, outside, *counts)
    relative = error.astype(np.float64) / np.maximum(size.astype(np.float64), 1e-10)
    d, size = d.astype(Wide), size.astype(Wide)
    dd, rr = (d * d).sum(), (size * size).sum()
    return Truth(
        float(error.max()), int(error.argmax()), float(relative.max()), int(relative.argmax()),
        float(error.mean()), float((d * d).mean()), _ratio(dd, rr),
        _cosine(np.where(np.isfinite(r), r, 0).astype(Wide), np.where(np.isfinite(c), c, 0).astype(Wide)),
        outside, *counts,
    )  # fmt: skip


def _ratio(dd: Wide, rr: Wide) -> float:
    if rr == 0:
        return 0.0 if dd == 0 else math.inf
    return float(np.sqrt(dd / rr))


def _cosine(r: Array, c: Array) -> float:
    nr, nc = np.sqrt((r * r).sum()), np.sqrt((c * c).sum())
    if nr == 0 or nc == 0:
        return 0.0 if nr == nc else 1.0
    # |r/|r| - c/|c||² / 2 is 1 - cos without the cancellation.
    u = r / nr - c / nc
    return float((u * u).sum() / 2)
