"""Kinds recognized by where the error is: some tokens, one head, a block of channels, one expert, a trend over tokens.

A position is right if its error is no more than rounding, or no more than a fiftieth of the worst position's and well
within what healthy layers show. It is wrong if its error is five times that, on a good part of its elements. If any
position is neither, no hint is given.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tensordiff.align.by_value import HEAD_SIZES
from tensordiff.compare.hint import Evidence, Hint
from tensordiff.compare.hint.parts import batch_rows
from tensordiff.compare.hint.sample import Floats, Mask, Sample, SampledPair, listed, rms, rms_along
from tensordiff.dump.dtypes import Array

_ALL_BUT_ONE = ("all_but_first", "all_but_last")
_BY_NO_CHANCE = 12.0
"""Required -log of the probability that errors are in just these places by chance."""
_TOO_FEW = 4
"""Wrong elements in a token below which its error may be chance."""
_FEWEST_RIGHT = 4
"""Right tokens needed, in types of few bits, to tell where the wrong ones begin."""
_FEW_BITS = 1e-4
"""Unit of rounding from which the quietest places, rather than the floor, define what rounding is."""
_RANKED = 8
"""Tokens needed to speak of a trend."""
_RISING = 0.8
"""Rank correlation of error and position that is a trend."""
_BARELY_RISING = 0.35
"""Smaller rank correlation that is required where the hint does not claim a trend."""
_FEW_CHANNELS = 16
"""Weights of experts have fewer channels; their order may differ for a token that is right."""


class _AxisErrors(NamedTuple):
    """The error at each position of an axis, and which positions are clearly right and clearly wrong."""

    sizes: Floats
    right: Mask
    wrong: Mask
    shares: Floats
    """The share of elements that are off, at each position."""
    elements: int
    """The number of elements at each position."""
    limit: float
    """The largest error of a right position."""

    @property
    def are_told_apart(self) -> bool:
        """Whether every position is right or wrong, and too many elements are off for that to be chance."""
        if not ((self.right | self.wrong).all() and self.right.any() and self.wrong.any()):
            return False
        off = float(self.shares[self.wrong].sum()) * self.elements
        return -off * math.log(self.wrong.mean()) >= _BY_NO_CHANCE


def _along(pair: SampledPair, ref: Floats, error: Floats, axis: int, *, is_strict: bool = False) -> _AxisErrors:
    """Errors along an axis, each relative to the reference there or, if that is larger, to part of its median.

    If ``is_strict``, right places must be about as right as the best one, since a bug may be small, or below rounding,
    at some places.
    """
    axes = tuple(a for a in range(ref.ndim) if a != axis)
    own = rms_along(ref, axes)
    usual = np.maximum(own, 0.3 * np.median(own))
    sizes = np.divide(
        rms_along(error, axes), usual, where=usual > 0, out=np.where(rms_along(error, axes) > 0, np.inf, 0.0)
    )
    limit = max(pair.quiet, 3 * pair.context.carried, min(0.02 * float(sizes.max()), pair.healthy / 3))
    if is_strict:
        least = max(float(sizes.min(initial=math.inf)), pair.unit / 2)
        limit = min(limit, max((2.5 if pair.unit > _FEW_BITS else 10.0) * least, 2 * pair.context.carried))
    shape = [1] * ref.ndim
    shape[axis] = -1
    shares = np.asarray((np.abs(error) > (limit * usual).reshape(shape)).mean(axes))
    elements = ref.size // len(sizes)
    return _AxisErrors(
        sizes=sizes, right=sizes <= limit, wrong=(sizes > 5 * limit) & (shares >= 0.1), shares=shares,
        elements=elements, limit=limit,
    )  # fmt: skip


def _wrong_tokens(pair: SampledPair) -> Mask | None:
    """Which tokens are wrong, if each is clearly right or wrong."""
    sample = pair.rows
    ref, error = (side.reshape(1, -1, pair.channels) for side in (sample.ref, sample.error))
    errors = _along(pair, ref, error, 1)
    return errors.wrong if errors.are_told_apart else None


def tokens(pair: SampledPair) -> Hint | None:
    """Only some tokens are wrong: one, the first, the last, all from one on, all up to one."""
    hint = _some_tokens(pair, _along(pair, pair.across.ref, pair.across.error, 1, is_strict=True))
    return None if hint is None or hint.kind in _ALL_BUT_ONE else hint


def all_but_one(pair: SampledPair) -> Hint | None:
    """All tokens except the first, or the last, are wrong. Tried after ``position``, which is more specific."""
    hint = from_an_edge(pair)
    return hint if hint is not None and hint.kind in _ALL_BUT_ONE else None


def from_an_edge(pair: SampledPair) -> Hint | None:
    """All right tokens are at one end. Tried late, since not all other tokens need to be clearly wrong."""
    return _some_tokens(pair, _at_an_edge(pair, _along(pair, pair.across.ref, pair.across.error, 1, is_strict=True)))


def _some_tokens(pair: SampledPair, errors: _AxisErrors) -> Hint | None:
    sample = pair.across
    if pair.tokens < 2 or not errors.are_told_apart or pair.context.are_tokens_of_expert:
        return None
    wrong = sample.tokens[errors.wrong]
    named = _name_tokens(pair, sample, errors.wrong)
    if named is None or (named[0] in ("from_token", "up_to_token") and not _has_edge(pair, errors)):
        return None
    if named[0] == "all_but_last" and _rank_correlation(errors.sizes[:-1]) > -_BARELY_RISING:
        return None  # without a mask the first tokens are most wrong; a single right token may be chance
    evidence: Evidence = {
        "tokens": [int(t) for t in wrong[:100]], "of": pair.tokens, "axis": max(0, len(pair.shape) - 2),
        "worst_wrong": float(errors.sizes[errors.wrong].max()), "worst_right": float(errors.sizes[errors.right].max()),
    }  # fmt: skip
    rest = f"the others differ by {evidence['worst_right']:.1e} at most"
    return Hint(named[0], f"{named[1]}; {rest}", evidence)


def later_tokens(pair: SampledPair) -> Hint | None:
    """In few bits, the first token is right and most others are not, but where the error begins cannot be told.

    Reported only if the right tokens are at the beginning, and the error there is no more than rounding.
    """
    sample = pair.across
    if pair.unit <= _FEW_BITS or len(sample.tokens) < _RANKED or pair.context.are_tokens_of_expert:
        return None
    errors = _along(pair, sample.ref, sample.error, 1)
    first, others = float(errors.sizes[0]), errors.sizes[1:]
    usual, third = float(np.median(others)), max(1, len(others) // 3)
    if not math.isfinite(usual) or first > max(2.5 * pair.unit, 1.2 * pair.context.carried):
        return None
    late = others[third:]
    is_late_wrong = float((late > 2 * first).mean()) >= 0.9 and float(late.mean()) >= 1.3 * float(others[:third].mean())
    if usual < max(5 * first, pair.floor) or not is_late_wrong or _rank_correlation(others) < _BARELY_RISING:
        return None
    told = f"the first token is right ({first:.1e}) and most others are not ({usual:.1e}), of {pair.of_tokens()}"
    why = "from which on cannot be told, it begins below rounding (attention: rope, scores, a mask)"
    evidence: Evidence = {"right": [0], "axis": max(0, len(pair.shape) - 2), "at_first": first, "usual": usual}
    return Hint("later_tokens", f"{told}; {why}", evidence)


def scattered_tokens(pair: SampledPair) -> Hint | None:
    """Scattered tokens are wrong and all others right: the error depends on the token, not on its position.

    Attention would spread such an error to all later tokens. Tried after the more specific kinds.
    """
    if pair.groups != 1 or pair.tokens < _RANKED or pair.channels < _FEW_CHANNELS or pair.context.are_tokens_of_expert:
        return None
    errors = _along(pair, pair.across.ref, pair.across.error, 1, is_strict=True)
    if pair.unit > _FEW_BITS:
        errors = _split(errors)
    if not errors.are_told_apart or errors.wrong.sum() < 2 or errors.right.sum() < 2:
        return None
    if pair.unit <= _FEW_BITS and not _has_edge(pair, errors):
        return None
    if _name_tokens(pair, pair.across, errors.wrong) is not None:
        return None
    at = pair.across.tokens[errors.wrong]
    evidence: Evidence = {
        "tokens": [int(t) for t in at], "of": pair.tokens, "axis": max(0, len(pair.shape) - 2),
        "worst_wrong": float(errors.sizes[errors.wrong].max()), "worst_right": float(errors.sizes[errors.right].max()),
    }  # fmt: skip
    told = f"{len(at)} of {pair.of_tokens()} tokens are wrong, here and there ({listed(at)})"
    why = "it depends on the token, not on its position (the experts it is sent to, its embedding)"
    rest = f"the others differ by {evidence['worst_right']:.1e} at most"
    return Hint("scattered_tokens", f"{told}, and {rest}; {why}", evidence)


def _has_edge(pair: SampledPair, errors: _AxisErrors) -> bool:
    """Whether the last right token is clearly right; an error may begin small, and below rounding."""
    if pair.unit > _FEW_BITS:
        return int(errors.right.sum()) >= _FEWEST_RIGHT
    return float(errors.sizes[errors.right].max()) <= max(pair.quiet, 3 * pair.context.carried)


def _at_an_edge(pair: SampledPair, errors: _AxisErrors) -> _AxisErrors:
    """If all right positions are at one end, count the others as wrong if most of them clearly are."""
    off = ~errors.right
    count = int(off.sum())
    is_run = bool(count) and bool(off[-count:].all() or off[:count].all())
    if (
        errors.are_told_apart
        or not is_run
        or count < 3
        or (pair.unit > _FEW_BITS and count < len(off) - 1 and not _steps_up(errors))
        or not (errors.wrong[off].mean() > 0.6 or _is_first_alone(errors))
        or errors.shares[off].min() < 0.05
    ):
        return errors
    return errors._replace(wrong=off)


def _is_first_alone(errors: _AxisErrors) -> bool:
    """Whether only the first position is right, and all others are several times, most of them many times, further
    off."""
    first, others = float(errors.sizes[0]), errors.sizes[1:]
    return bool(errors.right[0] and others.min() >= 3 * first > 0 and np.median(others) >= 10 * first)


def _steps_up(errors: _AxisErrors) -> bool:
    """Whether the right positions are evenly right, and all others are far above them from the first one on.

    In few bits, an error that begins small is below rounding in the first affected tokens; then there is no step.
    """
    right, off = errors.sizes[errors.right], errors.sizes[~errors.right]
    if len(right) < 2 * _FEWEST_RIGHT:
        return False
    next_to = off[0] if errors.right[0] else off[-1]
    most = float(right.max())
    return bool(next_to >= 5 * most and off.min() > most and np.median(off) >= 10 * most)


def _name_tokens(pair: SampledPair, sample: Sample, wrong: Mask) -> tuple[str, str] | None:
    at = sample.tokens[wrong]
    first, last, of = int(at[0]), int(at[-1]), pair.of_tokens()
    is_suffix, is_prefix = bool(wrong[-len(at) :].all()), bool(wrong[: len(at)].all())
    if len(at) == 1:
        kind = "first_token" if first == 0 else "last_token" if first == pair.tokens - 1 else "one_token"
        word = {"first_token": "the first token", "last_token": "the last token"}.get(kind, f"token {first}")
        return kind, f"only {word} of {of} is wrong"
    if is_suffix and wrong[1:].all():
        return "all_but_first", f"every token but the first is wrong, of {of} (attention: rope, scores, a mask)"
    if is_suffix:
        return "from_token", f"right before token {first}, wrong from there on (of {of} tokens)"
    if is_prefix and wrong[:-1].all():
        return "all_but_last", f"every token but the last is wrong, of {of} (a causal mask that one side lacks)"
    if is_prefix:
        return "up_to_token", f"wrong up to token {last}, right after it (of {of} tokens)"
    return None


def channels(pair: SampledPair) -> Hint | None:
    """Only one head, or one block of neighbouring channels, is wrong."""
    sample = pair.rows
    if pair.channels < 8 or not pair.sees_all_channels:
        return None
    if empty := _nothing_in_a_block(pair):
        return empty
    errors = _along(pair, sample.ref, sample.error, 2)
    if not errors.are_told_apart or (run := channel_run(errors.wrong)) is None:
        return None
    head, begin, end = run
    if end - begin > pair.channels // 2 or (end - begin) * math.prod(sample.ref.shape[:2]) < 4:
        return None
    evidence: Evidence = {
        "channels": [begin, end], "of": pair.channels, "axis": max(0, len(pair.shape) - 1),
        "worst_wrong": float(errors.sizes[errors.wrong].max()), "worst_right": float(errors.sizes[errors.right].max()),
    }  # fmt: skip
    rest = f"the others differ by {evidence['worst_right']:.1e} at most"
    if head is None:
        told = f"channel {begin} is" if end - begin == 1 else f"channels {begin} to {end - 1} are"
        return Hint("channel_block", f"only {told} wrong, of {pair.channels}; {rest}", evidence)
    evidence |= {"head": head, "heads": pair.channels // (end - begin)}
    told = f"only head {head} of {evidence['heads']} (channels {begin} to {end - 1}) is wrong"
    return Hint("one_head", f"{told}; {rest}", evidence)


def _nothing_in_a_block(pair: SampledPair) -> Hint | None:
    """A block of channels is all zeros, which rounding cannot explain."""
    sample = pair.rows
    nothing = np.asarray(~sample.cand.any((0, 1)) & sample.ref.any((0, 1)))
    run = channel_run(nothing)
    if run is None or math.prod(sample.ref.shape[:2]) < 2 or rms(sample.error[..., ~nothing]) > 0.5 * rms(sample.error):
        return None
    head, begin, end = run
    evidence: Evidence = {"channels": [begin, end], "of": pair.channels, "axis": max(0, len(pair.shape) - 1)}
    where = f"channels {begin} to {end - 1} of {pair.channels}"
    if head is None:
        return Hint("channel_block", f"{where} are all zeros in the candidate", evidence)
    evidence |= {"head": head, "heads": pair.channels // (end - begin)}
    return Hint("one_head", f"head {head} of {evidence['heads']} ({where}) is all zeros in the candidate", evidence)


def channel_run(wrong: Mask) -> tuple[int | None, int, int] | None:
    """The head (if it is one), begin and end of the only run of channels in a mask; None if there is not exactly
    one."""
    at = np.flatnonzero(wrong)
    if not len(at) or not wrong[at[0] : at[-1] + 1].all() or len(at) == len(wrong):
        return None
    begin, width = int(at[0]), len(at)
    is_head = width in HEAD_SIZES and len(wrong) % width == 0 and begin % width == 0
    return (begin // width if is_head else None), begin, begin + width


def groups(pair: SampledPair) -> Hint | None:
    """Only one position along an axis before the tokens is wrong: a head, if heads have an axis, or a batch entry."""
    if pair.groups < 2 or not pair.sees_all_groups or pair.context.are_tokens_of_expert:
        return None
    lead = pair.shape[:-2]
    ref, error = (side.reshape(*lead, *side.shape[1:]) for side in (pair.rows.ref, pair.rows.error))
    for axis, length in enumerate(lead):
        errors = _along(pair, ref, error, axis) if length > 1 else None
        if errors and axis == 0 and length == pair.context.batch and pair.unit > _FEW_BITS:
            errors = _split(errors)
        if errors and errors.are_told_apart and axis == 0 and length == pair.context.batch:
            wrong = [int(row) for row in np.flatnonzero(errors.wrong)]
            return batch_rows(wrong, length, float(errors.sizes[errors.right].max()))
        if errors and errors.are_told_apart and errors.wrong.sum() == 1:
            at = int(np.flatnonzero(errors.wrong)[0])
            is_head = axis == len(lead) - 1 and len(lead) > 1
            rest = float(errors.sizes[errors.right].max())
            told = f"head {at} of {length}" if is_head else f"place {at} of {length} along axis {axis}"
            evidence: Evidence = {"axis": axis, "head" if is_head else "place": at, "of": length, "worst_right": rest}
            sentence = f"only {told} is wrong; the others differ by {rest:.1e} at most"
            return Hint("one_head" if is_head else "one_slice", sentence, evidence)
    return None


def _split(errors: _AxisErrors) -> _AxisErrors:
    """Split rows of a batch if some are evenly right and all others several times as far off as any of those."""
    ordered = np.sort(errors.sizes)
    steps = ordered[1:] / np.maximum(ordered[:-1], np.finfo(np.float64).tiny)
    at = int(steps.argmax())
    right = errors.sizes <= ordered[at]
    is_even = ordered[at] <= 2.5 * max(ordered[0], np.finfo(np.float64).tiny)
    if errors.are_told_apart or steps[at] < 5 or not is_even or ordered[at + 1] < errors.limit:
        return errors
    return errors._replace(right=right, wrong=~right)


def position(pair: SampledPair) -> Hint | None:
    """The error grows along the tokens from nothing (rope, positions), or falls to nothing (a mask)."""
    sample = pair.across
    if len(sample.tokens) < _RANKED:
        return None
    errors = _along(pair, sample.ref, sample.error, 1)
    sizes = errors.sizes
    if errors.elements * float(np.median(errors.shares)) < _TOO_FEW:
        return None
    if (evidence := _grows(pair, sizes)) is not None:
        told = "the error grows with the position and the first token is right (rope, positions, or attention)"
        return Hint("grows_with_position", told, evidence)
    if (evidence := _grows(pair, sizes[::-1])) is not None:
        told = "the error falls with the position and the last token is right (a mask: what some tokens see)"
        return Hint("falls_with_position", told, evidence)
    return None


def _grows(pair: SampledPair, sizes: Floats) -> Evidence | None:
    first, others = float(sizes[0]), sizes[1:]
    usual = float(np.median(others))
    if not math.isfinite(float(sizes.max())):
        return None
    # In few bits the floor is far above one rounding, so the first token itself shows what rounding is.
    is_quiet_first = pair.unit > _FEW_BITS and usual > pair.quiet and first <= min(2 * pair.unit, usual / 10)
    if not is_quiet_first and (usual <= 5 * pair.quiet or first > max(pair.quiet, 0.05 * usual)):
        return None
    rank, third = _rank_correlation(others), max(1, len(others) // 3)
    growth = float(others[-third:].mean() / max(others[:third].mean(), 1e-300))
    if rank < _RISING or growth < 1.5:
        return None
    return {"rank_correlation": rank, "growth": growth, "at_first": first, "at_last": float(others[-1])}


def _rank_correlation(values: Floats) -> float:
    """Spearman's rank correlation of values with their positions."""
    ranks = np.empty(len(values))
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return float(np.corrcoef(ranks, np.arange(len(values)))[0, 1])


_MOST_EXPERTS = 1 << 12
_NOT_BY_CHANCE = 0.2  # share of the tokens; near-ties between experts flip fewer


def one_expert(pair: SampledPair) -> Hint | None:
    """The wrong tokens are exactly those that were sent to one expert."""
    tokens = pair.groups * pair.tokens
    for taken, _ in pair.context.routes:
        sent = taken.reshape(-1, taken.shape[-1])
        if (
            len(sent) != tokens
            or tokens < 2 * sent.shape[1]
            or not pair.sees_all
            or not 0 <= sent.min() <= sent.max() < _MOST_EXPERTS
        ):
            continue
        if (wrong := _wrong_tokens(pair)) is None:
            return None
        fits = [int(e) for e in np.unique(sent) if ((sent == e).any(1) == wrong).all()]
        if len(fits) == 1:
            evidence: Evidence = {"expert": fits[0], "tokens": int(wrong.sum()), "of": tokens}
            told = f"just the {int(wrong.sum())} of {tokens} tokens that were sent to expert {fits[0]} are wrong"
            return Hint("one_expert", told, evidence)
    return None


def router(pair: SampledPair) -> Hint | None:
    """The layer is a router that sent tokens to other experts."""
    hints = (other_routes(sides) for sides in (pair.context.routes if pair.context.is_router else ()))
    return next(filter(None, hints), None)


def other_routes(sides: tuple[Array, Array]) -> Hint | None:
    """More tokens were sent to other experts than near-ties explain."""
    ref, cand = sides
    if any(side.dtype.kind not in "iu" for side in sides) or ref.ndim < 2 or ref.shape != cand.shape:
        return None  # floats beside integers are something else
    apart = np.asarray(np.sort(ref, -1) != np.sort(cand, -1)).reshape(-1, ref.shape[-1])
    tokens = int(apart.any(1).sum())
    if tokens < _NOT_BY_CHANCE * len(apart):
        return None
    columns = [int(c) for c in np.flatnonzero((ref != cand).reshape(-1, ref.shape[-1]).any(0))]
    evidence: Evidence = {"tokens": tokens, "of": len(apart), "choices": columns}
    told = f"{tokens} of {len(apart)} tokens are sent to other experts (choice {listed(columns)})"
    return Hint("routes", told, evidence)
