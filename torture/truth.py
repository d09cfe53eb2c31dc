"""Every number of a diff in long doubles, computed from whole arrays without a trick, and whether a diff has them.

A long double has 15 bits of exponent, so nothing that is float64 overflows or vanishes here; the results are rounded
to float64 in the end. Positions are checked by what lies there: several elements may be as far off as the farthest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tensordiff.compare.measure.diff import REL_GUARD, Diff
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.dump.dtypes import Array
from torture.part import Skipped

Wide = np.longdouble
_SUMS = 1e-6  # sums are in another order, and of narrow types in float32 blocks
_EDGE = Wide(1e-6)  # an element at the edge of a tolerance may count or not


class _Sides(NamedTuple):
    """Both sides, flat; zero where they are not finite or the same."""

    ref: Array
    cand: Array
    error: Array
    apart: Array
    nan_apart: Array


def check_is_possible() -> None:
    """Raise where a long double is no longer than a double."""
    if np.finfo(Wide).maxexp <= 2 * np.finfo(np.float64).maxexp:
        raise Skipped("a long double is as short as a double on this machine")


def wrong_numbers(diff: Diff, ref: Array, cand: Array, tolerance: Tolerance) -> Iterator[str]:
    """A sentence for each number of a diff that is not true."""
    with np.errstate(all="ignore"):
        r, c = _flat(ref, cand), _flat(cand, ref)
        for name, of in (("nan", np.isnan), ("inf", np.isinf)):
            counts = int(of(r).sum()), int(of(c).sum())
            if getattr(diff, name) != counts:
                yield f"{name} is {getattr(diff, name)}, and is {counts}"
        sides = _sides(r, c)
        yield from _of_outside(diff, sides, tolerance)
        if diff.apart != (apart := int(sides.apart.sum())):
            yield f"apart is {diff.apart}, and is {apart}"
        elif apart:
            yield from _of_apart(diff, sides)
        elif r.size:
            yield from _of_errors(diff, sides)
            yield from _of_angle(diff, sides)


def _flat(side: Array, other: Array) -> Array:
    """A side in long doubles; of complex numbers, real and imaginary parts in turn."""
    flat = side.reshape(-1)
    if side.dtype.kind == "c":
        return np.stack([flat.real, flat.imag], -1).astype(Wide).reshape(-1)
    exact: Array = flat.astype(Wide if side.dtype.kind in "iubf" else np.float64).astype(Wide)
    return np.stack([exact, np.zeros_like(exact)], -1).reshape(-1) if other.dtype.kind == "c" else exact


def _sides(r: Array, c: Array) -> _Sides:
    finite = np.isfinite(r) & np.isfinite(c)
    apart = ~finite & ~((np.isnan(r) & np.isnan(c)) | (r == c))
    zero = Wide(0)
    return _Sides(
        ref=np.where(np.isfinite(r), r, zero), cand=np.where(finite, c, zero),
        error=np.abs(np.where(finite, c - r, zero)), apart=apart, nan_apart=apart & (np.isnan(r) | np.isnan(c)),
    )  # fmt: skip


def _of_outside(diff: Diff, sides: _Sides, tolerance: Tolerance) -> Iterator[str]:
    allowed = Wide(tolerance.atol) + Wide(tolerance.rtol) * np.abs(sides.ref)
    least, most = (int(((sides.error > allowed * (1 + slack)) | sides.apart).sum()) for slack in (_EDGE, -_EDGE))
    if not least <= diff.outside <= most:
        yield f"outside is {diff.outside}, and is {least} to {most}"


def _of_apart(diff: Diff, sides: _Sides) -> Iterator[str]:
    """One side is NaN or infinite, and the other is not: every distance says so, at the first such place."""
    value, places = (math.nan, sides.nan_apart) if sides.nan_apart.any() else (math.inf, sides.apart)
    for name in ("max_abs", "max_rel", "mean_abs", "mse", "rms", "rel_l2"):
        if str(getattr(diff, name)) != str(value):
            yield f"{name} is {getattr(diff, name)}, and is {value}"
    if diff.max_abs_at != int(places.argmax()):
        yield f"the first place apart is {int(places.argmax())}, not {diff.max_abs_at}"


def _of_errors(diff: Diff, sides: _Sides) -> Iterator[str]:
    error, squares = sides.error, np.square(sides.error)
    relative = error / np.maximum(np.abs(sides.ref), Wide(REL_GUARD))
    for name, at, values in (("max_abs", diff.max_abs_at, error), ("max_rel", diff.max_rel_at, relative)):
        yield from _near(name, getattr(diff, name), values.max())
        if not float(values[at]) >= float(values.max() * (1 - Wide(_SUMS))):
            yield f"{name} is at {int(values.argmax())}, not {at}"
    dd, rr = np.sqrt(squares.sum()), np.sqrt(np.square(sides.ref).sum())
    yield from _near("mean_abs", diff.mean_abs, error.mean())
    yield from _near("mse", diff.mse, squares.mean())
    yield from _near("rms", diff.rms, np.sqrt(squares.mean()))
    yield from _near("rel_l2", diff.rel_l2, dd / rr if rr else Wide("inf") if dd else Wide(0))


def _of_angle(diff: Diff, sides: _Sides) -> Iterator[str]:
    nr, nc = (np.sqrt(np.square(side).sum()) for side in (sides.ref, sides.cand))
    if not nr or not nc:
        wanted = 0.0 if nr == nc else 1.0
    else:
        wanted = float(np.square(sides.ref / nr - sides.cand / nc).sum() / 2)  # 1 - cos, without the cancellation
    if not abs(diff.cosine_distance - wanted) <= 1e-3 * wanted + 1e-12:
        yield f"cosine_distance is {diff.cosine_distance}, and is {wanted}"


def _near(name: str, found: float, wanted: Wide) -> Iterator[str]:
    truth = float(wanted)
    if found != truth and not abs(found - truth) <= _SUMS * abs(truth) + 5e-324:
        yield f"{name} is {found}, and is {truth}"
