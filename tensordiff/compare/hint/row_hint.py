"""The hint for a row of a comparison: selects the tensors to look at, and their context.

If a module is wrong between its parts, the first wrong input of a part shows that best: there the residual is just
lost, or the heads are just in another order, and no matrix product has mixed them yet. A hint reads a few tensors, so
use it for the culprit or a row that a person selected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tensordiff.align.match import Pair
from tensordiff.compare.hint import Evidence, Hint, attention, rope_tables
from tensordiff.compare.hint.axes import DumpedPairs, row_as_dumped
from tensordiff.compare.hint.catalogue import find_hint
from tensordiff.compare.hint.context import HintContext, carried_into, context_of, tensors_near
from tensordiff.compare.hint.layouts import transposed
from tensordiff.compare.hint.localized import other_routes
from tensordiff.compare.hint.sample import SampledPair
from tensordiff.compare.hint.surroundings import Surroundings, is_convolution
from tensordiff.compare.judge.routes import is_router
from tensordiff.compare.judge.verdict import floor_for, growth_for
from tensordiff.compare.measure.dispatch import measure
from tensordiff.compare.row import Row, values_of
from tensordiff.dump.dtypes import Array, name_of
from tensordiff.dump.model import Dump
from tensordiff.errors import printable

_MOST_PARTS = 256  # pairs inside a module that are checked


def hint_for_row(row: Row, pairs: Sequence[Pair], reference: Dump) -> Hint | None:
    """The kind of error that a row shows; None if no kind is clear or nothing was measured."""
    if reference.statistics:
        return None  # a vector of statistics has no tokens, channels or inputs
    row, dumped = row_as_dumped(row), DumpedPairs(pairs)
    around = Surroundings(row, dumped)
    sides = values_of(row.pair) if row.diff is not None else None
    if sides is None:
        return None if row.dtypes is None else rope_tables.lost_partial(around) or _other_count(row)
    if row.diff is not None and not row.diff.apart and not row.is_input:
        with np.errstate(all="ignore"):
            for test in (rope_tables.rope_table, attention.attention):
                if hint := test(around):
                    return hint
    if not row.is_input and (hint := _swapped_parts(row, dumped)):
        return hint
    inner = None if row.is_input else _first_wrong_inside(row, dumped)
    if inner is not None and (hint := _hint_inside(row, inner, dumped, reference)):
        return hint
    context = context_of(row, dumped, reference, sides[0].size)
    return _hint_of(row.pair, sides, context) or later_call(row, dumped)


def _swapped_parts(row: Row, pairs: DumpedPairs) -> Hint | None:
    """Two parts of a wrong module that are paired crosswise by value, against their names: each returns the other's
    values."""
    sides = (row.pair.reference, row.pair.candidate)
    crossed: dict[tuple[str, str], Pair] = {}
    for pair in _pairs_inside(row.pair, pairs):
        ours, theirs = (
            entry.layer.removeprefix(f"{side.layer}.")
            for entry, side in zip((pair.reference, pair.candidate), sides, strict=True)
        )
        if pair.reference.is_input or ours == theirs or "." in ours or "." in theirs:
            continue
        if other := crossed.get((theirs, ours)):
            one, two = (printable(layer) for layer in (theirs, ours))
            told = f"the candidate's {one} equals the reference's {two}, and its {two} the reference's {one}"
            evidence: Evidence = {"tensor": printable(other.reference.name), "with": printable(pair.reference.name)}
            return Hint("swapped_with", f"{told}: the two are swapped, or have each other's weights", evidence)
        crossed[ours, theirs] = pair
    return None


def _other_count(row: Row) -> Hint | None:
    """A router that sends each token to fewer or more experts."""
    sides = row.pair.reference.spec, row.pair.candidate.spec
    are_routes = all(side.dtype.kind in "iu" and len(side.shape) >= 2 for side in sides) or "expert" in row.pair.name
    ref, cand = (side.shape[-1] if side.shape else 0 for side in sides)
    if not are_routes or not is_router(row.pair) or sides[0].shape[:-1] != sides[1].shape[:-1] or max(ref, cand) > 64:
        return None
    told = f"each token is sent to {cand} expert{'s' if cand != 1 else ''}, in the reference to {ref}"
    return Hint("routes", told, {"reference": ref, "candidate": cand})


def _hint_inside(row: Row, inner: Pair, pairs: DumpedPairs, reference: Dump) -> Hint | None:
    """The kind of error in a part's input, with the tensors near the whole module as context."""
    sides = values_of(inner)
    if sides is None:
        return None
    part = printable(inner.reference.layer.removeprefix(f"{row.pair.reference.layer}."))
    if sides[0].dtype.kind in "iub":
        hint = other_routes(sides) if is_router(inner) else None
    else:
        near = tensors_near(row.pair.reference, reference, sides[0].size)
        near.pop(printable(inner.reference.name), None)
        beside = context_of(row._replace(pair=inner), pairs, reference, 0)
        context = replace(beside, near=near, carried=carried_into(row), is_router=False)
        hint = _hint_of(inner, sides, context)
    if hint is None:
        return None
    return Hint(hint.kind, f"in what {part} is given: {hint.sentence}", hint.evidence | {"part": part})


def _hint_of(pair: Pair, sides: tuple[Array, Array], context: HintContext) -> Hint | None:
    """The hint for two tensors; those of a convolution have their channels before the positions."""
    if sides[0].ndim < 3 or not is_convolution(pair.reference):
        return find_hint(*sides, context)
    if sides[0].ndim == 4 and (hint := transposed(SampledPair.of(*sides))):
        return hint
    moved = [np.ascontiguousarray(np.moveaxis(side, 1, -1)) for side in sides]
    hint = find_hint(moved[0], moved[1], replace(context, near={}, given={}, siblings={}))
    if hint is None:
        return None
    axes, evidence = (0, *range(2, sides[0].ndim), 1), dict(hint.evidence)
    if isinstance(axis := evidence.get("axis"), int) and axis < len(axes):
        evidence["axis"] = axes[axis]
    sentence = hint.sentence.replace("token", "frame" if sides[0].ndim == 3 else "place")
    return Hint(hint.kind, sentence, evidence)


def _first_wrong_inside(row: Row, pairs: DumpedPairs) -> Pair | None:
    """The first wrong tensor inside a module, if it is the input of a part; None if it is an output or there is
    none."""
    for pair in _pairs_inside(row.pair, pairs):
        sides = values_of(pair)
        if sides is None:
            continue
        if sides[0].dtype.kind in "iub":
            if is_router(pair) and pair.reference.is_input and other_routes(sides):
                return pair
            continue
        dtypes = name_of(sides[0].dtype), name_of(sides[1].dtype)
        most = max(floor_for(*dtypes)[1].agrees, growth_for(dtypes) * carried_into(row))
        if not measure(*sides).rel_l2 <= most:  # true for NaN
            return pair if pair.reference.is_input else None
    return None


def _pairs_inside(module: Pair, pairs: DumpedPairs) -> Iterator[Pair]:
    """Pairs inside a module in order, without masks, limited in number."""
    entry, prefix = module.reference, f"{module.reference.layer}."
    inside = pairs.where(lambda other: other.step == entry.step and other.layer.startswith(prefix))
    for count, pair in enumerate(inside):
        if count >= _MOST_PARTS:
            return
        if "mask" not in pair.reference.port:
            yield pair


def later_call(row: Row, pairs: DumpedPairs) -> Hint | None:
    """The layer is right in every earlier call of the model and wrong in this one.

    So the state that a model keeps from one call to the next is wrong, or is used wrongly.
    """
    entry = row.pair.reference
    own = entry.layer, entry.port, entry.call
    earlier = list(pairs.where(lambda one: one.step < entry.step and (one.layer, one.port, one.call) == own))
    if row.is_input or not earlier or not all(map(_agrees, earlier)):
        return None
    shape = row.shape or ()
    tokens = shape[1] if len(shape) == 3 else 0
    right = "step 0" if len(earlier) == 1 else f"the {len(earlier)} steps before"
    evidence: Evidence = {"step": entry.step, "right_before": len(earlier)}
    what = "what is kept from call to call (cache, state, positions, a mask of its length)"
    if tokens == 1:
        return Hint("decode_only", f"right in {right}, wrong in step {entry.step}, of one token: {what}", evidence)
    many = f", of {tokens} tokens" if tokens else ""
    return Hint("chunk_boundary", f"right in {right}, wrong in step {entry.step}{many}: {what}", evidence)


def _agrees(pair: Pair) -> bool:
    sides = values_of(pair)
    if sides is None:
        return False
    floor = floor_for(*(name_of(side.dtype) for side in sides))[1]
    return bool(measure(*sides).rel_l2 <= floor.agrees)
