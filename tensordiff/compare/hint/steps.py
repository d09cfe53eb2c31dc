"""Errors that begin with a later call: what a model keeps from one call to the next is wrong, or used wrongly."""

from __future__ import annotations

from tensordiff.align.match import Pair
from tensordiff.compare.hint import Evidence, Hint
from tensordiff.compare.hint.axes import DumpedPairs
from tensordiff.compare.judge.verdict import floor_for
from tensordiff.compare.measure.dispatch import measure
from tensordiff.compare.row import Row, values_of
from tensordiff.dump.dtypes import name_of


def later_call(row: Row, pairs: DumpedPairs) -> Hint | None:
    """The layer is right in every earlier call of the model, and wrong in this one."""
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
