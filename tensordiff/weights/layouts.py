"""Shapes that fit, and layouts that a whole checkpoint has by convention.

A transposed ``Conv1D``, an embedding padded to a round number of rows, llama.cpp's order of rope's rows: each of these
is no bug if all parameters of its kind have it. If most have it and one does not, that one is a finding.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tensordiff.dump.model import StoredTensor
from tensordiff.errors import AlignError, DumpError
from tensordiff.weights.packed import quantization_of
from tensordiff.weights.samples import are_alike, as_floats, slack_of
from tensordiff.weights.sides import ParameterPair, SideView
from tensordiff.weights.transposition import with_transposition
from tensordiff.weights.views import (
    Concatenated,
    Reshaped,
    Rows,
    RowsPermuted,
    Shifted,
    Transposed,
    deinterleaved,
    interleaved,
    read_rows,
)  # fmt: skip

_ROPE = re.compile(r"(?:^|\.)([qk])_proj\.(?:weight|bias)$")
_NORM = re.compile(r"norm\.weight$")
_SAMPLE_COLUMNS = 64
_MOST_HEAD = 1024


def fit_shapes(pair: ParameterPair) -> ParameterPair:
    """The pair in one shape, if joining shards, transposing or dropping padding achieves that."""
    pair = _with_shards(pair)
    a, b = pair.reference.stored.spec.shape, pair.candidate.stored.spec.shape
    if a == b:
        return pair
    if tuple(n for n in a if n != 1) == tuple(n for n in b if n != 1):
        reshaped = pair.candidate.with_view(Reshaped(pair.candidate.stored, a), f"as {list(a)}")
        return replace(pair, candidate=reshaped)
    if len(a) == len(b) >= 2 and (*a[:-2], a[-1], a[-2]) == b:
        return replace(pair, candidate=pair.candidate.with_view(Transposed(pair.candidate.stored), "transposed"))
    is_vocabulary = any(item.is_vocabulary for side in (pair.reference, pair.candidate) for item in side.parameters)
    if len(a) == len(b) and a[1:] == b[1:] and is_vocabulary:
        return _with_rows(pair, min(a[0], b[0]), b[0] - a[0])
    return replace(pair, mismatch=f"shapes differ: {list(a)} and {list(b)}")


def _with_rows(pair: ParameterPair, rows: int, extra: int) -> ParameterPair:
    sides = [
        side if side.stored.spec.shape[0] == rows else side.with_view(Rows(side.stored, rows), f"first {rows} rows")
        for side in (pair.reference, pair.candidate)
    ]
    return replace(pair, reference=sides[0], candidate=sides[1], extra_rows=extra)


def _with_shards(pair: ParameterPair) -> ParameterPair:
    """Join what several devices hold in parts, so that it has the other side's shape."""
    sides = [pair.reference, pair.candidate]
    for k, side in enumerate(sides):
        if len(side.parameters) != 1 or not (shards := side.parameters[0].shards):
            continue
        wanted = sides[1 - k].stored.spec.shape
        if joined := joined_shards(shards, wanted):
            sides[k] = side.with_view(*joined)
    return replace(pair, reference=sides[0], candidate=sides[1])


def joined_shards(shards: Sequence[StoredTensor], shape: tuple[int, ...]) -> tuple[StoredTensor, str] | None:
    """Shards joined along the axis that gives a shape; the first one if each has it by itself."""
    first = shards[0].spec.shape
    if first == shape:
        return shards[0], f"one of {len(shards)} replicas"
    for axis in range(len(first)):
        alike = all(
            s.spec.shape[:axis] == first[:axis] and s.spec.shape[axis + 1 :] == first[axis + 1 :] for s in shards
        )
        if alike and Concatenated(tuple(shards), axis).spec.shape == shape:
            return Concatenated(tuple(shards), axis), f"cat of {len(shards)} shards along {axis}"
    return None


def replicas_differ(side: SideView) -> bool:
    """Whether devices that should hold the same do not."""
    item = side.parameters[0]
    if len(side.parameters) != 1 or not item.shards or not any("replicas" in view for view in side.views):
        return False
    first = item.shards[0].read()
    return any(not np.array_equal(first, other.read()) for other in item.shards[1:])


def with_conventions(pairs: Sequence[ParameterPair], is_permuted: bool) -> list[ParameterPair]:
    """Pairs viewed by the layouts that their checkpoints use throughout."""
    viewed = with_transposition(pairs)
    return _with_shifted_norms(_with_rope_order(viewed)) if is_permuted else viewed


def _with_shifted_norms(pairs: Sequence[ParameterPair]) -> list[ParameterPair]:
    """Subtract the 1 that GGUF adds to Gemma's norms (its code adds it, too): all norms have it, or none."""
    norms = [
        k for k, pair in enumerate(pairs) if _NORM.search(pair.name) and len(pair.reference.stored.spec.shape) == 1
    ]
    shifted = [k for k in norms if _is_one_more(pairs[k])]
    if 2 * len(shifted) <= len(norms):
        return list(pairs)
    result = list(pairs)
    for k in norms:
        side = pairs[k].candidate
        shifted_view = side.with_view(Shifted(side.stored, -1.0), "less the 1 that GGUF adds to norms")
        result[k] = replace(pairs[k], candidate=shifted_view, convention="norms kept as 1 + w")
    return result


def _is_one_more(pair: ParameterPair) -> bool:
    if pair.mismatch:
        return False
    try:
        ref, cand = (as_floats(side.stored.read()) for side in (pair.reference, pair.candidate))
    except (DumpError, AlignError):
        return False
    slack = max(slack_of(pair.reference.stored, pair.candidate.stored), 1e-6)
    return bool(ref.size > 1 and np.abs(cand - ref - 1).max() <= 2 * slack * max(1.0, float(np.abs(cand).max())))


# --- rope ----------------------------------------------------------------------------------------


def _with_rope_order(pairs: Sequence[ParameterPair]) -> list[ParameterPair]:
    """Reorder rope's rows as most layers need it: GGUF and Llama's original code interleave the halves."""
    votes: Counter[tuple[str, str, int]] = Counter()
    counts: Counter[str] = Counter()
    for pair in pairs:
        match = _ROPE.search(pair.name)
        if match is None or pair.mismatch:
            continue
        counts[match[1]] += 1
        if (order := rope_order(pair)) is not None:
            votes[match[1], *order] += 1
    chosen = {part: (way, head) for (part, way, head), count in votes.items() if 2 * count > counts[part]}
    return [_with_rope(pair, chosen) for pair in pairs]


def _with_rope(pair: ParameterPair, chosen: dict[str, tuple[str, int]]) -> ParameterPair:
    match = _ROPE.search(pair.name)
    if match is None or pair.mismatch or match[1] not in chosen:
        return pair
    way, head = chosen[match[1]]
    stored = pair.candidate.stored
    reordered = RowsPermuted(stored, _order(way, stored.spec.shape[0], head))
    view = f"rope's rows {way} in heads of {head}"
    return replace(pair, candidate=pair.candidate.with_view(reordered, view), convention=view)


def _order(way: str, rows: int, head: int) -> NDArray[np.int64]:
    return interleaved(rows, head) if way == "interleaved" else deinterleaved(rows, head)


def rope_order(pair: ParameterPair) -> tuple[str, int] | None:
    """How the candidate's rows must be ordered within heads to equal the reference's; None if they do already."""
    try:
        ref, cand = (_columns(side.stored) for side in (pair.reference, pair.candidate))
    except (DumpError, AlignError):
        return None
    slack = slack_of(pair.reference.stored, pair.candidate.stored)
    if are_alike(cand, ref, slack):
        return None
    rows = len(ref)
    for head in (n for n in range(4, min(rows, _MOST_HEAD) + 1, 2) if rows % n == 0):
        for way in ("deinterleaved", "interleaved"):
            if are_alike(cand[_order(way, rows, head)], ref, slack):
                return way, head
    return None


def _columns(stored: StoredTensor) -> NDArray[np.float32]:
    """The first columns of all rows."""
    shape = stored.spec.shape
    if len(shape) < 2:
        return as_floats(stored.read())[:, None]
    is_mapped = quantization_of(stored) is None
    rows = stored.read() if is_mapped else read_rows(stored, 0, shape[0])
    return as_floats(rows.reshape(shape[0], -1)[:, :_SAMPLE_COLUMNS])
