"""Kinds in which the candidate is a simple function of the reference: a factor, a constant, a lost residual.

Each is fitted, taken away, and offered only if hardly anything is left (``Seen.explains``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tensordiff.compare.hint import Evidence, Hint
from tensordiff.compare.hint.sample import LEFT, LEFT_OF_NOISE, Floats, Sample, SampledPair, size
from tensordiff.dump.dtypes import Array, is_float

_HEAD_SIZES = (16, 32, 64, 80, 96, 128, 256)
_LEFT_OF_RESIDUAL = 0.2  # what comes after a lost residual is given other inputs, and differs too
_ROUNDS = 12
_TINY = 1e-300
_ENOUGH = 16  # elements from which a fit of one number says something


def zero(seen: SampledPair) -> Hint | None:
    """The candidate holds nothing but zeros."""
    if any(look.cand.any() for look in (seen.rows, seen.across)) or np.count_nonzero(seen.rows.ref) < _ENOUGH:
        return None
    return Hint("zero", "the candidate is all zeros", {"elements": seen.rows.cand.size})


def constant(seen: SampledPair) -> Hint | None:
    """The candidate holds one value over and over."""
    look = seen.across
    value = look.cand.flat[0]
    if look.cand.size < _ENOUGH or (look.cand != value).any() or (seen.rows.cand != seen.rows.cand.flat[0]).any():
        return None
    if value == 0 or (look.ref == look.ref.flat[0]).all():
        return None
    told = float(value * look.unit)
    return Hint("constant", f"the candidate holds {told:.6g} everywhere", {"value": told})


def scale(seen: SampledPair) -> Hint | None:
    """The candidate is the reference times one factor; a factor of -1 is a flipped sign."""
    look = seen.rows
    if look.ref.size < _ENOUGH or not look.ref.any():
        return None
    factor = _factor(look.ref, look.cand)
    rest = look.cand - factor * look.ref
    if factor == 0 or not seen.explains(rest, look):
        return None
    varies = size(rest) > seen.floor * size(look.cand) and size(_scaled(look, (2,))[0]) < 0.3 * size(rest)
    if varies and (finer := scale_per_token(seen)):
        return finer
    return _scale_hint(factor, size(rest) / size(look.cand), seen.channels)


def _scale_hint(factor: float, left: float, channels: int) -> Hint:
    evidence: Evidence = {"factor": factor, "residual": left}
    if abs(factor + 1) < 0.02:
        return Hint("sign", f"the sign is flipped; {left:.1e} is left of the difference then", evidence)
    if named := _named(factor, channels):
        evidence["named"] = named
    told = f"{factor:.6g}" + (f" = {named}" if named else "")
    return Hint("scale", f"the reference times {told}; {left:.1e} is left of the difference then", evidence)


def _factor(ref: Floats, cand: Floats) -> float:
    return float(np.vdot(ref, cand) / np.vdot(ref, ref))


def _named(factor: float, channels: int) -> str:
    """A factor that models are built with, by its name."""
    known = {f"1/sqrt({n})": n**-0.5 for n in (*_HEAD_SIZES, channels)}
    known |= {f"sqrt({n})": math.sqrt(n) for n in (*_HEAD_SIZES, channels)}
    return next((name for name, value in known.items() if abs(abs(factor) / value - 1) < 2e-3 and value != 1), "")


def bias(seen: SampledPair) -> Hint | None:
    """The candidate is the reference plus one constant."""
    look = seen.rows
    if look.ref.size < _ENOUGH:
        return None
    added = float(look.error.mean())
    rest = look.error - added
    if not _explains_what_varies(seen, rest, look, (0, 1, 2)):
        return None
    told, left = added * look.unit, size(rest) / abs(added)
    sentence = f"the reference plus {told:.6g}; {left:.1e} of the difference is left then"
    return Hint("bias", sentence, {"bias": told, "residual": left})


def bias_per_channel(seen: SampledPair) -> Hint | None:
    """Every token is off by the same vector: a bias that one side has and the other has not."""
    look = seen.rows
    if math.prod(look.ref.shape[:2]) < 3 or seen.channels < 2:
        return None
    added = look.error.mean((0, 1))
    rest = look.error - added
    if not _explains_what_varies(seen, rest, look, (0, 1)):
        return None
    left, channels = size(rest) / size(added), _count(added)
    told = f"the same vector is added to every token, in {channels} of {seen.channels} channels (a bias)"
    evidence: Evidence = {"residual": left, "channels": channels, "bias_rms": size(added) * look.unit}
    return Hint("bias_per_channel", f"{told}; {left:.1e} of the difference is left then", evidence)


def _explains_what_varies(seen: SampledPair, rest: Floats, look: Sample, axes: tuple[int, ...]) -> bool:
    """Whether little is left even against what varies along some axes; what is the same there fits any constant."""
    if not seen.explains(rest, look):
        return False
    varies = min(size(side - side.mean(axes, keepdims=True)) for side in (look.ref, look.cand))
    return size(rest) <= max(LEFT * varies, min(LEFT_OF_NOISE * varies, seen.noise(look)))


def _count(values: Floats) -> int:
    return int(np.count_nonzero(np.abs(values) > 1e-3 * np.abs(values).max()))


def scale_per_token(seen: SampledPair) -> Hint | None:
    """Each token is scaled by its own factor: a norm's epsilon, or what a norm divides by."""
    tokens = seen.rows.ref.shape[1]
    if tokens < 2 or seen.channels < 2 or (seen.channels < 16 and tokens * (seen.channels - 1) < _ENOUGH):
        return None
    rest, factors = _scaled(seen.rows, (2,))
    if not seen.explains(rest, seen.rows):
        rest, factors = _scaled_around(seen.rows)
        if seen.channels < 16 or tokens < 4 or not (seen.explains(rest, seen.rows) and _is_one_way(factors - 1)):
            return None
    if _is_one_factor(seen.rows, rest, factors):
        return None
    return _scaled_hint("token", "epsilon or kind of a norm, or a gate", factors, rest, seen.rows)


def _is_one_factor(look: Sample, rest: Floats, factors: Floats) -> bool:
    """Whether one factor for all tokens does as well, but for noise."""
    alike = float(np.ptp(factors)) < 0.1 * abs(float(factors.mean()) - 1)
    return alike and size(look.cand - _factor(look.ref, look.cand) * look.ref) < 3 * size(rest)


def _is_one_way(by: Floats) -> bool:
    """Whether all tokens are scaled up, or all down, each by as much as an epsilon may, and not all alike."""
    sizes = np.abs(by)
    return bool(((by > 0).all() or (by < 0).all()) and sizes.min() > 0.02 * sizes.max() > 0.02 * 1.5 * sizes.min())


def _scaled_around(look: Sample) -> tuple[Floats, Floats]:
    """The same, where what is scaled is the reference less one vector, a norm's bias: error = by (ref - vector)."""
    vector = np.zeros(look.ref.shape[-1])
    for _ in range(_ROUNDS):
        moved = look.ref - vector
        by = (look.error * moved).sum(2, keepdims=True) / np.maximum(np.square(moved).sum(2, keepdims=True), _TINY)
        vector = (by * (by * look.ref - look.error)).sum((0, 1)) / max(float(np.square(by).sum()), _TINY)
    return look.error - by * (look.ref - vector), 1 + by


def scale_per_channel(seen: SampledPair) -> Hint | None:
    """Each channel is scaled by its own factor: a norm's weight."""
    if math.prod(seen.rows.ref.shape[:2]) < 8 or seen.channels < 2 or not all(map(is_float, seen.dtypes)):
        return None
    rest, factors = _scaled(seen.rows, (0, 1))
    if not _explains_what_varies(seen, rest, seen.rows, (0, 1)):
        rest, factors = _line(seen.rows)
        if math.prod(seen.rows.ref.shape[:2]) < 12 or not _explains_what_varies(seen, rest, seen.rows, (0, 1)):
            return None
    if (factors == 0).any() or float(np.ptp(factors)) < 0.01:
        return None  # lost, or a constant: those are other kinds
    return _scaled_hint("channel", "a norm's weight, or a quantizer's scale", factors, rest, seen.rows)


def _line(look: Sample) -> tuple[Floats, Floats]:
    """What is left when each channel has a factor and a constant of its own, as a norm with a bias has."""
    ref, cand = (side - side.mean((0, 1)) for side in (look.ref, look.cand))
    spread = np.square(ref).sum((0, 1))
    factors = np.divide((ref * cand).sum((0, 1)), spread, where=spread > 0, out=np.ones_like(spread))
    return cand - factors * ref, factors


def _scaled(look: Sample, axes: tuple[int, ...]) -> tuple[Floats, Floats]:
    """What is left when the reference is scaled by factors fitted over some axes, and the factors."""
    of_ref = np.square(look.ref).sum(axes, keepdims=True)
    both = (look.ref * look.cand).sum(axes, keepdims=True)
    factors = np.divide(both, of_ref, where=of_ref > 0, out=np.ones_like(both))
    return look.cand - factors * look.ref, factors


def _scaled_hint(what: str, why: str, factors: Floats, rest: Floats, look: Sample) -> Hint:
    low, high, left = float(factors.min()), float(factors.max()), size(rest) / size(look.error)
    told = f"each {what} is scaled by its own factor, {low:.6g} to {high:.6g} ({why})"
    evidence: Evidence = {"lowest": low, "highest": high, "residual": left}
    return Hint(f"scale_per_{what}", f"{told}; {left:.1e} of the difference is left then", evidence)


def residual(seen: SampledPair, context: Mapping[str, Array]) -> Hint | None:
    """The candidate is off by another tensor, or is that tensor."""
    return _residual(seen, context, LEFT)


def about_a_residual(seen: SampledPair, context: Mapping[str, Array]) -> Hint | None:
    """The same where more is left, for want of anything better."""
    return _residual(seen, context, _LEFT_OF_RESIDUAL)


def _residual(seen: SampledPair, context: Mapping[str, Array], left: float) -> Hint | None:
    others = {name: other for name, array in context.items() if (other := seen.beside(array)) is not None}
    for name, other in others.items():
        if other.any() and (found := _off_by(seen, seen.rows, other, name, left)):
            return found
    found_scaled = (_scaled_term(seen, seen.rows, other, name) for name, other in others.items() if other.any())
    return next(filter(None, found_scaled), None)


def _scaled_term(seen: SampledPair, look: Sample, other: Floats, name: str) -> Hint | None:
    """The error is a factor times another tensor: it was scaled before it was added."""
    factor = _factor(other, look.error)
    rest = look.error - factor * other
    if not 0.05 <= abs(factor) <= 20 or not seen.explains(rest, look) or not _is_no_scale(seen, look.ref, other):
        return None
    left = size(rest) / size(look.error)
    told = f"the reference plus {factor:.4g} times {name}: it was added with another scale"
    evidence: Evidence = {"tensor": name, "factor": factor, "residual": left}
    return Hint("residual_scaled", f"{told}; {left:.1e} of the difference is left then", evidence)


def _off_by(seen: SampledPair, look: Sample, other: Floats, name: str, most: float) -> Hint | None:
    tries = (
        ("residual_lost", look.error + other, f"the reference less {name}: it was not added", most),
        ("residual_twice", look.error - other, f"the reference plus {name}: it was added once more", most),
        ("passed_through", look.cand - other, f"the candidate is {name}, unchanged", LEFT),
    )
    for kind, rest, told, left_over in tries:
        if seen.explains(rest, look, left_over) and _is_no_scale(seen, look.ref, other):
            left = size(rest) / size(look.error)
            evidence: Evidence = {"tensor": name, "residual": left}
            return Hint(kind, f"{told}; {left:.1e} of the difference is left then", evidence)
    return None


def _is_no_scale(seen: SampledPair, ref: Floats, other: Floats) -> bool:
    """Whether the other tensor is something else than the reference itself, times a factor."""
    if not ref.any():
        return False
    return size(other - _factor(ref, other) * ref) > max(0.1, seen.floor) * size(other)
