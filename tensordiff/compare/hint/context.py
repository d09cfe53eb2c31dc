"""The context of a pair, for tests that need more than its two tensors: inputs, parts, routes, incoming error.

A lost residual is one of the tensors around the layer in the reference's dump; a wrong activation shows in the layer's
input; a wrong expert shows in the routes. Only tensors of the same size as the pair are read.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tensordiff.align.match import Pair
from tensordiff.compare.hint.axes import DumpedPairs
from tensordiff.compare.judge import routes as routing
from tensordiff.compare.judge.parents import parent_of
from tensordiff.compare.judge.verdict import floor_for
from tensordiff.compare.row import Row, readable_spec, values_of
from tensordiff.dump.dtypes import Array, is_float
from tensordiff.dump.model import Dump, Entry
from tensordiff.errors import DumpError, printable

_MOST_TENSORS = 16
_MOST_CHOICES = 64  # experts per token; a longer row of integers is not routes


@dataclass(frozen=True)
class HintContext:
    """The context of a pair; every field may be empty."""

    near: Mapping[str, Array] = field(default_factory=dict)
    """Tensors of the reference, by name, that the candidate may have lost or added twice."""
    given: Mapping[str, Array] = field(default_factory=dict)
    """The inputs of the layer itself, in the reference."""
    routes: tuple[tuple[Array, Array], ...] = ()
    """The experts that each token was sent to, on both sides, if the layer belongs to a mixture of experts."""
    is_router: bool = False
    """Whether the layer itself chose the experts."""
    carried: float = 0.0
    """The error (rel_l2) of the layer's input."""
    siblings: Mapping[str, Array] = field(default_factory=dict)
    """The outputs of other matrix products of the same module, in the reference, if the layer is a matrix product."""
    has_weights: bool = False
    """Whether the layer is a single matrix product or embedding table."""
    are_expert_weights: bool = False
    """Whether the pair holds the weights of the chosen experts, and both sides chose the same experts."""
    batch: int = 0
    """The number of rows of a batch; 0 if unknown."""
    hidden: NDArray[np.bool_] | None = None
    """Tokens that the attention mask hides, [rows, tokens]; None if no mask was dumped, or it hides none."""
    computed_in: tuple[str, str] | None = None
    """The coarsest types that explain the pair's error; None if those are the stored types."""
    are_tokens_of_expert: bool = False
    """Whether rows are the tokens of one expert, which may be different tokens on each side."""


def context_of(row: Row, pairs: DumpedPairs, reference: Dump, size: int) -> HintContext:
    """Collect the context of a row whose tensors have ``size`` elements."""
    entry = row.pair.reference
    routes = tuple(_routes(row.pair, pairs))
    gives_routes = any(pair.reference.layer == entry.layer and not pair.reference.is_input for pair, _ in routes)
    return HintContext(
        near=tensors_near(entry, reference, size),
        given=inputs_of(entry, reference, size),
        routes=tuple(sides for _, sides in routes),
        is_router=gives_routes and routing.is_router(row.pair),
        carried=carried_into(row),
        siblings=_siblings(entry, reference, size),
        has_weights=_has_weights(entry, reference) or _is_head(row, reference),
        are_expert_weights=_are_expert_weights(row.pair, [sides for _, sides in routes]),
        batch=batch_of(pairs),
        hidden=_hidden(entry, pairs),
        computed_in=row.computed_in,
        are_tokens_of_expert=_PART_OF_EXPERTS.search(entry.layer) is not None,
    )


_PART_OF_EXPERTS = re.compile(r"(?:^|\.)experts\.(?!\d)")
_MATRIX = re.compile(r"(?:^|\.)(?:\w*_proj|lm_head|dense|fc_?\d?|linear_?\d?|wte|wpe|embed\w*|word_embeddings|c_attn)$")
_MATRIX_CLASS = re.compile(r"(?:Linear|Embedding|Conv1D)$")


def _has_weights(entry: Entry, dump: Dump) -> bool:
    """Whether a layer is a single matrix product or table, and its inputs are known."""
    if not any(_is_input_of(other, entry) for other in dump.entries):
        return False  # its input may be just as wrong
    return _is_matrix(entry, dump)


def _is_matrix(entry: Entry, dump: Dump) -> bool:
    """Whether a layer is a matrix product or table, by its class, or by its name if the class is unknown."""
    if entry.is_input or any(other.layer.startswith(f"{entry.layer}.") for other in dump.entries):
        return False
    kind = entry.origin.module_class if entry.origin else ""
    if kind:
        return _MATRIX_CLASS.search(kind) is not None and "Rot" not in kind
    return _MATRIX.search(entry.layer) is not None


_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out)$")


def _is_head(row: Row, dump: Dump) -> bool:
    """Whether a row is the output of a head, and everything that ran before agrees.

    Its inputs need not have been dumped: between the last states and the head there is only a norm, which could not
    change that. The output of a whole model is that of its head if its width differs from that of its blocks.
    """
    entry, carried = row.pair.reference, carried_into(row)
    if entry.is_input or not carried or carried > floor_for(*(row.computed_in or row.dtypes or ("", "")))[1].agrees:
        return False
    outputs = [other for other in dump.entries if not other.is_input and other.step == entry.step]
    is_whole = all(other.layer == entry.layer or other.layer.startswith(f"{entry.layer}.") for other in outputs)
    if not is_whole and not _HEAD.search(entry.layer):
        return False
    before = itertools.takewhile(lambda other: other.key != entry.key, outputs)
    states = [_shape_of(other) for other in before if not _HEAD.search(other.layer)]
    own = _shape_of(entry)
    return bool(own and states) and own[:-1] == states[-1][:-1] and own[-1] != states[-1][-1]


def _siblings(entry: Entry, dump: Dump, size: int) -> dict[str, Array]:
    """Outputs of the other parts of the same module. Equal values prove a swap even without inputs."""
    parent = parent_of(entry.layer)
    if not parent or not _is_matrix(entry, dump):
        return {}
    kind = entry.origin.module_class if entry.origin else None
    beside = (
        other
        for other in dump.entries
        if not other.is_input and other.step == entry.step and other.layer != entry.layer
        and parent_of(other.layer) == parent
        and (other.origin.module_class if other.origin else None) == kind
    )  # fmt: skip
    return _first_few(beside, size)


def _are_expert_weights(pair: Pair, routes: Sequence[tuple[Array, Array]]) -> bool:
    """Whether a pair has one number per chosen expert, and both sides chose the same experts."""
    spec = readable_spec(pair.reference)
    if spec is None:
        return False
    fits = [sides for sides in routes if sides[0].shape == spec.shape]
    return (
        is_float(spec.dtype)
        and bool(fits)
        and all(np.array_equal(*sides) for sides in fits)
        and routing.is_router(pair)
    )


def _hidden(entry: Entry, pairs: DumpedPairs) -> NDArray[np.bool_] | None:
    """The tokens that the model's attention mask hides in a step."""
    masks = pairs.where(
        lambda other: other.is_input and other.step == entry.step and other.port.endswith("attention_mask")
    )
    for pair in masks:
        sides = values_of(pair) if len(_shape(pair)) == 2 else None
        if sides is not None and np.isin(sides[0], (0, 1)).all() and not np.asarray(sides[0]).all():
            return np.asarray(np.asarray(sides[0]) == 0)
    return None


_OF_BATCH = re.compile(r"input_ids$|attention_mask$|pixel_values$|input_values$|input_features$|sample$")


def batch_of(pairs: DumpedPairs) -> int:
    """The number of rows of a batch, from the model's inputs; 0 if they were not dumped."""
    for pair in pairs.where(lambda entry: entry.is_input and _OF_BATCH.search(entry.port)):
        shape = _shape(pair)
        if len(shape) >= 2:
            return int(shape[0])
    sizes = [s[0] for pair in pairs.first(64) if (s := _shape(pair)) and len(s) == 3]
    return int(sizes[0]) if sizes and len(set(sizes)) == 1 else 0


def _shape(pair: Pair) -> tuple[int, ...]:
    return _shape_of(pair.reference)


def _shape_of(entry: Entry) -> tuple[int, ...]:
    spec = readable_spec(entry)
    return () if spec is None else spec.shape


def carried_into(row: Row) -> float:
    """The error of the row's input, as far as the row records it."""
    return row.diff.rel_l2 / row.amplification if row.diff and row.amplification else 0.0


def tensors_near(entry: Entry, dump: Dump, size: int) -> dict[str, Array]:
    """Tensors of ``size`` elements that an output may be off by: inputs of its layer first, then the tensors of its
    parts."""
    if entry.is_input:
        return {}
    near = (other for other in dump.entries if other.step == entry.step and _is_near(other, entry))
    return _first_few(sorted(near, key=lambda other: other.layer != entry.layer), size)


def inputs_of(entry: Entry, dump: Dump, size: int) -> dict[str, Array]:
    """The inputs of an output's layer with ``size`` elements, by name."""
    if entry.is_input:
        return {}
    return _first_few((other for other in dump.entries if _is_input_of(other, entry)), size)


def _is_near(other: Entry, entry: Entry) -> bool:
    if other.layer == entry.layer:
        return _is_input_of(other, entry)
    parent, _, part = other.layer.rpartition(".")
    return bool(part) and parent == entry.layer


def _is_input_of(other: Entry, entry: Entry) -> bool:
    return other.is_input and other.call_key == entry.call_key


def _first_few(entries: Iterable[Entry], size: int) -> dict[str, Array]:
    tensors: dict[str, Array] = {}
    for entry in entries:
        if len(tensors) < _MOST_TENSORS:
            tensors |= _read(entry, size)
    return tensors


def _read(entry: Entry, size: int) -> dict[str, Array]:
    """An entry by its name; empty if it cannot be read, which the entry's own row reports."""
    try:
        fits = entry.spec.size == size and is_float(entry.spec.dtype)
        return {printable(entry.name): entry.read()} if fits else {}
    except DumpError:
        return {}


def _routes(pair: Pair, pairs: DumpedPairs) -> Iterator[tuple[Pair, tuple[Array, Array]]]:
    """Pairs that may be routes: integers, a few per token, of the layer, of a part of it or of a sibling."""
    entry, parent = pair.reference, parent_of(pair.reference.layer)

    def is_near(other: Entry) -> bool:
        if other.step != entry.step:
            return False
        around = parent_of(other.layer)
        return other.layer == entry.layer or around == entry.layer or (parent != "" and around == parent)

    for other in pairs.where(is_near):
        if routing.is_router(other) and _may_be_routes(other):
            sides = values_of(other)
            if sides is not None:
                yield other, sides


def _may_be_routes(pair: Pair) -> bool:
    spec = readable_spec(pair.reference)
    if spec is None:
        return False
    return spec.dtype.kind in "iu" and len(spec.shape) >= 2 and 1 <= spec.shape[-1] <= _MOST_CHOICES and spec.size > 0
