"""Every number of a diff in long doubles: for values whose squares, or differences, no float64 holds.

``reference_diff`` is the independent computation for values of ordinary size, where positions are exact. Here whole
arrays are summed with fifteen bits of exponent, so nothing overflows, and only the result is rounded to float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest

from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.dump.dtypes import Array

Wide = np.longdouble
HAS_WIDE = np.finfo(Wide).maxexp > 2 * np.finfo(np.float64).maxexp
_NEAR = Wide(1e-13)


class _Sides(NamedTuple):
    """Both sides, flat, in long doubles; what is not finite is zero in ``r``, ``c`` and ``d``."""

    nan: tuple[int, int]
    inf: tuple[int, int]
    apart: Array
    nan_apart: Array
    r: Array
    c: Array
    d: Array


def _sides(ref: Array, cand: Array) -> _Sides:
    r, c = _wide(ref, cand), _wide(cand, ref)
    has_both = np.isfinite(r) & np.isfinite(c)
    apart = ~has_both & ~((np.isnan(r) & np.isnan(c)) | (r == c))
    zero = Wide(0)
    return _Sides(
        nan=(int(np.isnan(r).sum()), int(np.isnan(c).sum())), inf=(int(np.isinf(r).sum()), int(np.isinf(c).sum())),
        apart=apart, nan_apart=apart & (np.isnan(r) | np.isnan(c)), r=np.where(np.isfinite(r), r, zero),
        c=np.where(has_both, c, zero), d=np.where(has_both, c - r, zero),
    )  # fmt: skip


def _wide(side: Array, other: Array) -> Array:
    """A side in long doubles; where a side is complex, real and imaginary parts in turn."""
    flat = side.reshape(-1)
    if side.dtype.kind == "c":
        return np.stack([flat.real, flat.imag], -1).astype(Wide).reshape(-1)
    exact: Array = flat.astype(Wide if side.dtype.isbuiltin == 1 else np.float64).astype(Wide)
    return np.stack([exact, np.zeros_like(exact)], -1).reshape(-1) if other.dtype.kind == "c" else exact


def check_wide(diff: Diff, ref: Array, cand: Array, tolerance: Tolerance) -> None:
    """Every number of a diff; what float64 cannot hold has to be infinite."""
    with np.errstate(all="ignore"):
        sides = _sides(ref, cand)
        assert (diff.nan, diff.inf, diff.apart) == (sides.nan, sides.inf, int(sides.apart.sum()))
        _check_outside(diff, sides, tolerance)
        _near(diff.ref_rms, np.sqrt(np.square(sides.r).mean()))
        if diff.apart:
            _check_apart(diff, sides)
        else:
            _check_errors(diff, sides)
            _check_angle(diff, sides)


def _check_outside(diff: Diff, sides: _Sides, tolerance: Tolerance) -> None:
    """An element at the very edge may count or not: float64 rounds the edge itself."""
    error, allowed = abs(sides.d), Wide(tolerance.atol) + Wide(tolerance.rtol) * abs(sides.r)
    least, most = (int(((error > allowed * (1 + slack)) | sides.apart).sum()) for slack in (_NEAR, -_NEAR))
    assert least <= diff.outside <= most


def _check_apart(diff: Diff, sides: _Sides) -> None:
    value, places = (math.nan, sides.nan_apart) if sides.nan_apart.any() else (math.inf, sides.apart)
    for name in ("max_abs", "max_rel", "mean_abs", "mse", "rms", "rel_l2"):
        assert str(getattr(diff, name)) == str(value), name
    assert math.isnan(diff.cosine_distance)
    assert diff.max_abs_at == diff.max_rel_at == int(places.argmax())


def _check_errors(diff: Diff, sides: _Sides) -> None:
    error, squares = abs(sides.d), np.square(sides.d)
    relative = error / np.maximum(abs(sides.r), Wide(1e-10))
    for found, place, values in ((diff.max_abs, diff.max_abs_at, error), (diff.max_rel, diff.max_rel_at, relative)):
        _near(found, values.max())
        assert float(values[place]) >= float(values.max() * (1 - _NEAR))
    _near(diff.mean_abs, error.mean())
    _near(diff.mse, squares.mean())
    _near(diff.rms, np.sqrt(squares.mean()))
    dd, rr = np.sqrt(squares.sum()), np.sqrt(np.square(sides.r).sum())
    _near(diff.rel_l2, dd / rr if rr else Wide("inf") if dd else Wide(0))


def _check_angle(diff: Diff, sides: _Sides) -> None:
    nr, nc = (np.sqrt(np.square(side).sum()) for side in (sides.r, sides.c))
    if not nr or not nc:
        assert diff.cosine_distance == (0.0 if nr == nc else 1.0)
        return
    apart = np.square(sides.r / nr - sides.c / nc).sum() / 2  # 1 - cos, without the cancellation
    assert diff.cosine_distance == pytest.approx(float(apart), rel=1e-3, abs=1e-12)
    # The factor is a sum of terms that may cancel: it is as precise as the sides' lengths are.
    scale = (sides.r * sides.c).sum() / nr / nr
    assert diff.scale == float(scale) or abs(Wide(diff.scale) - scale) <= Wide(2e-6) * (1 + nc / nr)


def _near(found: float, expected: Wide) -> None:
    assert found == pytest.approx(float(expected), rel=1e-6, abs=5e-324)
