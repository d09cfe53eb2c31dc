"""Kinds recognized by the number format: NaN or infinity on one side only, overflow, an inner cast, the last bits.

A type is recognized by the bits of its mantissa. Values that were rounded to a type lie on its grid, which other values
hardly ever do. And the relative error of rounding ends sharply at half a step, which that of noise does not.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tensordiff.compare.hint import Evidence, Hint
from tensordiff.compare.hint.localized import channel_run
from tensordiff.compare.hint.sample import Floats, Mask, Sample, SampledPair, listed, rms
from tensordiff.dump.dtypes import DType, is_float

_LARGEST = {"float16": 65504.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


def nonfinite(pair: SampledPair) -> Hint | None:
    """NaN or infinity on one side only, and where."""
    sample = pair.rows if pair.rows.nonfinite is not None else pair.across
    if sample.nonfinite is None:
        return None
    ref, cand, apart = sample.nonfinite
    nan, side = _nonfinite_side(ref, cand, apart)
    kind = "nan" if nan else "inf"
    where, evidence = _nonfinite_places(pair, sample, apart)
    evidence |= {"side": side, "elements": int(apart.sum()), "looked_at": apart.size}
    sentence = f"the {side} is {'NaN' if nan else 'infinite'} {where}"
    if not nan and side == "candidate" and (overflowed := _overflowed(ref, apart)):
        sentence += f", just where the reference is beyond what {overflowed} holds"
        evidence["overflow"] = overflowed
    return Hint(kind, sentence, evidence)


def _nonfinite_side(ref: Floats, cand: Floats, apart: Mask) -> tuple[bool, str]:
    """Whether the sides differ in NaN rather than infinity, and which side has more of it."""
    of_ref, of_cand = (~np.isfinite(side) & apart for side in (ref, cand))
    side, values = ("reference", ref) if of_ref.sum() > of_cand.sum() else ("candidate", cand)
    return bool((np.isnan(values) & apart).any()), side


def _nonfinite_places(pair: SampledPair, sample: Sample, apart: Mask) -> tuple[str, Evidence]:
    if apart.all():
        return "everywhere", {"where": "everywhere"}
    by_group, by_token, by_channel = (np.asarray(apart.all(axes)) for axes in ((1, 2), (0, 2), (0, 1)))
    if (apart == by_token[None, :, None]).all():
        tokens = [int(t) for t in sample.tokens[by_token]]
        told = f"in all of {len(tokens)} of {len(sample.tokens)} tokens ({listed(tokens)})"
        return told, {"where": "tokens", "tokens": tokens[:100]}
    is_whole = sample is pair.rows and pair.sees_all_channels
    if is_whole and (apart == by_channel).all() and (run := channel_run(by_channel)):
        head, begin, end = run
        told = f"in channels {begin} to {end - 1} of every token" + (f", head {head}" if head is not None else "")
        return told, {"where": "channels", "channels": [begin, end]}
    if len(by_group) > 1 and (apart == by_group[:, None, None]).all():
        groups = [int(g) for g in np.flatnonzero(by_group)]
        return f"in all of {listed(groups)} of {len(by_group)} leading slices", {"where": "groups", "groups": groups}
    return f"in {int(apart.sum())} of {apart.size} scattered elements", {"where": "scattered"}


def _overflowed(ref: Floats, apart: Mask) -> str:
    """The type whose largest value separates the infinite elements from the others; empty if there is none."""
    inside, outside = np.abs(ref[apart]), np.abs(ref[~apart])
    least, most = inside.min(), outside.max(initial=0.0, where=np.isfinite(outside))
    return next((name for name, top in _LARGEST.items() if most <= 1.01 * top and least >= 0.99 * top), "")


_TYPES = ((2, "float8_e5m2"), (3, "float8_e4m3"), (7, "bfloat16"), (10, "float16 or TF32"))
_ENOUGH = 64
_ENOUGH_FOR_A_BOUND = 512
_MOST = 1 << 16  # elements that are read, since taking bits apart is slow


def _bits(dtype: DType) -> int:
    return int(ml_dtypes.finfo(dtype).nmant)


def _sides(pair: SampledPair) -> tuple[Floats, Floats]:
    """Both sides where neither is zero, limited in number."""
    ref, cand = pair.rows.ref.reshape(-1)[:_MOST], pair.rows.cand.reshape(-1)[:_MOST]
    both = (ref != 0) & (cand != 0)
    return ref[both], cand[both]


def _steps(values: Floats, bits: int) -> Floats:
    """For each value, the distance to the next number of a type with this many mantissa bits."""
    return np.asarray(np.ldexp(1.0, np.frexp(values)[1] - 1 - bits))


def _on_grid(values: Floats, bits: int) -> Mask:
    scaled = np.ldexp(np.frexp(values)[0], bits + 1)
    return np.asarray(scaled == np.rint(scaled))


def _rounded(values: Floats, bits: int) -> Floats:
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(np.ldexp(mantissa, bits + 1)), exponent - bits - 1))


def last_bits(pair: SampledPair) -> Hint | None:
    """Nearly all elements differ by only a step or two of their type: another order of summing, an FMA."""
    if not all(map(is_float, pair.dtypes)) or pair.rows.ref.size < _ENOUGH:
        return None
    bits, name = min((_bits(dtype), dtype.name) for dtype in pair.dtypes)
    ref, cand = _sides(pair)
    error = np.abs(cand - ref)
    if not error.any() or rms(pair.rows.error) > pair.floor * rms(pair.rows.ref):
        return None
    steps = error / _steps(ref, bits)
    most = 2.0 if bits >= 10 else 1.0
    share = float((steps <= most).mean())
    if share < 0.99 or error.max() > 2 * _steps(np.abs(ref).max(), bits):
        return None
    told = f"{share:.4%} of the elements differ by at most {most:.0f} {'steps' if most > 1 else 'step'} of {name}"
    evidence: Evidence = {"type": name, "share": share, "steps": float(steps.max())}
    return Hint("last_bits", f"{told} (order of summing, FMA)", evidence)


def rounded(pair: SampledPair) -> Hint | None:
    """One side was rounded to a smaller type inside."""
    if not all(map(is_float, pair.dtypes)):
        return None
    ref, cand = _sides(pair)
    if len(ref) < _ENOUGH or (ref == cand).all():
        return None
    return _by_grid(pair, ref, cand) or _by_bound(pair, ref, cand)


def _by_grid(pair: SampledPair, ref: Floats, cand: Floats) -> Hint | None:
    """The coarsest grid that holds all of one side but not the other."""
    sides = (("candidate", cand, ref, pair.dtypes[1]), ("reference", ref, cand, pair.dtypes[0]))
    for bits, name in _TYPES:
        for side, values, others, dtype in sides:
            if _bits(dtype) >= bits and _on_grid(values, bits).mean() >= 0.999 and _on_grid(others, bits).mean() <= 0.5:
                return _if_small(bits, name, side, (values, others), _bits(dtype) == bits)
    return None


def _if_small(bits: int, name: str, side: str, sides: tuple[Floats, Floats], is_own: bool) -> Hint | None:
    """The hint if rounding is all of the error; for a side's own type, only if the cast explains every value."""
    values, others = sides
    equal = float((_rounded(others, bits) == values).mean())
    relative = rms(values - others) / rms(others)
    evidence: Evidence = {"type": name, "side": side, "equal_after_cast": equal, "rel_l2": relative}
    other = "reference" if side == "candidate" else "candidate"
    if equal >= 0.99:
        return Hint("rounded", f"the {side} is the {other} cast to {name} ({equal:.4%} of it equal)", evidence)
    if is_own or relative > min(8 * 2.0 ** -(bits + 1), 0.05):
        return None
    told = f"the {side} holds only values of {name}, and the error ({relative:.1e}) is no more than that explains"
    return Hint("rounded", f"{told}: it was computed in {name} inside", evidence)


def _by_bound(pair: SampledPair, ref: Floats, cand: Floats) -> Hint | None:
    """The relative error fills half a step of a type, and ends there."""
    if len(ref) < _ENOUGH_FOR_A_BOUND:
        return None
    relative = np.abs(cand - ref) / np.abs(ref)
    largest, usual = float(relative.max()), rms(relative)
    for bits, name in _TYPES[1:]:
        half = 2.0 ** -(bits + 1)
        is_finer = min(map(_bits, pair.dtypes)) >= bits + 3
        if is_finer and 0.9 * half <= largest <= 1.05 * half and 0.36 * half <= usual <= 0.49 * half:
            told = f"no element differs by more than half a step of {name}, and they fill it: rounded to it inside"
            evidence: Evidence = {"type": name, "largest_rel": largest, "rms_rel": usual, "half_step": half}
            return Hint("rounded", told, evidence)
    return None
