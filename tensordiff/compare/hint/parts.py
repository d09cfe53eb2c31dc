"""Kinds recognized by other parts or by the part's role: a gate, a sibling's values, different weights, padding.

Each is tried on the whole sample, as in ``linear``, and given only if hardly anything of the error is left.
"""

from __future__ import annotations

import math

import numpy as np

from tensordiff.compare.hint import Evidence, Hint
from tensordiff.compare.hint.sample import Floats, SampledPair, listed, rms

_TINY = 1e-300
_UNRELATED = 0.15  # largest cosine of two unrelated sides
_LARGEST_CAP = 1e4  # beyond it every float is a round number, and what looks capped is a mask
_ENOUGH_TOKENS = 8  # tokens needed to subtract a mean
_ENOUGH = 256  # elements needed for a conclusion


def gate(pair: SampledPair) -> Hint | None:
    """The error is another tensor times a factor per token or per channel: a gate is missing or different."""
    sample = pair.rows
    for name, array in pair.context.near.items():
        other = pair.rows_of(array) if name not in pair.context.given else None  # a norm scales its input so
        if other is None or not other.any() or _is_same_direction(sample.ref, other):
            continue
        for what, axes, count in (("token", (2,), pair.channels), ("channel", (0, 1), math.prod(other.shape[:2]))):
            if count < 8:
                continue
            spread = np.square(other).sum(axes, keepdims=True)
            factors = (sample.error * other).sum(axes, keepdims=True) / np.maximum(spread, _TINY)
            rest = sample.error - factors * other
            if np.ptp(factors) < 0.05 or np.abs(factors).max() > 20 or not pair.explains(rest, sample):
                continue
            left = rms(rest) / rms(sample.error)
            told = (
                f"the reference plus {name} times a factor for each {what}, {factors.min():.3g} to {factors.max():.3g}"
            )
            evidence: Evidence = {"tensor": name, "along": what, "residual": left}
            return Hint("gate", f"{told}: a gate on it is missing, or another", evidence)
    return None


def _is_same_direction(ref: Floats, other: Floats) -> bool:
    """Whether the other tensor is the reference scaled a little by token or channel, which is no gate on a part."""
    both = np.abs((ref * other).sum(-1)) / np.maximum(
        np.linalg.norm(ref, axis=-1) * np.linalg.norm(other, axis=-1), _TINY
    )
    return float(np.median(both)) > 0.98


def gate_lost(pair: SampledPair) -> Hint | None:
    """One side is the other times a function of an input of the layer: its gate."""
    sample = pair.rows
    for name, array in pair.context.given.items():
        x = pair.rows_of(array)
        if x is None or x.size < 64:
            continue
        wide = x * sample.unit
        gates = {
            "sigmoid": 1 / (1 + np.exp(-wide)),
            "silu": wide / (1 + np.exp(-wide)),
            "": wide,
            "tanh": np.tanh(wide),
        }
        for function, factor in gates.items():
            for side, one, other in (("candidate", sample.cand, sample.ref), ("reference", sample.ref, sample.cand)):
                made = one * factor
                scale = float((made * other).sum() / max(float((made * made).sum()), _TINY))
                rest = other - scale * made
                if pair.explains(rest, sample) and rms(rest) <= 0.1 * rms(other) and 0.05 < abs(scale) < 20:
                    of = f"{function}({name})" if function else name
                    told = f"the {side} is not multiplied by {of}, and the other side is: its gate"
                    return Hint("gate", told, {"tensor": name, "function": function or "identity"})
    return None


def softcap(pair: SampledPair) -> Hint | None:
    """One side is the other, capped by tanh."""
    sample = pair.rows
    if sample.ref.size < 64 or not (sample.ref.any() and sample.cand.any()):
        return None
    for side, capped, plain in (("candidate", sample.ref, sample.cand), ("reference", sample.cand, sample.ref)):
        largest = float(np.abs(capped).max())
        if not largest < float(np.abs(plain).max()):
            continue
        caps = largest * np.exp(np.linspace(1e-4, 3, 400))
        few = _sampled_elements(plain, capped)
        rests = [rms(few[1] - cap * np.tanh(few[0] / cap)) for cap in caps]
        cap = float(caps[int(np.argmin(rests))])
        rest = capped - cap * np.tanh(plain / cap)
        is_bent = float(np.abs(plain).max()) > 0.3 * cap and rms(sample.error) > pair.floor * rms(plain)
        is_small = rms(rest) <= 0.05 * rms(capped) and np.median(np.abs(rest)) <= 0.05 * np.median(np.abs(capped))
        at = cap * sample.unit
        is_round = 0.9 < at < _LARGEST_CAP and abs(at - round(at)) <= 0.01 * at  # configured caps are round numbers
        if is_round and is_bent and is_small and rms(rest) <= max(0.02, min(0.2, pair.noise_share)) * rms(sample.error):
            told = f"the {side} is not capped, the other side is: {at:.4g} * tanh(x / {at:.4g})"
            return Hint("softcap", told, {"cap": at, "without": side})
    return None


def _sampled_elements(plain: Floats, capped: Floats) -> tuple[Floats, Floats]:
    """Elements of two tensors, evenly spread over the ranks of the first one's magnitudes."""
    flat, other = plain.reshape(-1), capped.reshape(-1)
    at = np.argsort(np.abs(flat))[:: max(1, flat.size // 512)]
    return flat[at], other[at]


def sibling(pair: SampledPair) -> Hint | None:
    """The candidate holds what a sibling part outputs in the reference."""
    sample = pair.rows
    for name, array in pair.context.siblings.items():
        other = pair.rows_of(array)
        if other is None or other.size < 64:
            continue
        rest = sample.cand - other
        if pair.explains(rest, sample) and rms(other - sample.ref) > 0.5 * rms(sample.ref):
            told = f"the candidate equals the reference's {name}: the two are swapped, or have each other's weights"
            return Hint("swapped_with", told, {"tensor": name, "residual": rms(rest) / rms(sample.error)})
    return None


def other_weights(pair: SampledPair) -> Hint | None:
    """The output of a matrix product or table is unrelated to the reference's, although its inputs agree."""
    sample = pair.rows
    if not pair.context.has_weights or sample.ref.size < _ENOUGH or pair.channels < 16:
        return None
    ref, cand = sample.ref, sample.cand
    if math.prod(ref.shape[:2]) >= _ENOUGH_TOKENS:  # subtract the bias, which may be the same
        ref, cand = ref - ref.mean((0, 1)), cand - cand.mean((0, 1))
    cosine = float(np.vdot(ref, cand) / max(rms(ref) * rms(cand) * ref.size, _TINY))
    each = (ref * cand).sum(-1) / np.maximum(np.linalg.norm(ref, axis=-1) * np.linalg.norm(cand, axis=-1), _TINY)
    if abs(cosine) > _UNRELATED or float(np.median(np.abs(each))) > max(0.3, 3 / math.sqrt(pair.channels)):
        return None
    times = rms(sample.cand) / rms(sample.ref)
    told = f"it has nothing in common with the reference (cosine {cosine:.2f}), and {times:.3g} times its size"
    why = "it has other weights: not loaded, of another layer, transposed, or in another order"
    return Hint("other_weights", f"{told}: {why}", {"cosine": cosine, "size": times})


def expert_weights(pair: SampledPair) -> Hint | None:
    """The weights of the chosen experts differ although the experts are the same."""
    if not pair.context.are_expert_weights:
        return None
    sums = [side.sum(-1) for side in (pair.rows.ref * pair.rows.unit, pair.rows.cand * pair.rows.unit)]
    is_one = [bool(np.abs(side / side.mean() - 1).max() < 0.02) for side in sums]
    evidence: Evidence = {"reference": float(np.median(sums[0])), "candidate": float(np.median(sums[1]))}
    ranges = [
        f"{side.mean():.3g}" if one else f"{side.min():.3g} to {side.max():.3g}"
        for side, one in zip(sums, is_one, strict=True)
    ]
    told = f"the weights of a token's experts add up to {ranges[1]}, in the reference to {ranges[0]}"
    if is_one[0] != is_one[1]:
        side = "candidate" if is_one[1] else "reference"
        return Hint("expert_weights", f"{told}: only the {side} normalizes them over the chosen ones", evidence)
    if is_one[0] and is_one[1] and abs(sums[1].mean() / sums[0].mean() - 1) > 0.02:
        factor = float(sums[1].mean() / sums[0].mean())
        return Hint("expert_weights", f"{told}, {factor:.4g} times as much: a scaling factor", evidence)
    return Hint("expert_weights", f"the same experts are chosen, with other weights; {told}", evidence)


def sinusoids(pair: SampledPair) -> Hint | None:
    """A table of sines and cosines that are in halves on one side and interleaved on the other."""
    if pair.channels % 2 or pair.channels < 8 or not pair.sees_all_channels:
        return None
    layouts = [_layout(side * pair.rows.unit) for side in (pair.rows.ref, pair.rows.cand)]
    if "" in layouts or layouts[0] == layouts[1]:
        return None
    words = {"halves": "in halves", "turns": "in turns"}
    told = f"sines and cosines stand {words[layouts[1]]}, in the reference {words[layouts[0]]}"
    return Hint("sinusoids", told, {"reference": layouts[0], "candidate": layouts[1]})


def _layout(side: Floats) -> str:
    half = side.shape[-1] // 2
    in_halves = np.square(side[..., :half]) + np.square(side[..., half:])
    in_turns = np.square(side[..., 0::2]) + np.square(side[..., 1::2])
    fits = [bool(np.abs(one - 1).max() < 0.05) for one in (in_halves, in_turns)]
    return "" if fits[0] == fits[1] else "halves" if fits[0] else "turns"


def norm_groups(pair: SampledPair) -> Hint | None:
    """One side normalizes groups of channels separately, the other all of them together or larger groups.

    Each token and group then has a factor. If groups are normalized separately, the mean square of each group, divided
    by the weight, is that of the whole, so the inverse squares of the factors average to one. That needs no input.
    """
    if pair.channels < 16 or not pair.sees_all_channels or pair.rows.ref.shape[0] * pair.rows.ref.shape[1] < 4:
        return None
    ref, cand = pair.rows.ref, pair.rows.cand
    for groups in (2, 4, 8, 16, 32):
        if pair.channels % groups or pair.channels // groups < 4:
            break
        ours, theirs = (side.reshape(*side.shape[:2], groups, -1) for side in (ref, cand))
        factors = (ours * theirs).sum(-1, keepdims=True) / np.maximum(np.square(ours).sum(-1, keepdims=True), _TINY)
        rest = (theirs - factors * ours).reshape(ref.shape)
        if (factors <= 0).any() or not pair.explains(rest, pair.rows) or np.ptp(factors, axis=2).max() < 0.02:
            continue
        for side, by in (("candidate", factors), ("reference", 1 / factors)):
            means = np.square(1 / by).mean(2)
            if float(np.abs(means - 1).mean()) <= 0.02 and float(np.abs(means - 1).max()) <= 0.1:
                told = f"the {side} norms {groups} groups of {pair.channels // groups} channels each by itself"
                return Hint(
                    "norm_groups", f"{told}, the other side all of them together", {"groups": groups, "side": side}
                )
    return None


def batch_rows(wrong: list[int], of: int, worst_right: float) -> Hint:
    """Some rows of a batch are wrong and the others right."""
    right = [row for row in range(of) if row not in wrong]
    which = (
        "all rows of the batch but the first" if right == [0] and of > 2
        else f"only row {wrong[0]} of {of} of the batch" if len(wrong) == 1
        else f"rows {listed(wrong)} of {of} of the batch"
    )  # fmt: skip
    is_are = "is" if len(wrong) == 1 else "are"
    evidence: Evidence = {"axis": 0, "rows": wrong, "of": of, "worst_right": worst_right}
    return Hint("batch_rows", f"{which} {is_are} wrong; the others differ by {worst_right:.1e} at most", evidence)


def padding(pair: SampledPair) -> Hint | None:
    """Exactly the tokens that the attention mask hides are wrong."""
    hidden, lead = pair.context.hidden, pair.shape[:-1]
    if hidden is None or len(lead) != 2 or hidden.shape != lead or not pair.sees_all:
        return None
    sizes = np.linalg.norm(pair.rows.ref, axis=-1)
    errors = np.linalg.norm(pair.rows.error, axis=-1) / np.maximum(sizes, 0.3 * float(np.median(sizes)) + _TINY)
    limit = max(pair.floor, 3 * pair.context.carried)
    if (errors[~hidden] > limit).any() or not (errors[hidden] > 5 * limit).mean() > 0.8:
        return None
    rows = [int(row) for row in np.flatnonzero(hidden.any(1))]
    told = f"only tokens that the attention mask hides are wrong, {int(hidden.sum())} of {hidden.size}"
    return Hint(
        "padding",
        f"{told}, in row {listed(rows)}: padding",
        {"rows": rows, "hidden": int(hidden.sum()), "of": hidden.size},
    )
