"""Kinds in which the candidate holds the reference's numbers in other places.

Units (heads, blocks of channels, tokens) are matched by a few of their values; a layout that the match
proposes is then tried on all that is looked at, and offered only if it explains the error.

Key heads that are repeated in another order, told from what attention makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from tensordiff.compare.hint import Evidence, Hint
from tensordiff.compare.hint.localized import block
from tensordiff.compare.hint.sample import Floats, Mask, Places, Sample, SampledPair, listed, rms, size, spread

_FEW = 16  # tokens by which a layout is proposed
_UNITS = 256  # most units matched with one another
_VALUES = 64  # values by which a unit is known
_CONTENT = 16  # least of them: with fewer, a stranger may look alike
_ENOUGH = 16  # elements from which a layout says something

Rearranged = Callable[[Floats], Floats]


def transposed(seen: SampledPair) -> Hint | None:
    """The last two axes, of one length, are swapped."""
    if seen.tokens != seen.channels or seen.tokens < 4:
        return None
    look = seen.corner
    rest = look.cand - look.ref.swapaxes(1, 2)
    if not seen.explains(rest, look):
        return None
    return Hint("transposed", f"the last two axes ({seen.tokens} each) are swapped", _left(rest, look))


def _left(rest: Floats, look: Sample) -> Evidence:
    return {"residual": size(rest) / size(look.error)}


def shifted(seen: SampledPair) -> Hint | None:
    """Every token holds what its neighbour should."""
    look = seen.rows
    if look.ref.shape[1] < 4 or look.ref[:, 1:].size < _ENOUGH:
        return None
    later, earlier = slice(1, None), slice(None, -1)
    for by, here, there in ((1, later, earlier), (-1, earlier, later)):
        part = look.part(here)
        rest = part.cand - look.ref[:, there]
        if seen.explains(rest, part):
            told = f"off by one: every token holds what belongs to the one {'before' if by == 1 else 'after'} it"
            return Hint("shifted", told, {"by": by} | _left(rest, part))
    return None


def rope_order(seen: SampledPair) -> Hint | None:
    """Within each head, halves stand interleaved or the other way round."""
    if not seen.sees_all_channels or not _have_same_norms(seen):
        return None
    for width in _widths(seen.channels, least=4, most=seen.channels):
        for kind, order in (("interleaved", _interleaved(width)), ("halves", np.argsort(_interleaved(width)))):
            rest = _try(seen, partial(_within, order=order, width=width))
            if rest is not None:
                return _rope_hint(seen, kind, width, rest)
    return None


def _rope_hint(seen: SampledPair, kind: str, width: int, rest: Floats) -> Hint:
    is_one = width == seen.channels
    where = "all channels" if is_one else f"every head of {width} channels"
    stands = ("interleaved", "in halves") if kind == "interleaved" else ("in halves", "interleaved")
    told = f"the candidate has {where} {stands[0]} where the reference has them {stands[1]}"
    what = "rope, or gate and up" if is_one else "the two orders of rope"
    evidence: Evidence = {"candidate": kind, "width": width, "heads": seen.channels // width}
    return Hint("rope_order", f"{told} ({what})", evidence | _left(rest, seen.rows))


def _interleaved(width: int) -> Places:
    """Where the channels of two halves come from when they are interleaved."""
    return np.arange(width).reshape(2, width // 2).T.reshape(-1) if width % 2 == 0 else np.arange(width)


def _within(side: Floats, order: Places, width: int) -> Floats:
    return side.reshape(*side.shape[:2], -1, width)[..., order].reshape(side.shape)


def heads_in_memory(seen: SampledPair) -> Hint | None:
    """[heads, tokens, width] was read as [tokens, heads, width], or the other way round: a transpose was lost."""
    if not seen.sees_all or seen.tokens < 2 or seen.rows.ref.size < _ENOUGH:
        return None
    for width in _widths(seen.channels, least=1, most=seen.channels // 2):
        heads = seen.channels // width
        for split in ((seen.tokens, heads, width), (heads, seen.tokens, width)):
            rest = _left_when_swapped(seen, split)
            if rest is not None:
                told = f"tokens and heads ({heads} of {width} channels) are swapped in memory: a transpose is missing"
                return Hint("lost_transpose", told, {"width": width, "heads": heads} | _left(rest, seen.rows))
    return None


def _left_when_swapped(seen: SampledPair, split: tuple[int, int, int]) -> Floats | None:
    """What is left when the reference is read as split and swapped, if that explains the error."""
    look = seen.rows
    swapped = look.ref.reshape(len(look.ref), *split).swapaxes(1, 2)
    first = swapped[:, 0].reshape(len(swapped), -1)
    beside = (side.reshape(len(swapped), -1)[:, : first.shape[1]] for side in (look.ref, look.cand))
    if not _is_worth_trying(seen, first, *beside):
        return None
    rest = look.cand - swapped.reshape(look.ref.shape)
    return rest if seen.explains(rest, look) else None


def blocks(seen: SampledPair) -> Hint | None:
    """Blocks of channels stand in another order: heads, gate and up, q and k; the widest that tell it.

    Where some hold the same, blocks wider than the heads may be matched too, so heads that repeat are looked for.
    """
    if not seen.sees_all_channels:
        return None
    found: Hint | None = None
    few = _few(seen.rows.ref), _few(seen.rows.cand)
    for width in _widths(seen.channels, least=1, most=seen.channels // 2):
        hint, is_permutation = _by_width(seen, few, width)
        if hint and (hint.kind == "kv_repeat" or (is_permutation and not found)):
            return hint
        found = found or hint
    return found


def _by_width(seen: SampledPair, few: tuple[Floats, Floats], width: int) -> tuple[Hint | None, bool]:
    """What blocks of a width tell, and whether each is found once."""
    ref, cand = (_blocks_of(side, width) for side in few)
    order = _match(ref, cand)
    rest = None if order is None else _try(seen, partial(_ordered, order=order, width=width))
    if order is None or rest is None:
        return None, False
    return _blocks_hint(order, _labels(ref), width, _left(rest, seen.rows)), len(set(order.tolist())) == len(order)


def slices(seen: SampledPair) -> Hint | None:
    """The same for heads that have an axis of their own, before the tokens."""
    if seen.groups < 2 or not seen.sees_all_groups or len(seen.shape) < 4:
        return None
    ref, cand = (side.reshape(len(side), -1) for side in (seen.rows.ref, seen.rows.cand))
    order = _match(ref, cand)
    if order is None or not seen.explains(rest := seen.rows.cand - seen.rows.ref[order], seen.rows):
        return None
    evidence = _left(rest, seen.rows) | {"axis": len(seen.shape) - 3}
    return _blocks_hint(order, _labels(ref), 0, evidence)


def _blocks_hint(order: Places, labels: Places, width: int, evidence: Evidence) -> Hint:
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


def _repeats(ref: Places, cand: Places) -> int:
    """How often each head is repeated, if one side has them one after the other and the other in turns; else 0."""
    count, different = len(ref), len(np.unique(ref))
    times = count // different
    if times < 2 or different < 2 or times * different != count:
        return 0
    sides = [np.unique(side, return_inverse=True)[1].tolist() for side in (ref, cand)]
    want = [np.repeat(np.arange(different), times).tolist(), np.tile(np.arange(different), times).tolist()]
    return times if sides in (want, want[::-1]) else 0


def token_rows(seen: SampledPair) -> Hint | None:
    """Tokens hold what belongs to other tokens: one of them everywhere, or all in another order."""
    look, count = seen.rows, min(_UNITS, seen.rows.ref.shape[1])
    if count < 4 or seen.tokens != look.ref.shape[1]:
        return None
    part = look.part(slice(count))
    order = _match(*(side.swapaxes(0, 1).reshape(count, -1) for side in (part.ref, part.cand)))
    if order is None or not seen.explains(rest := part.cand - part.ref[:, order], part):
        return None
    evidence: Evidence = {"order": [int(o) for o in order]} | _left(rest, part)
    if len(set(order.tolist())) == 1:
        return Hint("one_row_repeated", f"every token holds what belongs to token {order[0]}", evidence)
    moved = np.flatnonzero(order != np.arange(count))
    where = ", ".join(f"{at} holds {order[at]}" for at in moved[:4])
    told = f"{len(moved)} of {count} tokens hold what belongs to others ({where}{', …' if len(moved) > 4 else ''})"
    return Hint("rows_shuffled", told, evidence)


# --- matching -------------------------------------------------------------------------------------


def _widths(channels: int, least: int, most: int) -> Iterator[int]:
    """Widths that divide the channels, the widest first."""
    largest = max(1, channels // max(1, least))
    counts = (count for count in range(1, min(largest, _UNITS) + 1) if channels % count == 0)
    return (channels // count for count in counts if least <= channels // count <= most)


def _few(side: Floats) -> Floats:
    """Some tokens, [tokens, channels], from the first to the last that is looked at."""
    flat = side.reshape(-1, side.shape[-1])
    return flat[spread(len(flat), _FEW)]


def _blocks_of(few: Floats, width: int) -> Floats:
    """[blocks, values], no more values than a block is known by."""
    columns = spread(width, max(4, _VALUES // len(few)))
    return few.reshape(len(few), -1, width)[:, :, columns].swapaxes(0, 1).reshape(few.shape[1] // width, -1)


def _have_same_norms(seen: SampledPair) -> bool:
    """Whether tokens may hold the same numbers in another order."""
    ref, cand = (np.sqrt(np.square(_few(side)).sum(1)) for side in (seen.rows.ref, seen.rows.cand))
    return bool((np.abs(cand - ref) <= max(0.01, seen.floor) * ref).mean() >= 0.9)


def _ordered(side: Floats, order: Places, width: int) -> Floats:
    return side.reshape(*side.shape[:-1], -1, width)[..., order, :].reshape(side.shape)


def _try(seen: SampledPair, rearranged: Rearranged) -> Floats | None:
    """What a layout leaves, if it explains the error; tried on a few tokens first."""
    look = seen.rows
    ref, cand = _few(look.ref)[None], _few(look.cand)[None]
    if look.ref.size < _ENOUGH or not _is_worth_trying(seen, rearranged(ref), ref, cand):
        return None
    rest = look.cand - rearranged(look.ref)
    return rest if seen.explains(rest, look) else None


def _is_worth_trying(seen: SampledPair, rearranged: Floats, ref: Floats, cand: Floats) -> bool:
    """Whether a part of the reference, rearranged, is much nearer to the candidate."""
    return size(cand - rearranged) <= max(0.5 * size(cand - ref), seen.floor * size(ref))


def _match(ref: Floats, cand: Floats) -> Places | None:
    """For each unit of the candidate the reference's that is most like it; None if that is its own."""
    count, content = ref.shape
    if not 2 <= count <= _UNITS or content < _CONTENT:
        return None
    columns = spread(content, _VALUES)
    ref, cand = ref[:, columns], cand[:, columns]
    apart = np.square(ref).sum(1) - 2 * cand @ ref.T
    order = apart.argmin(1)
    own = apart[np.arange(count), np.arange(count)] <= apart[np.arange(count), order]
    own |= ~cand.any(1)  # what holds nothing holds nobody's values
    order = np.where(own, np.arange(count), order)
    return None if (order == np.arange(count)).all() else order


def _labels(units: Floats) -> Places:
    """Units that are the same have the same label: the place of the first of them."""
    columns = spread(units.shape[1], _VALUES)
    _, first, inverse = np.unique(units[:, columns], axis=0, return_index=True, return_inverse=True)
    return np.asarray(first[inverse.reshape(-1)])


def kv_heads(seen: SampledPair) -> Hint | None:
    """Heads are wrong just where repeating each key head, and all of them in turn, give a head another partner.

    What attention makes of other keys is no permutation; but the heads whose partner is the same are right.
    """
    if seen.channels < 64 or len(seen.shape) > 3 or not seen.sees_all:
        return None
    for heads in _head_counts(seen.channels):
        wrong = _wrong_heads(seen, heads)
        if wrong is None:
            continue
        for kv in range(2, heads // 2 + 1):
            one_by_one, in_turn = np.arange(heads) // (heads // kv), np.arange(heads) % kv
            if heads % kv or (wrong != (one_by_one != in_turn)).any():
                continue
            if block(wrong) is None or _first_token_has_others(seen, one_by_one, in_turn):
                evidence: Evidence = {"heads": heads, "kv_heads": kv, "wrong": np.flatnonzero(wrong).tolist()}
                told = f"of {heads} heads just those are wrong ({listed(np.flatnonzero(wrong))}) that get another key"
                return Hint(
                    "kv_repeat", f"{told} head if {kv} are repeated all in turn instead of one by one", evidence
                )
    return None


def _first_token_has_others(seen: SampledPair, ref_heads: Places, cand_heads: Places) -> bool:
    """Whether the first token, which sees only itself, holds just the values of the other heads."""
    ref, cand = (side[0, 0].reshape(len(ref_heads), -1) for side in (seen.rows.ref, seen.rows.cand))
    values = [ref[np.flatnonzero(ref_heads == head)[0]] for head in cand_heads]
    own, other = size(cand - ref), size(cand - np.stack(values))
    swapped = [ref[np.flatnonzero(cand_heads == head)[0]] for head in ref_heads]
    return min(other, size(cand - np.stack(swapped))) <= max(0.1 * own, 2 * seen.noise_share * size(ref))


def _head_counts(channels: int) -> Iterator[int]:
    return (heads for heads in range(4, min(128, channels // 8) + 1, 2) if channels % heads == 0)


def _wrong_heads(seen: SampledPair, heads: int) -> Mask | None:
    """Which heads are wrong, if each is clearly right or wrong."""
    sides = (side.reshape(-1, heads, seen.channels // heads) for side in (seen.rows.ref, seen.rows.error))
    own, off = (rms(side, (0, 2)) for side in sides)
    errors = off / np.where(own > 0, own, 1.0)
    right = max(seen.floor, 2 * seen.carried)
    wrong = np.asarray(errors > 5 * right)
    return wrong if (wrong | (errors <= right)).all() and 0 < wrong.sum() < heads else None
