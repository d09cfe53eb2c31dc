"""Kinds in which the candidate is a simple function of the reference: a factor, a constant, a lost residual.

Each function is fitted and subtracted, and the hint is given only if hardly anything is left
(``SampledPair.explains``).
"""

from __future__ import annotations

import math

import numpy as np

from tensordiff.align.by_value import HEAD_SIZES
from tensordiff.compare.hint import Evidence, Hint, explained
from tensordiff.compare.hint.sample import UNEXPLAINED, UNEXPLAINED_NOISE, Floats, Sample, SampledPair, rms
from tensordiff.dump.dtypes import is_float

_UNEXPLAINED_RESIDUAL = 0.2  # larger, since parts after a lost residual get other inputs and differ as well
_ROUNDS = 12
_TINY = 1e-300
_ENOUGH = 16  # elements needed to fit a single number


def zero(pair: SampledPair) -> Hint | None:
    """The candidate holds only zeros."""
    if any(sample.cand.any() for sample in (pair.rows, pair.across)) or np.count_nonzero(pair.rows.ref) < _ENOUGH:
        return None
    return Hint("zero", "the candidate is all zeros", {"elements": pair.rows.cand.size})


def constant(pair: SampledPair) -> Hint | None:
    """The candidate holds a single value everywhere."""
    sample = pair.across
    value = sample.cand.flat[0]
    if sample.cand.size < _ENOUGH or (sample.cand != value).any() or (pair.rows.cand != pair.rows.cand.flat[0]).any():
        return None
    if value == 0 or (sample.ref == sample.ref.flat[0]).all():
        return None
    told = float(value * sample.unit)
    return Hint("constant", f"the candidate holds {told:.6g} everywhere", {"value": told})


def scale(pair: SampledPair) -> Hint | None:
    """The candidate is the reference times one factor; a factor of -1 is a flipped sign."""
    sample = pair.rows
    if sample.ref.size < _ENOUGH or not sample.ref.any():
        return None
    factor = _factor(sample.ref, sample.cand)
    rest = sample.cand - factor * sample.ref
    if factor == 0 or not pair.explains(rest, sample):
        return None
    varies = rms(rest) > pair.floor * rms(sample.cand) and rms(_fit_scale(sample, (2,))[0]) < 0.3 * rms(rest)
    if varies and (finer := scale_per_token(pair)):
        return finer
    return _scale_hint(factor, rms(rest) / rms(sample.cand), pair.channels)


def _scale_hint(factor: float, left: float, channels: int) -> Hint:
    evidence: Evidence = {"factor": factor, "residual": left}
    if abs(factor + 1) < 0.02:
        return Hint("sign", f"the sign is flipped; {explained(left)}", evidence)
    if named := _named(factor, channels):
        evidence["named"] = named
    told = f"{factor:.6g}" + (f" = {named}" if named else "")
    return Hint("scale", f"the reference times {told}; {explained(left)}", evidence)


def _factor(ref: Floats, cand: Floats) -> float:
    return float(np.vdot(ref, cand) / np.vdot(ref, ref))


def _named(factor: float, channels: int) -> str:
    """The name of a factor that is common in models; empty for any other factor."""
    known = {f"1/sqrt({n})": n**-0.5 for n in (*HEAD_SIZES, channels)}
    known |= {f"sqrt({n})": math.sqrt(n) for n in (*HEAD_SIZES, channels)}
    return next((name for name, value in known.items() if abs(abs(factor) / value - 1) < 2e-3 and value != 1), "")


def bias(pair: SampledPair) -> Hint | None:
    """The candidate is the reference plus one constant."""
    sample = pair.rows
    if sample.ref.size < _ENOUGH:
        return None
    added = float(sample.error.mean())
    rest = sample.error - added
    if not _explains_what_varies(pair, rest, sample, (0, 1, 2)):
        return None
    told, left = added * sample.unit, rms(rest) / abs(added)
    sentence = f"the reference plus {told:.6g}; {explained(left)}"
    return Hint("bias", sentence, {"bias": told, "residual": left})


def bias_per_channel(pair: SampledPair) -> Hint | None:
    """Every token is off by the same vector: a bias that only one side has."""
    sample = pair.rows
    if math.prod(sample.ref.shape[:2]) < 3 or pair.channels < 2:
        return None
    added = sample.error.mean((0, 1))
    rest = sample.error - added
    if not _explains_what_varies(pair, rest, sample, (0, 1)):
        return None
    left, channels = rms(rest) / rms(added), _count(added)
    told = f"the same vector is added to every token, in {channels} of {pair.channels} channels (a bias)"
    evidence: Evidence = {"residual": left, "channels": channels, "bias_rms": rms(added) * sample.unit}
    return Hint("bias_per_channel", f"{told}; {explained(left)}", evidence)


def _explains_what_varies(pair: SampledPair, rest: Floats, sample: Sample, axes: tuple[int, ...]) -> bool:
    """Whether little is left even compared with the variation along some axes; a constant fits anything that does not
    vary."""
    if not pair.explains(rest, sample):
        return False
    varies = min(rms(side - side.mean(axes, keepdims=True)) for side in (sample.ref, sample.cand))
    return rms(rest) <= max(UNEXPLAINED * varies, min(UNEXPLAINED_NOISE * varies, pair.noise(sample)))


def _count(values: Floats) -> int:
    return int(np.count_nonzero(np.abs(values) > 1e-3 * np.abs(values).max()))


def scale_per_token(pair: SampledPair) -> Hint | None:
    """Each token is scaled by its own factor: a norm's epsilon, or the value that a norm divides by."""
    tokens = pair.rows.ref.shape[1]
    if tokens < 2 or pair.channels < 2 or (pair.channels < 16 and tokens * (pair.channels - 1) < _ENOUGH):
        return None
    rest, factors = _fit_scale(pair.rows, (2,))
    if not pair.explains(rest, pair.rows):
        rest, factors = _fit_scale_around_vector(pair.rows)
        if pair.channels < 16 or tokens < 4 or not (pair.explains(rest, pair.rows) and _is_one_way(factors - 1)):
            return None
    if _is_one_factor(pair.rows, rest, factors):
        return None
    return _scale_per_axis_hint("token", "epsilon or kind of a norm, or a gate", factors, rest, pair.rows)


def _is_one_factor(sample: Sample, rest: Floats, factors: Floats) -> bool:
    """Whether one factor for all tokens fits as well, up to noise."""
    alike = float(np.ptp(factors)) < 0.1 * abs(float(factors.mean()) - 1)
    return alike and rms(sample.cand - _factor(sample.ref, sample.cand) * sample.ref) < 3 * rms(rest)


def _is_one_way(by: Floats) -> bool:
    """Whether all tokens are scaled up, or all down, by different amounts that an epsilon explains."""
    sizes = np.abs(by)
    return bool(((by > 0).all() or (by < 0).all()) and sizes.min() > 0.02 * sizes.max() > 0.02 * 1.5 * sizes.min())


def _fit_scale_around_vector(sample: Sample) -> tuple[Floats, Floats]:
    """Fit a factor per token to the reference minus one vector (a norm's bias); returns the rest and the factors.

    The model is error = by * (ref - vector), with factors 1 + by.
    """
    vector = np.zeros(sample.ref.shape[-1])
    for _ in range(_ROUNDS):
        moved = sample.ref - vector
        by = (sample.error * moved).sum(2, keepdims=True) / np.maximum(np.square(moved).sum(2, keepdims=True), _TINY)
        vector = (by * (by * sample.ref - sample.error)).sum((0, 1)) / max(float(np.square(by).sum()), _TINY)
    return sample.error - by * (sample.ref - vector), 1 + by


def scale_per_channel(pair: SampledPair) -> Hint | None:
    """Each channel is scaled by its own factor: a norm's weight."""
    if math.prod(pair.rows.ref.shape[:2]) < 8 or pair.channels < 2 or not all(map(is_float, pair.dtypes)):
        return None
    rest, factors = _fit_scale(pair.rows, (0, 1))
    why = "a norm's weight, or a quantizer's scale"
    if not _explains_what_varies(pair, rest, pair.rows, (0, 1)):
        rest, factors = _fit_scale_and_bias(pair.rows)
        why = "and moved by its own number: weight and bias of a norm, or a modulation"
        if math.prod(pair.rows.ref.shape[:2]) < 12 or not _explains_what_varies(pair, rest, pair.rows, (0, 1)):
            return None
    if (factors == 0).any() or float(np.ptp(factors)) < 0.01:
        return None  # a lost channel or a constant is another kind
    return _scale_per_axis_hint("channel", why, factors, rest, pair.rows)


def _fit_scale_and_bias(sample: Sample) -> tuple[Floats, Floats]:
    """Fit a factor and a constant per channel, as in a norm with a bias; returns the rest and the factors."""
    ref, cand = (side - side.mean((0, 1)) for side in (sample.ref, sample.cand))
    spread = np.square(ref).sum((0, 1))
    factors = np.divide((ref * cand).sum((0, 1)), spread, where=spread > 0, out=np.ones_like(spread))
    return cand - factors * ref, factors


def _fit_scale(sample: Sample, axes: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Fit factors of the reference, one for all of ``axes``; returns the rest and the factors."""
    of_ref = np.square(sample.ref).sum(axes, keepdims=True)
    both = (sample.ref * sample.cand).sum(axes, keepdims=True)
    factors = np.divide(both, of_ref, where=of_ref > 0, out=np.ones_like(both))
    return sample.cand - factors * sample.ref, factors


def _scale_per_axis_hint(what: str, why: str, factors: Floats, rest: Floats, sample: Sample) -> Hint:
    low, high, left = float(factors.min()), float(factors.max()), rms(rest) / rms(sample.error)
    told = f"each {what} is scaled by its own factor, {low:.6g} to {high:.6g} ({why})"
    evidence: Evidence = {"lowest": low, "highest": high, "residual": left}
    return Hint(f"scale_per_{what}", f"{told}; {explained(left)}", evidence)


def residual(pair: SampledPair) -> Hint | None:
    """The candidate is off by another tensor, or equals that tensor."""
    return _residual(pair, UNEXPLAINED)


def residual_roughly(pair: SampledPair) -> Hint | None:
    """Like ``residual``, but with more left unexplained; tried as a last resort."""
    return _residual(pair, _UNEXPLAINED_RESIDUAL)


def _residual(pair: SampledPair, left: float) -> Hint | None:
    others = {name: other for name, array in pair.context.near.items() if (other := pair.rows_of(array)) is not None}
    for name, other in others.items():
        if other.any() and (hint := _residual_hint(pair, pair.rows, other, name, left)):
            return hint
    scaled_hints = (
        _scaled_residual_hint(pair, pair.rows, other, name) for name, other in others.items() if other.any()
    )
    return next(filter(None, scaled_hints), None)


def _scaled_residual_hint(pair: SampledPair, sample: Sample, other: Floats, name: str) -> Hint | None:
    """The error is a factor times another tensor, which was scaled before it was added."""
    factor = _factor(other, sample.error)
    rest = sample.error - factor * other
    if (
        not 0.05 <= abs(factor) <= 20
        or not pair.explains(rest, sample)
        or not _is_other_tensor(pair, sample.ref, other)
    ):
        return None
    left = rms(rest) / rms(sample.error)
    told = f"the reference plus {factor:.4g} times {name}: it was added with another scale"
    evidence: Evidence = {"tensor": name, "factor": factor, "residual": left}
    return Hint("residual_scaled", f"{told}; {explained(left)}", evidence)


def _residual_hint(pair: SampledPair, sample: Sample, other: Floats, name: str, unexplained: float) -> Hint | None:
    tries = (
        ("residual_lost", sample.error + other, f"the reference less {name}: it was not added", unexplained),
        ("residual_twice", sample.error - other, f"the reference plus {name}: it was added once more", unexplained),
        ("passed_through", sample.cand - other, f"the candidate is {name}, unchanged", UNEXPLAINED),
    )
    for kind, rest, told, left_over in tries:
        if pair.explains(rest, sample, left_over) and _is_other_tensor(pair, sample.ref, other):
            left = rms(rest) / rms(sample.error)
            evidence: Evidence = {"tensor": name, "residual": left}
            return Hint(kind, f"{told}; {explained(left)}", evidence)
    return None


def _is_other_tensor(pair: SampledPair, ref: Floats, other: Floats) -> bool:
    """Whether the other tensor is more than a multiple of the reference itself."""
    if not ref.any():
        return False
    return rms(other - _factor(ref, other) * ref) > max(0.1, pair.floor) * rms(other)
