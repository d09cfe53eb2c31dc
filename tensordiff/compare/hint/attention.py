"""Recompute attention from its queries, keys and values to find out what the candidate does differently.

If both sides hold the attention weights (the output of the softmax), masks and scales are read off them. Otherwise, and
for rotary positions, the reference's output is first recomputed from its own parts. Only if that succeeds, so that
nothing about the layer is guessed, one property after the other is changed until the candidate's output results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.hint import Evidence, Hint, explained
from tensordiff.compare.hint.attention_parts import AttentionTensors, attention_tensors
from tensordiff.compare.hint.sample import Floats, rms
from tensordiff.compare.hint.surroundings import Surroundings, floats_of
from tensordiff.compare.judge.verdict import floor_for

Mask = NDArray[np.bool_]
_LEFT = 0.05
"""The share of the difference that an explanation may leave, in exact types."""
_LEFT_OF_FEW_BITS = 0.2
"""The same if the rest is no more than rounding."""


def attention(around: Surroundings) -> Hint | None:
    """Recognize what is different in an attention, if the row is the output of one."""
    weights = _weights(around)
    noise = _noise(around)
    if weights is not None and (hint := _by_scores(*weights, noise)):
        return hint
    return _by_recomputing(around, noise)


def _noise(around: Surroundings) -> float:
    return floor_for(*(around.row.computed_in or around.row.dtypes or ("float32", "float32")))[1].agrees / 3


def _weights(around: Surroundings) -> tuple[Floats, Floats] | None:
    """Both sides of the softmax's output, [rows, heads, queries, keys]."""
    for pair in (*around.outputs, *(p for p in around.within if not p.reference.is_input)):
        if len(pair.reference.spec.shape) != 4 or (sides := floats_of(pair)) is None:
            continue
        if all(_are_weights(side) for side in sides) and sides[0].shape[-1] > 1:
            return sides
    return None


def _are_weights(side: Floats) -> bool:
    sums = side.sum(-1)
    return bool(side.min() >= 0 and sums.max() <= 1.05 and sums.min() > 0.01)


# --- by their weights ----------------------------------------------------------------------------


def _by_masks(ref: Floats, cand: Floats) -> Hint | None:
    """Places that only one side attends to."""
    sees, seen = ref > 0, cand > 0
    extra, lost = seen & ~sees, sees & ~seen
    if not extra.any() and not lost.any():
        return None
    queries, keys = ref.shape[-2:]
    back = (np.arange(keys - queries, keys)[:, None] - np.arange(keys))[None, None]
    told, what = _name_mask(ref.shape, sees, seen, back) or _count_mask(extra, lost)
    evidence: Evidence = {"what": what, "seen_too": int(extra.sum()), "not_seen": int(lost.sum())}
    return Hint("mask", told, evidence)


def _name_mask(shape: tuple[int, ...], sees: Mask, seen: Mask, back: NDArray[np.int64]) -> tuple[str, str] | None:
    extra, lost = seen & ~sees, sees & ~seen
    ahead = np.broadcast_to(back < 0, shape)
    if extra.any() and not lost.any() and ahead[extra].all() and not sees[ahead].any():
        return "the candidate sees tokens ahead, the reference none: its mask is not causal", "ahead"
    if lost.any() and not extra.any() and ahead[lost].all() and not seen[ahead].any():
        return "the candidate sees no tokens ahead, and the reference does: its mask is causal", "ahead"
    furthest = [int(np.where(side, np.broadcast_to(back, shape), -1).max()) + 1 for side in (sees, seen)]
    changed = extra | lost
    if furthest[0] != furthest[1] and (np.broadcast_to(back, shape)[changed] >= min(furthest)).all():
        whole = [" (all there are)" if far == shape[-1] else "" for far in furthest]
        told = f"a token sees {furthest[1]} keys back{whole[1]}, in the reference {furthest[0]}{whole[0]}"
        return f"{told}: another window", "window"
    never = np.asarray(~sees.any((1, 2)))  # keys that no query of a row sees
    if extra.any() and not lost.any() and shape[0] > 1 and never.any() and not never.all():
        hidden = np.broadcast_to(never[:, None, None], shape)
        if hidden[extra].all():
            rows = ", ".join(str(row) for row in np.flatnonzero((extra & hidden).any((1, 2, 3)))[:6])
            return f"the candidate sees keys that the reference hides from all, in row {rows}: padding", "padding"
    return None


def _count_mask(extra: Mask, lost: Mask) -> tuple[str, str]:
    parts = []
    if extra.any():
        parts.append(f"sees {int(extra.sum())} keys that the reference's hides")
    if lost.any():
        parts.append(f"hides {int(lost.sum())} keys that the reference's shows")
    return f"the candidate's mask {' and '.join(parts)}, of {extra.size}", "other"


def _by_scores(ref: Floats, cand: Floats, noise: float) -> Hint | None:
    """The same places are attended to, with different scores: a factor, a sink, or a bias that depends on distance."""
    shown = (ref > 1e-12) & (cand > 1e-12)
    if shown.sum() < 64:
        return None
    logs = [np.log(np.where(shown, side, 1.0)) for side in (ref, cand)]
    counts = shown.sum(-1, keepdims=True)
    means = [side.sum(-1, keepdims=True) / np.maximum(counts, 1) for side in logs]
    one, other = (np.where(shown, side - mean, 0.0) for side, mean in zip(logs, means, strict=True))
    allowed = _LEFT * rms(other - one)
    limit = max(allowed, min(_LEFT_OF_FEW_BITS * rms(other - one), noise * rms(one)))
    is_alike = rms(other - one) <= noise * max(rms(one), 0.1)
    if is_alike and (hint := _by_masks(ref, cand)):
        return hint
    sums = [float(np.median(side.sum(-1))) for side in (ref, cand)]
    if is_alike and abs(sums[1] - sums[0]) > 0.02:
        full = "candidate" if sums[1] > sums[0] else "reference"
        if abs(max(sums) - 1) > 0.02:
            return None
        told = f"weights of the {full} add up to 1, on the other side to {min(sums):.3g} as a rule"
        return Hint("attention_sinks", f"{told}, and are alike otherwise: a sink is left out", {"sum": min(sums)})
    factor = float((one * other).sum() / max(float((one * one).sum()), 1e-300))
    if abs(factor - 1) > 0.01 and rms(other - factor * one) <= limit:
        return _scale_hint(factor)
    by_head = (one * other).sum((0, 2, 3)) / np.maximum((one * one).sum((0, 2, 3)), 1e-300)
    if len(by_head) > 1 and np.ptp(by_head) > 0.02 and rms(other - by_head[:, None, None] * one) <= limit:
        told = f"scores of each head are scaled by a factor of its own, {by_head.min():.4g} to {by_head.max():.4g}"
        return Hint("score_scale", told, {"lowest": float(by_head.min()), "highest": float(by_head.max())})
    return None


def _scale_hint(factor: float) -> Hint:
    told = f"scores before softmax are {factor:.6g} times the reference's"
    known = {f"sqrt({n})": n**0.5 for n in (2, 8, 16, 32, 64, 80, 96, 128, 192, 256, 512)} | {
        str(n): float(n) for n in (2, 3, 4, 8, 16, 32, 64, 128)
    }
    for name, value in known.items():
        if abs(factor / value - 1) < 5e-3:
            told += f" = {name}"
        elif abs(factor * value - 1) < 5e-3:
            told += f" = 1/{name}"
        else:
            continue
        break
    return Hint("score_scale", f"{told}: another softmax scale", {"factor": factor})


# --- by computing it -----------------------------------------------------------------------------

_FACTORS = tuple(2.0 ** (power / 2) for power in (*range(-8, 0), *range(1, 9)))
"""Softmax scales that are tried; wrong ones are usually off by the square root of a size."""


class _Recipe(NamedTuple):
    """A way to compute attention."""

    rope: str = "halves"
    scale: float = 1.0
    mask: str = "given"
    repeat: str = "each"
    split: str = "thirds"
    """How a fused part arranges queries, keys and values."""


class _Change(NamedTuple):
    """One property that is computed differently."""

    way: _Recipe
    kind: str
    told: str


def _by_recomputing(around: Surroundings, noise: float) -> Hint | None:
    known = attention_tensors(around)
    if known is None:
        return None
    found = next(
        (
            (size, way)
            for size, way in _usual_recipes(known)
            if _equals(known.ref, _recomputed(known, size, way), noise)
        ),
        None,
    )
    if found is None:
        return None
    size, way = found
    error = rms(known.cand - known.ref)
    limit = max(_LEFT * error, min(0.2 * error, noise * rms(known.ref)))
    made = ((change, rms(known.cand - _recomputed(known, size, change.way))) for change in _changes(way, known))
    right = [(change, left) for change, left in made if left <= limit]
    if not right or not _are_alike([_recomputed(known, size, change.way) for change, _ in right], limit):
        return None
    kind, left = right[0][0].kind, right[0][1] / error
    told = " or ".join(change.told for change, _ in right)
    whole = f"{told}; {explained(left)}"
    return Hint(kind, whole, {"residual": left, "heads": known.q.shape[-1] // size})


def _are_alike(made: list[Floats], limit: float) -> bool:
    """Whether explanations are equivalent: rotating by the head's number cancels if there are as many key heads as
    heads."""
    return all(rms(one - made[0]) <= limit / 2 for one in made)


def _equals(side: Floats, made: Floats, noise: float) -> bool:
    return rms(side - made) <= max(1e-4, noise) * rms(side)


def _usual_recipes(known: AttentionTensors) -> Iterator[tuple[int, _Recipe]]:
    """Usual head sizes and ways to compute attention."""
    width = known.q.shape[-1]
    rotated = known.tables[0].shape[-1] if known.tables else 0
    sizes = [size for size in (16, 32, 64, 80, 96, 128, 256, 8, 40, 48, 72, 160, 192) if width % size == 0]
    sizes = [size for size in (rotated, 2 * rotated, *sizes) if size and width % size == 0 and size >= rotated]
    fits = [s for s in dict.fromkeys(sizes) if known.k.shape[-1] % s == 0 and known.v.shape[-1] == known.k.shape[-1]]
    for size in fits[:6]:
        if known.mask is not None and known.mask.shape[1] not in (1, width // size):
            continue  # it is of other heads
        for scale in (size**-0.5, 1.0):
            for mask in ("given", "none") if known.mask is None else ("given",):
                for rope in ("halves", "neighbours") if known.tables else ("none",):
                    for split in ("thirds", "heads") if known.fused is not None else ("thirds",):
                        yield size, _Recipe(rope, scale, mask, split=split)


def _changes(way: _Recipe, known: AttentionTensors) -> Iterator[_Change]:
    """Every single change of a recipe, with its kind and a sentence."""
    if known.tables:
        other = "neighbours" if way.rope == "halves" else "halves"
        pairs = {"neighbours": "channels that are neighbours", "halves": "channels of two halves"}
        ropes = (
            ("none", "rope_missing", "queries and keys are not rotated"),
            ("twice", "rope_twice", "queries and keys are rotated twice"),
            ("back", "rope_sign", "queries and keys are rotated backwards"),
            (
                other,
                "rope_order",
                f"queries and keys are rotated by {pairs[other]}, in the reference by {pairs[way.rope]}",
            ),
            ("queries", "rope_missing", "only queries are rotated"),
            ("keys", "rope_missing", "only keys are rotated"),
            ("heads", "rope_positions", "the number of the head serves as position"),
            ("end", "rope_partial", "the last channels of a head are rotated instead of the first"),
        )
        for rope, kind, told in ropes:
            other_rope = f"{rope}:{way.rope}" if rope not in pairs else rope
            yield _Change(way._replace(rope=other_rope), kind, f"{told} (rope)")
    if known.fused is not None:
        words = {"thirds": "one after the other for all heads", "heads": "side by side for each head"}
        other = "heads" if way.split == "thirds" else "thirds"
        told = f"queries, keys and values are taken {words[other]}, in the reference {words[way.split]}"
        yield _Change(way._replace(split=other), "fused_layout", told)
    if known.q.shape[-1] != known.k.shape[-1]:
        told = "key heads are repeated all in turn instead of one by one (repeat and repeat_interleave)"
        yield _Change(way._replace(repeat="turn"), "kv_repeat", told)
    masks = (("causal", "the candidate's mask is causal"), ("none", "the candidate has no mask"))
    for mask, told in masks:
        if mask != way.mask:
            yield _Change(way._replace(mask=mask), "mask", told)
    for factor in _FACTORS:
        told = f"scores before softmax are {factor:.4g} times the reference's: another softmax scale"
        yield _Change(way._replace(scale=way.scale * factor), "score_scale", told)


def _recomputed(known: AttentionTensors, size: int, way: _Recipe) -> Floats:
    sides = known.q, known.k, known.v
    if known.fused is not None and way.split == "heads":
        apart = known.fused.reshape(*known.fused.shape[:2], -1, 3, size)
        sides = apart[..., 0, :], apart[..., 1, :], apart[..., 2, :]
    q, k, v = (side.reshape(*side.shape[:2], -1, size).swapaxes(1, 2) for side in sides)
    if known.tables:
        q, k = _rotated(q, k, known.tables, way.rope)
    times = q.shape[1] // k.shape[1]
    if times > 1:
        repeat: Callable[[Floats], Floats] = (
            (lambda x: np.repeat(x, times, 1)) if way.repeat == "each" else (lambda x: np.concatenate([x] * times, 1))
        )
        k, v = repeat(k), repeat(v)
    scores = q @ k.swapaxes(-1, -2) * way.scale
    scores = _masked(scores, known.mask, way.mask)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    made = weights / weights.sum(-1, keepdims=True) @ v
    return np.asarray(made.swapaxes(1, 2).reshape(known.ref.shape))


def _masked(scores: Floats, mask: Floats | None, kind: str) -> Floats:
    queries, keys = scores.shape[-2:]
    if kind == "given" and mask is not None and mask.shape[-1] == keys:
        return np.asarray(scores + np.maximum(mask, -1e30))
    if kind == "none":
        return scores
    hidden = np.arange(keys - queries, keys)[:, None] < np.arange(keys)
    return np.where(hidden, -1e30, scores)


def _rotated(q: Floats, k: Floats, tables: tuple[Floats, Floats], rope: str) -> tuple[Floats, Floats]:
    what, _, order = rope.partition(":")
    order = order or what
    if what == "none":
        return q, k
    cos, sin = (table.reshape(-1, 1, *table.shape[-2:]) for table in tables)
    if what == "heads":
        if cos.shape[2] < q.shape[1]:
            return q, k
        by_head = [table[:, 0, :, None] for table in (cos, sin)]
        turned = [_turn(x, by_head[0][:, : x.shape[1]], by_head[1][:, : x.shape[1]], order) for x in (q, k)]
        return turned[0], turned[1]
    if what == "back":
        sin = -sin

    def turn(x: Floats) -> Floats:
        return _turn(x, cos, sin, order)

    if what == "end":
        return turn(q[..., ::-1])[..., ::-1], turn(k[..., ::-1])[..., ::-1]
    if what == "twice":
        return turn(turn(q)), turn(turn(k))
    return (q if what == "keys" else turn(q)), (k if what == "queries" else turn(k))


def _turn(x: Floats, cos: Floats, sin: Floats, order: str) -> Floats:
    """Rotate the first channels of each head by a table that holds each frequency once or twice."""
    width = cos.shape[-1]
    if width * 2 <= x.shape[-1] and not np.array_equal(cos[..., : width // 2], cos[..., width // 2 :]):
        half = width
    else:
        half = width // 2
        cos, sin = cos[..., :half], sin[..., :half]
    part, rest = x[..., : 2 * half], x[..., 2 * half :]
    if order == "halves":
        one, other = part[..., :half], part[..., half:]
        turned = np.concatenate((one * cos - other * sin, other * cos + one * sin), -1)
    else:
        one, other = part[..., 0::2], part[..., 1::2]
        turned = np.stack((one * cos - other * sin, other * cos + one * sin), -1).reshape(part.shape)
    return np.concatenate((turned, rest), -1)
