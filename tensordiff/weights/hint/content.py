"""Wrong values in the right place: not loaded, rounded, scaled, a slice left out."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.hint import Hint
from tensordiff.dump.dtypes import DTYPES, name_of
from tensordiff.weights.hint.pair_tables import PairTables, rows_alike
from tensordiff.weights.measure import rounding_of
from tensordiff.weights.packed import quantization_of
from tensordiff.weights.quantization import UNIT_ROUNDOFF
from tensordiff.weights.samples import Floats, is_telling, wide_blocks

_CASTS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
_FEW = 16  # elements that may differ to count as single ones
_BLOCK = 128  # rows and columns of a block that shares a scale
_FIT = 4.0  # how many times the slack an error may be
_ENOUGH = 256  # values from which a correlation means something
_TELLING, _ROWS_TRIED, _ROWS_AT_ONCE = 16, 32, 1 << 14  # fewest columns whose direction means something; sample sizes
_LAST_PLACES = 64  # units in the last place that computing anew may cost in float32
_SAMPLED = 1 << 16
_COMPUTED_TYPES = ("float64", "float32", "float16", "bfloat16")
_NAMED_FACTORS = {2.0: "2", 0.5: "1/2", 4.0: "4", 0.25: "1/4", math.sqrt(2): "√2", 1 / math.sqrt(2): "1/√2"}


def constant(tables: PairTables) -> Hint | None:
    """All zero, all one, or all equal, while the reference is not."""
    values = tables.cand
    if np.ptp(tables.ref) == 0 or np.ptp(values) != 0 or values.size < 2:
        return None
    value = float(values.flat[0])
    text = {0.0: "all zero", 1.0: "all one"}.get(value, f"{value:.6g} everywhere")
    return Hint("not loaded", f"not loaded: {text}", {"value": value})


def few_elements(tables: PairTables) -> Hint | None:
    """A handful of elements changed, all others are the same."""
    sides = tables.pair.reference.stored, tables.pair.candidate.stored
    if tables.ref.size < 16 * _FEW or any(quantization_of(side) for side in sides):
        return None
    allowed = rounding_of(sides[0].spec.dtype, sides[1].spec.dtype)[0]
    exact = np.abs(tables.cand - tables.ref) > allowed.atol + allowed.rtol * np.abs(tables.ref)
    count = int(np.count_nonzero(exact))
    if not 0 < count <= _FEW or len(np.unique(np.argwhere(exact)[:, 0])) < min(2, count):
        return None
    places = [tuple(map(int, place)) for place in np.argwhere(exact)[:3]]
    shown = ", ".join(str(list(place)) for place in places) + (", …" if count > 3 else "")
    text = "1 element differs" if count == 1 else f"{count} elements differ"
    return Hint("elements", f"{text} ({shown}), all others are equal", {"elements": count})


def cast(tables: PairTables) -> Hint | None:
    """The reference's values rounded to a coarser dtype than either side has."""
    sides = [tables.pair.reference.stored, tables.pair.candidate.stored]
    if any(quantization_of(side) for side in sides):
        return None
    own = sides[1].spec.dtype
    for name in _CASTS:
        if name in (name_of(own), name_of(sides[0].spec.dtype)):
            continue
        for way, made in (("rounded", _rounded(tables.ref, name)), ("truncated", _truncated(tables.ref, name))):
            if made is not None and _is_same(made.astype(own).astype(np.float32), tables.cand):
                return Hint("cast", f"{way} to {name} on the way", {"dtype": name})
    for way, made in (("truncated", _truncated(tables.ref, name_of(own))),):
        if made is not None and _is_same(made, tables.cand):
            return Hint("cast", f"{way} to {name_of(own)} where it should be rounded", {"dtype": name_of(own)})
    return None


def _rounded(values: Floats, name: str) -> Floats | None:
    with np.errstate(all="ignore"):
        made: Floats = values.astype(DTYPES[name]).astype(np.float32)
    return made


def _truncated(values: Floats, name: str) -> Floats | None:
    if name != "bfloat16":
        return None
    made: Floats = (np.ascontiguousarray(values).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return made


def _is_same(made: Floats, cand: Floats) -> bool:
    """Whether all but one in a thousand elements are equal: libraries differ in the smallest numbers."""
    return bool(np.count_nonzero(made != cand) <= made.size // 1000)


def last_bits(tables: PairTables) -> Hint | None:
    """Off by a few units in the last place everywhere: computed anew, and not copied."""
    names = {name_of(side.stored.spec.dtype) for side in (tables.pair.reference, tables.pair.candidate)}
    name = next(iter(names))
    if len(names) > 1 or name not in _COMPUTED_TYPES or quantization_of(tables.pair.candidate.stored):
        return None
    most = _LAST_PLACES if name in ("float32", "float64") else 2
    allowed = 2 * most * UNIT_ROUNDOFF[name]
    if any(np.any(np.abs(cand - ref) > allowed * np.abs(ref)) for ref, cand in wide_blocks(tables.ref, tables.cand)):
        return None
    factor = _factor(tables.ref, tables.cand)
    if factor is not None and abs(factor - 1) > 4 * UNIT_ROUNDOFF[name]:
        return None  # a factor, which ``scale`` reports
    return Hint("last bits", f"off by no more than {most} units in the last place of {name}: computed, not copied", {})


def offset(tables: PairTables) -> Hint | None:
    """A constant added everywhere: a norm that keeps 1 + w."""
    if not is_telling(tables.ref) and tables.ref.size < 8:
        return None
    step = max(1, tables.ref.size // _SAMPLED)
    some = tables.cand.ravel()[::step].astype(np.float64) - tables.ref.ravel()[::step]
    mean = float(np.median(some))
    noise = max(float(np.abs(cand - ref - mean).max()) for ref, cand in wide_blocks(tables.ref, tables.cand))
    scale = max(float(np.abs(tables.ref).max()), abs(mean))
    if mean == 0 or noise > _FIT * max(tables.slack, 1e-6) * scale or noise > 0.05 * abs(mean):
        return None
    if np.ptp(tables.ref) == 0:
        return None  # constants differ by a constant, whatever the reason
    nearest = round(mean)
    text = (
        f"{nearest:+d}" if nearest and abs(mean - nearest) <= _FIT * max(tables.slack, 1e-6) * scale else f"{mean:+.6g}"
    )
    norm = " (a norm that keeps 1 + w on one side)" if abs(nearest) == 1 and tables.ref.shape[1] == 1 else ""
    return Hint("offset", f"the reference {text[0]} {text[1:]} everywhere{norm}", {"offset": mean})


def scale(tables: PairTables) -> Hint | None:
    """One factor between the two."""
    factor = _factor(tables.ref, tables.cand)
    if factor is None or not tables.fits((tables.ref * factor).astype(np.float32)):
        return None
    if math.isclose(factor, -1, rel_tol=max(4 * tables.slack / math.sqrt(tables.ref.size), 1e-5)):
        return Hint("sign", "the sign is turned: -1 times the reference", {"factor": -1.0})
    noise = max(tables.slack, 1e-7) / math.sqrt(tables.ref.size)
    if abs(factor - 1) <= 4 * noise:
        return None
    return Hint("scale", f"{_factor_text(factor)} times the reference", {"factor": factor})


def _factor_text(factor: float) -> str:
    known = next((name for value, name in _NAMED_FACTORS.items() if math.isclose(factor, value, rel_tol=1e-3)), None)
    if known:
        return known
    power = round(math.log2(abs(factor))) if factor else 0
    if math.isclose(abs(factor), 2.0**power, rel_tol=1e-4):
        return f"{'-' if factor < 0 else ''}2^{power}"
    for whole in range(2, 1025):
        if math.isclose(abs(factor), whole, rel_tol=1e-5):
            return f"{'-' if factor < 0 else ''}{whole}"
        if math.isclose(abs(factor), 1 / whole, rel_tol=1e-5):
            return f"{'-' if factor < 0 else ''}1/{whole}"
    for root in range(3, 1025):
        if math.isclose(factor, math.sqrt(root), rel_tol=1e-5):
            return f"√{root}"
        if math.isclose(factor, 1 / math.sqrt(root), rel_tol=1e-5):
            return f"1/√{root}"
    return f"{factor:.6g}"


def _factor(ref: Floats, cand: Floats) -> float | None:
    power = product = 0.0
    for r, c in wide_blocks(ref, cand):
        power += float(np.sum(r * r))
        product += float(np.sum(r * c))
    return product / power if power else None


def slice_differs(tables: PairTables) -> Hint | None:
    """Some rows or columns differ, and all others are equal."""
    choices = (
        (tables.equal_rows, tables.cand, tables.ref, "rows"),
        (tables.equal_columns, tables.cand.T, tables.ref.T, "columns"),
    )
    for equal, cand, ref, what in choices:
        count = len(equal) - int(np.count_nonzero(equal))
        if len(equal) < 4 or not 0 < count <= len(equal) // 2:
            continue
        if ref.shape[1] == 1:
            what = "elements"
        places = np.flatnonzero(~equal)
        where = f"{what if count > 1 else what.removesuffix('s')} {_span(places)} of {len(equal)}"
        how = _relation(tables, cand, ref, places) if np.any(cand[places]) else "zero"
        is_, differ = ("is", "differs") if count == 1 else ("are", "differ")
        text = f"{where} {f'{is_} {how}' if how else differ}, all others are equal"
        text += ": a slice left out" if how == "zero" else ""
        return Hint("slice", text, {"first": int(places[0]), "last": int(places[-1]), "count": count})
    return None


def _relation(tables: PairTables, cand: Floats, ref: Floats, places: NDArray[np.int64]) -> str:
    """What differing rows are: the reference's times a factor; empty if that is not known."""
    factor = _factor(ref[places], cand[places])
    if factor is not None and bool(np.all(rows_alike(cand[places], (ref[places] * factor), max(tables.slack, 1e-5)))):
        return f"{_factor_text(factor)} times the reference"
    return ""


def _span(places: NDArray[np.int64]) -> str:
    first, last = int(places[0]), int(places[-1])
    if len(places) == 1:
        return str(first)
    if last - first + 1 == len(places):
        return f"{first} to {last}"
    shown = ", ".join(map(str, places[:4].tolist()))
    return f"{shown}{', …' if len(places) > 4 else ''} ({len(places)})"


def scale_by_rows(tables: PairTables) -> Hint | None:
    """A factor for each row, or for each column."""
    for ref, cand, what in ((tables.ref, tables.cand, "row"), (tables.ref.T, tables.cand.T, "column")):
        if ref.shape[1] < 4 or ref.shape[0] < 2:
            continue
        power = np.einsum("ij,ij->i", ref, ref, dtype=np.float64)
        if not np.all(power):
            continue
        factors = np.einsum("ij,ij->i", ref, cand, dtype=np.float64) / power
        if float(np.abs(factors - 1).max()) < _FIT * max(tables.slack, 1e-5):
            continue  # as good as 1
        made = ref * factors.astype(np.float32)[:, None]
        if tables.fits(made if what == "row" else made.T):
            low, high = float(factors.min()), float(factors.max())
            return Hint(
                "scale", f"each {what} has a factor of its own, {low:.4g} to {high:.4g}", {"factor": [low, high]}
            )
    return None


def scale_by_blocks(tables: PairTables) -> Hint | None:
    """A factor for each block of 128 x 128: the scales of an fp8 checkpoint, left out or used twice."""
    rows, columns = tables.ref.shape
    if rows % _BLOCK or columns % _BLOCK or rows * columns == _BLOCK * _BLOCK:
        return None
    shape = (rows // _BLOCK, _BLOCK, columns // _BLOCK, _BLOCK)
    ref, cand = tables.ref.reshape(shape), tables.cand.reshape(shape)
    power = np.einsum("aibj,aibj->ab", ref, ref, dtype=np.float64)
    if not np.all(power):
        return None
    factors = np.einsum("aibj,aibj->ab", ref, cand, dtype=np.float64) / power
    made = (ref * factors.astype(np.float32)[:, None, :, None]).reshape(rows, columns)
    if not tables.fits(made):
        return None
    low, high = float(factors.min()), float(factors.max())
    text = f"each block of {_BLOCK} x {_BLOCK} has a factor of its own, {low:.4g} to {high:.4g}: its scales"
    return Hint("scale", f"{text} were left out or used twice", {"factor": [low, high]})


def not_loaded(tables: PairTables) -> Hint | None:
    """Nothing in common with the reference: values either look like an initialization, or are other weights."""
    if tables.cand.size < _ENOUGH or np.ptp(tables.ref) == 0:
        return None
    correlation = _correlation(tables.ref, tables.cand)
    if not abs(correlation) < 5 / math.sqrt(tables.cand.size) + 0.01 or has_related_rows(tables.ref, tables.cand):
        return None
    evidence: dict[str, float | int | str | list[int] | list[float]] = {"correlation": correlation}
    part = "" if tables.is_whole else f" in the first {tables.ref.shape[1]} columns, which were looked at"
    if text := _initialization(tables.cand):
        what = "in it," if tables.is_whole else part.strip() + ","
        return Hint("not loaded", f"not loaded: nothing of the reference {what} and {text}", evidence)
    return Hint("other weights", f"nothing in common with the reference's{part}: not loaded, or of another checkpoint",
                evidence)  # fmt: skip


def _correlation(ref: Floats, cand: Floats) -> float:
    means = ref.mean(dtype=np.float64), cand.mean(dtype=np.float64)
    both = ours = theirs = 0.0
    for r, c in wide_blocks(ref, cand):
        both += float(np.sum((r - means[0]) * (c - means[1])))
        ours += float(np.sum((r - means[0]) ** 2))
        theirs += float(np.sum((c - means[1]) ** 2))
    return both / math.sqrt(ours * theirs) if ours * theirs else 0.0


def has_related_rows(ref: Floats, cand: Floats) -> bool:
    """Whether rows or columns of the candidate point like some of the reference's, so that the two are related."""
    for ours, theirs in ((ref, cand), (ref.T, cand.T)):
        if ours.shape[1] < _TELLING:
            continue
        places = np.unique(np.linspace(0, len(theirs) - 1, _ROWS_TRIED).astype(int))
        # Of n random rows with c columns, the nearest has a cosine of about sqrt(2 ln n / c).
        chance = math.sqrt(2 * math.log(max(2, len(ours))) / ours.shape[1])
        if float(np.median(_nearest_cosines(ours, theirs[places]))) > min(0.9, 2 * chance):
            return True
    return False


def _nearest_cosines(every: Floats, some: Floats) -> Floats:
    """For each of some rows, the largest cosine with any of all rows, in either direction."""
    nearest = np.zeros(len(some), np.float32)
    norms = np.linalg.norm(some, axis=1)[:, None]
    for start in range(0, len(every), _ROWS_AT_ONCE):
        known = every[start : start + _ROWS_AT_ONCE]
        lengths = norms * np.linalg.norm(known, axis=1)[None, :]
        cosines = np.divide(some @ known.T, lengths, out=np.zeros(lengths.shape, np.float32), where=lengths > 0)
        np.maximum(nearest, np.abs(cosines).max(axis=1), out=nearest)
    return nearest


def _initialization(values: Floats) -> str | None:
    """How a library would have initialized such values; None if none would."""
    mean = float(values.mean(dtype=np.float64))
    moments = [(float(np.sum((v - mean) ** 2)), float(np.sum((v - mean) ** 4))) for (v,) in wide_blocks(values)]
    second, fourth = (sum(column) / values.size for column in zip(*moments, strict=True))
    std = math.sqrt(second)
    if std == 0 or abs(mean) > 6 * std / math.sqrt(values.size):
        return None
    kurtosis = fourth / std**4
    chance = 6 * math.sqrt(24 / values.size)
    if abs(kurtosis - 1.8) < chance and float(np.abs(values).max()) < 1.75 * std:
        return f"uniform within ±{float(np.abs(values).max()):.4g}, as an initialization is"
    usual = (0.02, 0.01, 1.0, 1 / math.sqrt(max(values.shape[1], 1)))
    close = next((u for u in usual if abs(std - u) < 5 * u / math.sqrt(2 * values.size)), None)
    if abs(kurtosis - 3) < chance and close is not None:
        return f"normal with a deviation of {close:.4g}, as an initialization is"
    return None
