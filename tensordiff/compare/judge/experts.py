"""Judge the outputs of routers and experts when tokens took other experts: by the tokens that took the same ones."""

from __future__ import annotations

import math
import re

import numpy as np

from tensordiff.compare.judge.evidence import History, Measurement
from tensordiff.compare.judge.parents import parent_of
from tensordiff.compare.judge.routes import RouteFlips, is_router, judge_routes, judge_sorted
from tensordiff.compare.judge.upstream_error import mixture_of
from tensordiff.compare.judge.verdict import GROWTH, Verdict, floor_for, growth_for, judge_diff
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.measure.dispatch import measure
from tensordiff.compare.row import Row, values_of

_PART_OF_EXPERTS = re.compile(r"(?:^|\.)experts\.(?!\d)")
_NUMBERED = re.compile(r"(?:^|\.)\d+(?:\.|$)")


def by_routes(history: History, row: Row, measured: Measurement) -> Verdict:
    """Judge experts by the tokens whose routes agree."""
    tokens = math.prod((row.shape or (0,))[:-1])
    hidden = history.padding.hidden_tokens(row.pair.reference.step, tokens)
    may_be_routes = row.is_exact and (not row.is_input or is_router(row.pair))
    was_right = may_be_routes and history.routed_rightly_before(row.pair)
    before = history.upstream.latest_outputs
    if may_be_routes and (judged := judge_routes(row, before, hidden, was_right=was_right)):
        history.note_flips(judged[1])
        return judged[0]
    if (judged_sorted := _sorted(history, row, measured)) is not None:
        history.note_flips(judged_sorted[1])
        return judged_sorted[0]
    if history.flips is None or not history.flips.concerns(row.pair):
        return row.verdict
    if row.is_exact:
        return Verdict("drifts", f"{row.verdict.why}: {history.flips.summary}")
    if history.flips.flipped.all() and history.flips.tokens == tokens:
        return Verdict("drifts", f"rel_l2 {measured.diff.rel_l2:.1e}: {history.flips.summary}, so none can be compared")
    sides = history.flips.values_where_equal(row.pair)
    return row.verdict if sides is None else _judge_equal_routes(history, measured, history.flips, measure(*sides))


def _sorted(history: History, row: Row, measured: Measurement) -> tuple[Verdict, RouteFlips] | None:
    """The verdict on a router's output that is sorted by expert.

    None if its numbers are others, whatever their order, in more tokens than took other experts.
    """
    is_padded = history.padding.is_known(row.pair.reference.step)
    judged = judge_sorted(row, history.upstream.latest_outputs, is_padded=is_padded)
    sides = None if judged is None or is_padded or row.is_exact else values_of(row.pair)
    if judged is None or sides is None:
        return judged
    ref, cand = (np.sort(side.astype(np.float64)) for side in sides)
    part = measure(ref, cand)
    by_flips = math.sqrt(judged[1].flipped.mean())
    upstream = history.upstream
    diff, carried = part._replace(rel_l2=max(0.0, part.rel_l2 - by_flips)), upstream.carried_into(row.pair)
    alone = judge_diff(diff, measured.dtypes, carried, Limits(), None, upstream.worst_agreeing)
    return None if alone.name == "diverges" else judged


def _judge_equal_routes(history: History, measured: Measurement, flips: RouteFlips, part: Diff) -> Verdict:
    carried = history.upstream.carried_into(measured.pair)
    alone = judge_diff(part, measured.dtypes, carried, Limits(), None, history.upstream.worst_agreeing)
    if alone.name == "diverges" and flips.has_row_per_choice(measured.views.shape):
        return Verdict("drifts", f"{flips.summary}, and its rows, one per token and expert, are in another order")
    layer, has_few_bits = measured.pair.reference.layer, growth_for(measured.dtypes) != GROWTH
    is_whole = parent_of(flips.router).startswith(f"{layer}.") and not _NUMBERED.search(layer)
    if alone.name == "diverges" and is_whole and has_few_bits and history.has_flipped_before:
        return Verdict("drifts", f"rel_l2 {measured.diff.rel_l2:.1e}: {flips.summary}, and others before")
    if alone.name == "diverges":
        return Verdict("diverges", f"{alone.why} where the routes agree; {flips.summary}")
    return Verdict("drifts", f"rel_l2 {measured.diff.rel_l2:.1e}: {flips.summary}; the others {part.rel_l2:.1e}")


def propagated_error(history: History, row: Row, measured: Measurement) -> float | None:
    """The error to pass on instead of rel_l2: rows sorted by expert only seem wrong, so the incoming error counts."""
    if row.verdict.name != "drifts":
        return None
    flips = history.flips
    is_sorted = flips is not None and flips.concerns(row.pair) and flips.has_row_per_choice(measured.views.shape)
    if is_sorted or _may_be_of_other_tokens(history, row, measured):
        return history.upstream.carried_into(row.pair)
    return None


def unless_rows_of_expert(history: History, row: Row, measured: Measurement) -> Row:
    """Excuse rows of a single expert, which may belong to different tokens if tokens took other experts."""
    if not _may_be_of_other_tokens(history, row, measured):
        return row
    why = f"rel_l2 {measured.diff.rel_l2:.1e}: its rows are tokens of one expert, and may be other tokens here"
    return row._replace(verdict=Verdict("drifts", why))


def _may_be_of_other_tokens(history: History, row: Row, measured: Measurement) -> bool:
    """Whether a row belongs to a single expert's part, and that expert may have got different tokens on each side."""
    entry = row.pair.reference
    if not _PART_OF_EXPERTS.search(entry.layer) or len(measured.views.shape) != 2:
        return False
    same = history.upstream.same_routes.get((mixture_of(entry.layer), entry.step))
    given = [] if row.is_input else history.upstream.inputs_of(row.pair)
    if given and all(one.verdict.name == "agrees" for one in given):
        return False
    is_padded = history.padding.is_known(entry.step)
    if same is None:
        return growth_for(measured.dtypes) != GROWTH or is_padded
    carried = history.upstream.carried_into(row.pair) or 0.0
    after = row.after_flips and carried > floor_for(*measured.dtypes)[1].agrees
    return not same or is_padded or after


def unmeasured(history: History, row: Row) -> Row:
    """The verdict on a row that could not be measured; an expert may have got a different number of tokens on each
    side."""
    entry = row.pair.reference
    if row.dtypes is None or not _PART_OF_EXPERTS.search(entry.layer):
        return row
    if history.upstream.same_routes.get((mixture_of(entry.layer), entry.step)):
        return row
    return row._replace(verdict=Verdict("drifts", f"{row.verdict.why}: rows are tokens of one expert"))
