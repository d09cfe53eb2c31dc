"""Weights that one side keeps as [in, out] and the other as [out, in]: when that is a layout, and when a bug.

It is a layout if a checkpoint keeps most of its linear weights so, or calls them ``kernel``. Stacks of experts say
nothing about linear weights, nor does the vocabulary: stacks have a layout of their own, and an embedding or a head
that is transposed alone was transposed by mistake. Values of a square weight are examined only if there is a layout:
its shape fits without the transposition that all others got, so that it is easily forgotten there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tensordiff.dump.names import NUMBER_PART
from tensordiff.errors import AlignError, DumpError
from tensordiff.weights.samples import are_alike, sample, slack_of
from tensordiff.weights.sides import ParameterPair
from tensordiff.weights.views import Transposed

VIEW = "transposed"
MIXED_LAYOUT = "laid out differently from the other layers: rows and columns are exchanged"
TRANSPOSED_ALONE = "transposed: rows and columns are exchanged, while most other weights have them in order"
NOT_TRANSPOSED_ALONE = "not transposed: rows and columns are in order, while most other weights have them exchanged"
KERNEL_NOT_TRANSPOSED = "not transposed: rows and columns are in order, while a kernel has them exchanged"
LAYOUT_FINDINGS = (MIXED_LAYOUT, TRANSPOSED_ALONE, NOT_TRANSPOSED_ALONE, KERNEL_NOT_TRANSPOSED)

_KERNEL = re.compile(r"(?:^|[./])kernel$")
_TABLE = re.compile(r"embed|position|_bias|table|token_type")
"""Names of weights whose rows are looked up rather than multiplied by: they have one layout everywhere."""


def with_transposition(pairs: Sequence[ParameterPair]) -> list[ParameterPair]:
    """Pairs viewed by the layout that their checkpoints use throughout; deviations are findings."""
    ways = {is_stack: _is_layout(list(_voters(pairs, is_stack))) for is_stack in (False, True)}
    squares = [
        _transposed_by_value(pair) if ways[_is_stack(pair)] or _is_kernel(pair) else pair for pair in pairs
    ]  # fmt: skip
    viewed = _same_in_all_layers(_with_untransposed_findings(squares, is_layout=ways[False]))
    return [pair if ways[_is_stack(pair)] or _is_kernel(pair) else _finding_if_transposed(pair) for pair in viewed]


def is_transposed(pair: ParameterPair) -> bool:
    """Whether the candidate is viewed transposed."""
    return VIEW in pair.candidate.views


def _finding_if_transposed(pair: ParameterPair) -> ParameterPair:
    # What the user maps is as it should be, and for a weight that was found by its values, no name suggests a layout.
    is_finding = is_transposed(pair) and not pair.mismatch and pair.by not in ("map", "value")
    return replace(pair, mismatch=TRANSPOSED_ALONE) if is_finding else pair


def _voters(pairs: Sequence[ParameterPair], is_stack: bool) -> Iterator[ParameterPair]:
    """The weights that show the layout of linear ones, or of stacks."""
    for pair in pairs:
        sides = pair.reference, pair.candidate
        is_vocabulary = any(item.is_vocabulary for side in sides for item in side.parameters)
        is_matrix = not pair.mismatch and len(pair.reference.stored.spec.shape) > 1
        if is_matrix and not is_vocabulary and _is_stack(pair) == is_stack:
            yield pair


def _is_layout(voters: Sequence[ParameterPair]) -> bool:
    """Whether most weights are transposed: a rectangular one shows it by its shape, a square one by its values."""
    if not any(map(is_transposed, voters)):
        return False
    viewed = [_transposed_by_value(pair) for pair in voters]
    return 2 * sum(map(is_transposed, viewed)) > len(viewed)


def _is_stack(pair: ParameterPair) -> bool:
    return len(pair.reference.stored.spec.shape) > 2


def _is_kernel(pair: ParameterPair) -> bool:
    """Whether one side calls it a kernel, which is [in, out], and the other does not."""
    ours, theirs = (any(_KERNEL.search(p.name) for p in side.parameters) for side in (pair.reference, pair.candidate))
    return ours != theirs


def _with_untransposed_findings(pairs: Sequence[ParameterPair], *, is_layout: bool) -> list[ParameterPair]:
    """Report square weights that are not transposed in most layers, if linear weights, or kernels, are."""
    oblong = [is_transposed(pair) for pair in pairs if _is_kernel(pair) and not pair.mismatch and not _is_square(pair)]
    are_kernels_transposed = 2 * sum(oblong) >= len(oblong)  # else these are kernels by name alone
    result = list(pairs)
    for members in _kinds(pairs).values():
        if 2 * sum(is_transposed(pairs[k]) for k in members) >= len(members):
            continue
        for k in members:
            by_name = are_kernels_transposed and _is_kernel(pairs[k])
            if (is_layout or by_name) and _is_untransposed(pairs[k]):
                result[k] = replace(pairs[k], mismatch=NOT_TRANSPOSED_ALONE if is_layout else KERNEL_NOT_TRANSPOSED)
    return result


def _is_untransposed(pair: ParameterPair) -> bool:
    """Whether a square linear weight equals the reference's as it is, and would not transposed."""
    a, b = pair.reference.stored, pair.candidate.stored
    if pair.by == "map" or is_transposed(pair) or not _is_square(pair) or not _is_linear(pair):
        return False
    try:
        first, slack = sample(a), slack_of(a, b)
        return are_alike(sample(b), first, slack) and not are_alike(sample(Transposed(b)), first, slack)
    except (DumpError, AlignError):
        return False  # measuring says why


def _is_linear(pair: ParameterPair) -> bool:
    """Whether a matrix is what a layer multiplies by: a weight that is no table."""
    items = [*pair.reference.parameters, *pair.candidate.parameters]
    is_table = any(item.is_vocabulary or _TABLE.search(f"{item.canonical} {item.name}") for item in items)
    return not _is_stack(pair) and not is_table and all(item.kind == "weight" for item in items)


def _is_square(pair: ParameterPair) -> bool:
    shape = pair.reference.stored.spec.shape
    return len(shape) > 1 and shape[-1] == shape[-2]


def _kinds(pairs: Sequence[ParameterPair]) -> dict[str, list[int]]:
    """The positions of pairs that are the same weight of several layers; only matrices."""
    kinds: defaultdict[str, list[int]] = defaultdict(list)
    for k, pair in enumerate(pairs):
        if not pair.mismatch and len(pair.reference.stored.spec.shape) > 1:
            kinds[NUMBER_PART.sub("{}", pair.name)].append(k)
    return kinds


def _same_in_all_layers(pairs: Sequence[ParameterPair]) -> list[ParameterPair]:
    """A weight is transposed in all layers or in none: one that deviates from most of its kind is a finding."""
    kinds = _kinds(pairs)
    transposed = {k for members in kinds.values() for k in members if is_transposed(pairs[k])}
    mostly_transposed = 2 * len(transposed) > sum(map(len, kinds.values()))
    result = list(pairs)
    for members in kinds.values():
        count = sum(k in transposed for k in members)
        usual = mostly_transposed if 2 * count == len(members) else 2 * count > len(members)
        for k in members:
            if (k in transposed) != usual:
                result[k] = _unlike_its_kind(pairs[k])
    return result


def _unlike_its_kind(pair: ParameterPair) -> ParameterPair:
    """A weight that is not laid out like its kind.

    A square one that does not equal the reference's as it is gets the view of its kind instead of a finding.
    """
    a, b = pair.reference.stored, pair.candidate.stored
    if not is_transposed(pair) and _is_square(pair):
        try:
            is_same = are_alike(sample(b), sample(a), slack_of(a, b))
        except (DumpError, AlignError):
            return pair  # measuring says why
        if not is_same:
            return replace(pair, candidate=pair.candidate.with_view(Transposed(b), VIEW), convention=VIEW)
    return replace(pair, mismatch=MIXED_LAYOUT)


def _transposed_by_value(pair: ParameterPair) -> ParameterPair:
    a, b = pair.reference.stored, pair.candidate.stored
    if pair.mismatch or not _is_square(pair) or is_transposed(pair):
        return pair
    try:
        first, slack = sample(a), slack_of(a, b)
        if are_alike(sample(b), first, slack) or not are_alike(sample(Transposed(b)), first, slack):
            return pair
    except (DumpError, AlignError):
        return pair  # measuring says why
    return replace(pair, candidate=pair.candidate.with_view(Transposed(b), VIEW), convention=VIEW)
