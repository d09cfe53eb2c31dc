"""Kinds in which the candidate holds the reference's numbers in another order.

Units (heads, blocks of channels, tokens) are matched by a few of their values. The layout that the match suggests is
then tried on the whole sample, and the hint is given only if it explains the error. ``kv_heads`` recognizes key heads
that are repeated in another order from the output of attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from tensordiff.compare.hint import Evidence, Hint
from tensordiff.compare.hint.localized import channel_run
from tensordiff.compare.hint.sample import (
    Floats,
    Indices,
    Mask,
    Sample,
    SampledPair,
    evenly_spaced,
    listed,
    rms,
    rms_along,
)

_SHIFTS = (1, 2, 3, 4)  # places by which tokens may be shifted
_FEW = 16  # tokens from which a layout is suggested
_UNITS = 256  # most units matched with each other
_VALUES = 64  # values by which a unit is recognized
_CONTENT = 16  # fewest values per unit; with fewer, an unrelated unit may match
_ENOUGH = 16  # elements needed to recognize a layout

Rearranged = Callable[[Floats], Floats]


def transposed(pair: SampledPair) -> Hint | None:
    """The last two axes, which have the same length, are swapped."""
    if pair.tokens != pair.channels or pair.tokens < 4:
        return None
    sample = pair.corner
    rest = sample.cand - sample.ref.swapaxes(1, 2)
    if not pair.explains(rest, sample):
        return None
    return Hint("transposed", f"the last two axes ({pair.tokens} each) are swapped", _residual_evidence(rest, sample))


def _residual_evidence(rest: Floats, sample: Sample) -> Evidence:
    return {"residual": rms(rest) / rms(sample.error)}


def shifted(pair: SampledPair) -> Hint | None:
    """Every token holds the values of its neighbour."""
    sample = pair.rows
    if sample.ref.shape[1] < 4 or sample.ref[:, 1:].size < _ENOUGH:
        return None
    for by in _SHIFTS:
        if sample.ref.shape[1] < by + 3:
            break
        later, earlier = slice(by, None), slice(None, -by)
        for way, here, there in ((1, later, earlier), (-1, earlier, later)):
            part = sample.part(here)
            rest = part.cand - sample.ref[:, there]
            if pair.explains(rest, part):
                told = f"the one {'before' if way == 1 else 'after'} it"
                told = told if by == 1 else told.replace("one", f"one {by} places")
                return Hint(
                    "shifted",
                    f"off by {by}: every token holds what belongs to {told}",
                    {"by": by * way} | _residual_evidence(rest, part),
                )
    return None


def rope_order(pair: SampledPair) -> Hint | None:
    """Within each head, one side interleaves the two halves of the channels and the other does not."""
    if not pair.sees_all_channels or not _have_same_norms(pair):
        return None
    for width in _widths(pair.channels, least=4, most=pair.channels):
        for kind, order in (("interleaved", _interleaved(width)), ("halves", np.argsort(_interleaved(width)))):
            rest = _rest_if_explained(pair, partial(_reordered_within, order=order, width=width))
            if rest is not None:
                return _rope_hint(pair, kind, width, rest)
    return None


def _rope_hint(pair: SampledPair, kind: str, width: int, rest: Floats) -> Hint:
    is_one = width == pair.channels
    where = "all channels" if is_one else f"every head of {width} channels"
    stands = ("interleaved", "in halves") if kind == "interleaved" else ("in halves", "interleaved")
    told = f"the candidate has {where} {stands[0]} where the reference has them {stands[1]}"
    what = "rope, or gate and up" if is_one else "the two orders of rope"
    evidence: Evidence = {"candidate": kind, "width": width, "heads": pair.channels // width}
    return Hint("rope_order", f"{told} ({what})", evidence | _residual_evidence(rest, pair.rows))


def _interleaved(width: int) -> Indices:
    """The order that interleaves the channels of two halves."""
    return np.arange(width).reshape(2, width // 2).T.reshape(-1) if width % 2 == 0 else np.arange(width)


def _reordered_within(side: Floats, order: Indices, width: int) -> Floats:
    return side.reshape(*side.shape[:2], -1, width)[..., order].reshape(side.shape)


def heads_in_memory(pair: SampledPair) -> Hint | None:
    """[heads, tokens, width] was read as [tokens, heads, width] or the reverse: a transpose is missing."""
    if not pair.sees_all or pair.tokens < 2 or pair.rows.ref.size < _ENOUGH:
        return None
    for width in _widths(pair.channels, least=1, most=pair.channels // 2):
        heads = pair.channels // width
        for split in ((pair.tokens, heads, width), (heads, pair.tokens, width)):
            rest = _left_when_swapped(pair, split)
            if rest is not None:
                told = f"tokens and heads ({heads} of {width} channels) are swapped in memory: a transpose is missing"
                return Hint(
                    "lost_transpose", told, {"width": width, "heads": heads} | _residual_evidence(rest, pair.rows)
                )
    return None


def _left_when_swapped(pair: SampledPair, split: tuple[int, int, int]) -> Floats | None:
    """The rest after splitting and swapping the reference, if that explains the error."""
    sample = pair.rows
    swapped = sample.ref.reshape(len(sample.ref), *split).swapaxes(1, 2)
    first = swapped[:, 0].reshape(len(swapped), -1)
    beside = (side.reshape(len(swapped), -1)[:, : first.shape[1]] for side in (sample.ref, sample.cand))
    if not _is_worth_trying(pair, first, *beside):
        return None
    rest = sample.cand - swapped.reshape(sample.ref.shape)
    return rest if pair.explains(rest, sample) else None


def blocks(pair: SampledPair) -> Hint | None:
    """Blocks of channels are in another order (heads, gate and up, q and k); reports the widest blocks that show it.

    If heads repeat, blocks wider than a head match as well, so narrower blocks are tried for ``kv_repeat``.
    """
    if not pair.sees_all_channels:
        return None
    widest: Hint | None = None
    few = _few(pair.rows.ref), _few(pair.rows.cand)
    for width in _widths(pair.channels, least=1, most=pair.channels // 2):
        hint, is_permutation = _by_width(pair, few, width)
        if hint and (hint.kind == "kv_repeat" or (is_permutation and not widest)):
            return hint
        widest = widest or hint
    return widest


def _by_width(pair: SampledPair, few: tuple[Floats, Floats], width: int) -> tuple[Hint | None, bool]:
    """The hint from blocks of one width, and whether the order is a permutation."""
    ref, cand = (_blocks_of(side, width) for side in few)
    order = _match(ref, cand)
    rest = None if order is None else _rest_if_explained(pair, partial(_reordered_blocks, order=order, width=width))
    if order is None or rest is None:
        return None, False
    return _blocks_hint(order, _labels(ref), width, _residual_evidence(rest, pair.rows)), len(
        set(order.tolist())
    ) == len(order)


def slices(pair: SampledPair) -> Hint | None:
    """Heads on an axis of their own, before the tokens, are in another order."""
    if pair.groups < 2 or not pair.sees_all_groups or len(pair.shape) < 4:
        return None
    ref, cand = (side.reshape(len(side), -1) for side in (pair.rows.ref, pair.rows.cand))
    order = _match(ref, cand)
    if order is None or not pair.explains(rest := pair.rows.cand - pair.rows.ref[order], pair.rows):
        return None
    evidence = _residual_evidence(rest, pair.rows) | {"axis": len(pair.shape) - 3}
    return _blocks_hint(order, _labels(ref), 0, evidence)


def _blocks_hint(order: Indices, labels: Indices, width: int, evidence: Evidence) -> Hint:
    count, moved = len(order), np.flatnonzero(labels[order] != labels)
    evidence |= {"blocks": count, "order": [int(o) for o in order[:256]], "moved": len(moved)}
    of = f"of {count} heads" if not width else f"of {count} blocks of {width} channels"
    if width:
        evidence["width"] = width
    if groups := _repeats(labels, labels[order]):
        told = f"{count} heads repeat {count // groups} in another order: one side repeats each head {groups} times, "
        return Hint("kv_repeat", f"{told}the other all of them in turn (repeat and repeat_interleave)", evidence)
    if width and (count <= 3 or (len(moved) == 2 and width > 256)):
        told = f"blocks {listed(moved)} {of} are swapped (gate and up, or q and k)"
        return Hint("blocks_swapped", told, evidence)
    what = "hold others' values" if len(set(order.tolist())) < len(set(labels.tolist())) else "stand in another order"
    where = ", ".join(f"{at} holds {order[at]}" for at in moved[:4])
    return Hint("heads_permuted", f"{len(moved)} {of} {what} ({where}{', …' if len(moved) > 4 else ''})", evidence)


def _repeats(ref: Indices, cand: Indices) -> int:
    """How often each head repeats if one side interleaves the repeats and the other tiles them; else 0."""
    count, different = len(ref), len(np.unique(ref))
    times = count // different
    if times < 2 or different < 2 or times * different != count:
        return 0
    sides = [np.unique(side, return_inverse=True)[1].tolist() for side in (ref, cand)]
    want = [np.repeat(np.arange(different), times).tolist(), np.tile(np.arange(different), times).tolist()]
    return times if sides in (want, want[::-1]) else 0


def token_rows(pair: SampledPair) -> Hint | None:
    """Tokens hold the values of other tokens: all of a single one, or each of another one."""
    sample, count = pair.rows, min(_UNITS, pair.rows.ref.shape[1])
    if count < 4 or pair.context.are_tokens_of_expert or pair.tokens != sample.ref.shape[1]:
        return None
    part = sample.part(slice(count))
    order = _match(*(side.swapaxes(0, 1).reshape(count, -1) for side in (part.ref, part.cand)))
    if order is None or not pair.explains(rest := part.cand - part.ref[:, order], part):
        return None
    evidence: Evidence = {"order": [int(o) for o in order]} | _residual_evidence(rest, part)
    if len(set(order.tolist())) == 1:
        return Hint("one_row_repeated", f"every token holds what belongs to token {order[0]}", evidence)
    moved = np.flatnonzero(order != np.arange(count))
    where = ", ".join(f"{at} holds {order[at]}" for at in moved[:4])
    told = f"{len(moved)} of {count} tokens hold what belongs to others ({where}{', …' if len(moved) > 4 else ''})"
    return Hint("rows_shuffled", told, evidence)


# --- matching -------------------------------------------------------------------------------------


def _widths(channels: int, least: int, most: int) -> Iterator[int]:
    """Widths that divide the number of channels, widest first."""
    largest = max(1, channels // max(1, least))
    counts = (count for count in range(1, min(largest, _UNITS) + 1) if channels % count == 0)
    return (channels // count for count in counts if least <= channels // count <= most)


def _few(side: Floats) -> Floats:
    """A few tokens of the sample, [tokens, channels]."""
    flat = side.reshape(-1, side.shape[-1])
    return flat[evenly_spaced(len(flat), _FEW)]


def _blocks_of(few: Floats, width: int) -> Floats:
    """[blocks, values], with as many values as a block is recognized by."""
    columns = evenly_spaced(width, max(4, _VALUES // len(few)))
    return few.reshape(len(few), -1, width)[:, :, columns].swapaxes(0, 1).reshape(few.shape[1] // width, -1)


def _have_same_norms(pair: SampledPair) -> bool:
    """Whether tokens may hold the same numbers in another order."""
    ref, cand = (np.sqrt(np.square(_few(side)).sum(1)) for side in (pair.rows.ref, pair.rows.cand))
    return bool((np.abs(cand - ref) <= max(0.01, pair.floor) * ref).mean() >= 0.9)


def _reordered_blocks(side: Floats, order: Indices, width: int) -> Floats:
    return side.reshape(*side.shape[:-1], -1, width)[..., order, :].reshape(side.shape)


def _rest_if_explained(pair: SampledPair, rearranged: Rearranged) -> Floats | None:
    """The rest that a layout leaves, if it explains the error; tried on a few tokens first."""
    sample = pair.rows
    ref, cand = _few(sample.ref)[None], _few(sample.cand)[None]
    if sample.ref.size < _ENOUGH or not _is_worth_trying(pair, rearranged(ref), ref, cand):
        return None
    rest = sample.cand - rearranged(sample.ref)
    return rest if pair.explains(rest, sample) else None


def _is_worth_trying(pair: SampledPair, rearranged: Floats, ref: Floats, cand: Floats) -> bool:
    """Whether a rearranged part of the reference is much nearer to the candidate."""
    return rms(cand - rearranged) <= max(0.5 * rms(cand - ref), pair.floor * rms(ref))


def _match(ref: Floats, cand: Floats) -> Indices | None:
    """For each unit of the candidate the nearest unit of the reference; None if every unit matches its own."""
    count, content = ref.shape
    if not 2 <= count <= _UNITS or content < _CONTENT:
        return None
    columns = evenly_spaced(content, _VALUES)
    ref, cand = ref[:, columns], cand[:, columns]
    apart = np.square(ref).sum(1) - 2 * cand @ ref.T
    order = apart.argmin(1)
    own = apart[np.arange(count), np.arange(count)] <= apart[np.arange(count), order]
    own |= ~cand.any(1)  # a unit of zeros matches nothing
    order = np.where(own, np.arange(count), order)
    return None if (order == np.arange(count)).all() else order


def _labels(units: Floats) -> Indices:
    """A label for each unit: the position of the first unit that equals it."""
    columns = evenly_spaced(units.shape[1], _VALUES)
    _, first, inverse = np.unique(units[:, columns], axis=0, return_index=True, return_inverse=True)
    return np.asarray(first[inverse.reshape(-1)])


def kv_heads(pair: SampledPair) -> Hint | None:
    """Heads are wrong exactly where ``repeat`` and ``repeat_interleave`` assign different key heads.

    Attention with other keys is not a permutation of anything, but heads that get the same key head are right.
    """
    if pair.channels < 64 or len(pair.shape) > 3 or not pair.sees_all:
        return None
    for heads in _head_counts(pair.channels):
        wrong = _wrong_heads(pair, heads)
        if wrong is None:
            continue
        for kv in range(2, heads // 2 + 1):
            one_by_one, in_turn = np.arange(heads) // (heads // kv), np.arange(heads) % kv
            if heads % kv or (wrong != (one_by_one != in_turn)).any():
                continue
            if channel_run(wrong) is None or _first_token_has_others(pair, one_by_one, in_turn):
                evidence: Evidence = {"heads": heads, "kv_heads": kv, "wrong": np.flatnonzero(wrong).tolist()}
                told = f"of {heads} heads just those are wrong ({listed(np.flatnonzero(wrong))}) that get another key"
                return Hint(
                    "kv_repeat", f"{told} head if {kv} are repeated all in turn instead of one by one", evidence
                )
    return None


def _first_token_has_others(pair: SampledPair, ref_heads: Indices, cand_heads: Indices) -> bool:
    """Whether the first token, which attends only to itself, holds the values of the other heads."""
    ref, cand = (side[0, 0].reshape(len(ref_heads), -1) for side in (pair.rows.ref, pair.rows.cand))
    values = [ref[np.flatnonzero(ref_heads == head)[0]] for head in cand_heads]
    own, other = rms(cand - ref), rms(cand - np.stack(values))
    swapped = [ref[np.flatnonzero(cand_heads == head)[0]] for head in ref_heads]
    return min(other, rms(cand - np.stack(swapped))) <= max(0.1 * own, 2 * pair.noise_share * rms(ref))


def _head_counts(channels: int) -> Iterator[int]:
    return (heads for heads in range(4, min(128, channels // 8) + 1, 2) if channels % heads == 0)


def _wrong_heads(pair: SampledPair, heads: int) -> Mask | None:
    """Which heads are wrong, if each one is clearly right or wrong."""
    sides = (side.reshape(-1, heads, pair.channels // heads) for side in (pair.rows.ref, pair.rows.error))
    own, off = (rms_along(side, (0, 2)) for side in sides)
    errors = off / np.where(own > 0, own, 1.0)
    right = max(pair.floor, 2 * pair.context.carried)
    wrong = np.asarray(errors > 5 * right)
    return wrong if (wrong | (errors <= right)).all() and 0 < wrong.sum() < heads else None
