"""How tensors are split among ranks if the dump does not say: what values, shapes and conventions prove.

Parts of one shape and different values may be columns, rows of a sequence, or summands. The proofs, in this order:

- Joined along one axis, or summed, they equal another tensor of the dump that all ranks hold alike.
- The tensors that all ranks hold alike show the number of tokens and the width of the model. A part with all tokens and
  another width is some of the columns; one with the model's width and too few tokens is some of the tokens.
- Tensor parallelism splits the same layers everywhere: those before an activation by columns, those after it by rows.

Parts that are nearly equal are none of these: they should be equal, and are not.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Entry
from tensordiff.dump.ranks.joined_tensor import RankPart, Split

_MOST_ELEMENTS = 1 << 24
_NEARLY_ALIKE = 0.25
"""Relative distance: parts of a tensor are further apart than this, diverged replicas seldom are."""
_LAYERS = r"(?:^|\.)(?:{})$"
_BY_COLUMNS = re.compile(_LAYERS.format(
    "[qkv]_proj|(?:q|kv)_[ab]_proj|qkv_proj|gate_proj|up_proj|gate_up_proj|act_fn|lm_head|output_layer|linear_qkv"
    "|linear_fc1|query_key_value|dense_h_to_4h|query|key|value|fc1|w1|w3|c_fc|wq|wk|wv"
))  # fmt: skip
_BY_ROWS = re.compile(_LAYERS.format(
    "o_proj|down_proj|linear_proj|linear_fc2|dense_4h_to_h|out_proj|fc2|w2|wo|embed_tokens|word_embeddings"
))  # fmt: skip

_FUSED = re.compile(r"(?:^|\.)(qkv_proj|gate_up_proj|w13)$")


class RankProofs:
    """The tensors that all ranks hold alike, which prove how others are split."""

    def __init__(self, groups: Sequence[Sequence[RankPart]], wholes: Sequence[Entry] = ()) -> None:
        self._groups, self._wholes = groups, wholes

    def split_of(self, entries: Sequence[Entry]) -> Split | None:
        """How parts of one shape make a whole: ``replicated`` if they should be equal, None if nothing proves it."""
        arrays = [entry.read() for entry in entries]
        first = arrays[0]
        if first.dtype.kind not in "fV" or not 0 < first.size <= _MOST_ELEMENTS or first.ndim == 0:
            return None
        wide = [array.astype(np.float64) for array in arrays]
        if is_nearly_alike(wide[0], wide[1]):
            return "replicated"
        proven = self._by_value(wide, entries[0])
        return self._by_shape(entries) if proven is None else proven

    def pieces(self, group: Sequence[RankPart]) -> tuple[int, ...] | None:
        """What a fused layer's part holds along its last axis on each rank; empty if the layer fuses nothing.

        None if it fuses something and nothing says how much of it is query: simply concatenating parts would be wrong.
        """
        entry = group[0].entry
        shape = entry.spec.shape
        if entry.is_input or not shape or not (match := _FUSED.search(entry.layer)):
            return ()
        width = shape[-1]
        if match[1] != "qkv_proj":
            return (width // 2, width // 2) if width % 2 == 0 else None
        attention = entry.layer[: match.start(1)]
        query = self._widths.get((f"{attention}o_proj", entry.step))
        if query is None or not 0 < query < width or (width - query) % 2:
            return None
        return query, (width - query) // 2, (width - query) // 2

    @cached_property
    def _widths(self) -> dict[tuple[str, int], int]:
        """How wide the inputs of layers are on one rank."""
        inputs = (group[0].entry for group in self._groups if group[0].entry.is_input)
        return {(item.layer, item.step): item.spec.shape[-1] for item in inputs if item.spec.shape}

    def _by_value(self, arrays: Sequence[Array], of: Entry) -> Split | None:
        candidates: list[tuple[Split, Array]] = [("sum", np.sum(arrays, axis=0))]
        candidates += ((axis, np.concatenate(arrays, axis=axis)) for axis in range(arrays[0].ndim))
        for split, whole in candidates:
            if any(_is_same(whole, other) for other in self._replicated_of_shape(whole.shape, of)):
                return split
        return None

    def _by_shape(self, entries: Sequence[Entry]) -> Split | None:
        first = entries[0]
        shape, count, last = first.spec.shape, len(entries), len(first.spec.shape) - 1
        leading, widths = self._extents.get(first.step, ((), frozenset[int]()))
        if leading and shape[:-1] == leading and shape[-1] not in widths:
            return last
        if shape[-1] in widths:
            longer = (
                axis for axis in range(last) if (*shape[:axis], shape[axis] * count, *shape[axis + 1 : -1]) == leading
            )
            if (axis := next(longer, None)) is not None:
                return axis
        if shape[:-1] != leading and leading:
            return None
        split = _by_convention(first, last)
        return None if split == "sum" and not leading else split

    def _replicated_of_shape(self, shape: tuple[int, ...], of: Entry) -> Iterator[Array]:
        for first in self._replicated.get(shape, ()):
            if first.step == of.step:
                yield first.read()

    @cached_property
    def _replicated(self) -> dict[tuple[int, ...], list[Entry]]:
        """Tensors that every rank holds alike, by shape."""
        by_shape: dict[tuple[int, ...], list[Entry]] = defaultdict(list)
        for entry in self._wholes:
            by_shape[entry.spec.shape].append(entry)
        for group in self._groups:
            entries = [part.entry for part in group]
            if len(group) > 1 and len({e.spec for e in entries}) == 1 and first_difference(entries) is None:
                by_shape[entries[0].spec.shape].append(entries[0])
        return by_shape

    @cached_property
    def _extents(self) -> dict[int, tuple[tuple[int, ...], frozenset[int]]]:
        """For each step, the leading axes of whole tensors, and the widths of the residual stream."""
        alike = [(entry.step, shape) for shape, entries in self._replicated.items() for entry in entries]
        shapes: dict[int, Counter[tuple[int, ...]]] = defaultdict(Counter)
        for step, shape in alike or _sequence_parallel(self._groups):
            if len(shape) > 1 and shape[-1] > 1:
                shapes[step][shape] += 1
        extents: dict[int, tuple[tuple[int, ...], frozenset[int]]] = {}
        for step, counts in shapes.items():
            leading: Counter[tuple[int, ...]] = Counter()
            for shape, count in counts.items():
                leading[shape[:-1]] += count
            axes = leading.most_common(1)[0][0]
            extents[step] = axes, frozenset(shape[-1] for shape in counts if shape[:-1] == axes)
        return extents


def _sequence_parallel(groups: Sequence[Sequence[RankPart]]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Whole shapes if no tensor is replicated: some parts have all tokens, others a share of them along one axis."""
    shapes = {(group[0].entry.step, group[0].entry.spec.shape, len(group)) for group in groups if len(group) > 1}
    longest = {(step, shape[:-1]) for step, shape, _ in shapes if len(shape) > 1}
    for step, shape, count in shapes:
        for axis in range(len(shape) - 1):
            whole = (*shape[:axis], shape[axis] * count, *shape[axis + 1 :])
            if (step, whole[:-1]) in longest:
                yield step, whole


def _by_convention(entry: Entry, last: int) -> Split | None:
    """How tensor parallelism splits a layer of this name."""
    if entry.is_input:
        return last if _BY_ROWS.search(entry.layer) or entry.layer.endswith("act_fn") else None
    if _BY_ROWS.search(entry.layer):
        return "sum"
    return last if _BY_COLUMNS.search(entry.layer) else None


def first_difference(entries: Sequence[Entry]) -> int | None:
    """The index of the first entry whose bytes differ from those of entry 0."""
    first = as_bytes(entries[0])
    for index, other in enumerate(entries[1:], 1):
        if not np.array_equal(first, as_bytes(other)):
            return index
    return None


def as_bytes(entry: Entry) -> Array:
    """The bytes of an entry, in order."""
    return np.ascontiguousarray(entry.read()).reshape(-1).view(np.uint8)


def is_nearly_alike(one: Array, other: Array) -> bool:
    """Whether two parts are so close that they should have been equal."""
    if one.shape != other.shape:
        return False
    with np.errstate(all="ignore"):
        apart, size = float(np.linalg.norm(one - other)), float(np.linalg.norm(one))
    return not apart > _NEARLY_ALIKE * size


def _is_same(whole: Array, other: Array) -> bool:
    """Whether a whole equals another tensor up to rounding."""
    if whole.shape != other.shape or other.dtype.kind not in "fV":
        return False
    values = other.astype(np.float64)
    scale = float(np.abs(values).max(initial=0.0))
    room = 1e-5 if other.dtype.itemsize >= 4 else 2e-2
    return scale > 0 and bool(np.allclose(whole, values, rtol=0, atol=room * scale))
