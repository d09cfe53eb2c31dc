"""Explanations that excuse a pair that stands out, for any model.

Each function takes a row that diverges and returns it, either unchanged or with a milder verdict. Excuses for mixtures
of experts are in ``experts`` and ``unseen_routes``.
"""

from __future__ import annotations

import math

import numpy as np

from tensordiff.compare.judge.evidence import History, Measurement
from tensordiff.compare.judge.uneven_errors import (
    WRONG_TOKEN,
    error_of_worst_token,
    even_error,
    largest_error,
    token_errors,
)
from tensordiff.compare.judge.verdict import GROWTH, Verdict, floor_for, growth_for, is_coarser, judge_diff
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.dispatch import measure
from tensordiff.compare.row import Row, values_of
from tensordiff.dump.model import Entry
from tensordiff.errors import printable

_FEW_NUMBERS = 8
_CANCELLED = 10.0  # factor over the floor for a few numbers whose terms cancel
_MULTIPLIED = 3.0  # factor over the limit of healthy layers for a layer that scales small tokens up
_MOST_OF_ERROR = 0.5  # share of the error of a module that its part must have, if the part is to explain it
_GROWTH_OF_BLOCK = 4.5  # how much a whole block may amplify an error, in few bits


def unless_padding(history: History, row: Row, measured: Measurement) -> Row:
    """Excuse a layer whose input is wrong only in padding, if the enclosing module got right padding: that module is at
    fault."""
    if row.is_input or not history.padding.has_wrong_padding_input(row):
        return row
    why = f"rel_l2 {measured.diff.rel_l2:.1e}, and its input is wrong in tokens that the mask hides"
    return row._replace(verdict=Verdict("drifts", why))


def unless_downcast(_: History, row: Row, measured: Measurement) -> Row:
    """Excuse a candidate of fewer bits that is about as far off as the reference cast to its type, which is measured
    here."""
    own = row.dtypes or measured.dtypes
    sides = values_of(row.pair) if is_coarser(own) else None
    if sides is None:
        return row
    ref, cand = sides
    if ref.dtype.kind == "c" and cand.dtype.kind != "c":
        return row  # no cast explains a lost imaginary part
    with np.errstate(all="ignore"):
        cast = ref.astype(cand.dtype)
    best, left = measure(ref, cast), measure(cast, cand)
    row = row._replace(downcast=left.rel_l2)
    kind, error = own[1], measured.diff.rel_l2
    if best.apart and not left.apart:
        return row._replace(verdict=Verdict("diverges", f"{row.verdict.why}; {kind} cannot hold the reference"))
    if best.apart or measured.diff.apart or error > growth_for(measured.dtypes) * best.rel_l2:
        return row
    why = f"rel_l2 {error:.1e}, and casting the reference to {kind} alone costs {best.rel_l2:.1e}"
    return row._replace(verdict=Verdict("drifts", why))


def unless_cancelled(history: History, row: Row, measured: Measurement) -> Row:
    """Excuse a sum whose terms cancel: it may be off by as much as its terms are."""
    left = None if measured.diff.apart else history.upstream.cancellation_error(row)
    if left is None or measured.diff.rel_l2 > growth_for(measured.dtypes) * left:
        return row
    why = f"rel_l2 {measured.diff.rel_l2:.1e}: large terms cancel here; their own errors amount to {left:.1e} of it"
    return row._replace(verdict=Verdict("drifts", why))


def unless_small_tokens(history: History, row: Row, measured: Measurement) -> Row:
    """Excuse a norm that scales small tokens up, so that its input is worse than the input's error says."""
    given = [] if row.is_input else history.upstream.inputs_of(row.pair)
    of_tokens = even_error if row.worst_token is None else error_of_worst_token
    even = max((of_tokens(other.pair) for other in given if other.shape == row.shape), default=0.0)
    verdict = judge_diff(measured.diff, measured.dtypes, even, Limits(), None, history.upstream.worst_agreeing)
    if verdict.name == "diverges" or not even > (history.upstream.carried_into(row.pair) or 0.0):
        return row
    counted = "if all tokens count equally" if row.worst_token is None else "in one token"
    why = f"rel_l2 {measured.diff.rel_l2:.1e}, and its input is off by {even:.1e} {counted}"
    return row._replace(verdict=Verdict("drifts", why))


def unless_small_tokens_unseen(history: History, row: Row, measured: Measurement) -> Row:
    """Excuse a norm whose inputs were not dumped, in few bits, if only a few tokens are off: they may have been small.

    The output of a recurrence nearly cancels for some tokens and heads, and the norm after it makes them as large as
    all others.
    """
    if (
        row.is_input
        or history.upstream.has_inputs(row.pair)
        or not _stands_out_only(measured, _MULTIPLIED)
        or not is_norm(row.pair.reference)
    ):
        return row
    errors = token_errors(row.pair)
    if errors is None or not errors.size:
        return row
    usual = float(np.median(errors))
    carried, most = history.upstream.carried_into(row.pair), history.upstream.worst_agreeing
    diff = measured.diff._replace(rel_l2=usual)
    if judge_diff(diff, measured.dtypes, carried, Limits(), None, most).name == "diverges":
        return row
    told = f"rel_l2 {measured.diff.rel_l2:.1e}, but half of the tokens are off by {usual:.1e} at most"
    why = f"{told}: the others may be small before the norm; dump its inputs to tell that from an error"
    return row._replace(verdict=Verdict("drifts", why))


def unless_part_multiplies(history: History, row: Row, measured: Measurement) -> Row:
    """Excuse, in few bits, a module that passes on the output of a part that rightly amplifies its input."""
    if row.is_input or not _stands_out_only(measured, _MULTIPLIED):
        return row
    error, carried = measured.diff.rel_l2, history.upstream.carried_into(row.pair)
    parts = [part for part in history.upstream.parts_of(row.pair) if not part.is_input and part.diff is not None]
    factors = (
        (part.amplification, part)
        for part in parts
        if part.verdict.name == "drifts"
        and part.amplification
        and history.upstream.inputs_of(part.pair)
        and part.diff
        and _MOST_OF_ERROR * error <= part.diff.rel_l2
    )
    times, part = max(factors, key=lambda one: one[0], default=(1.0, row))
    if times <= 1:
        return row
    diff, most = measured.diff._replace(rel_l2=error / times), history.upstream.worst_agreeing
    if judge_diff(diff, measured.dtypes, carried, Limits(), None, most).name == "diverges":
        return row
    name = printable(part.pair.reference.layer.removeprefix(f"{row.pair.reference.layer}."))
    why = f"rel_l2 {error:.1e}, and {name}, which is right by itself, multiplies what it is given by {times:.1f}"
    return row._replace(verdict=Verdict("drifts", why))


def unless_norm_multiplies_tokens(history: History, row: Row, measured: Measurement) -> Row:
    """Excuse a module of which one token is wrong only because its norm scaled up what was small."""
    if row.is_input or row.worst_token is None or row.diff is None:
        return row
    upstream = history.upstream
    carried, most = upstream.carried_into(row.pair), upstream.worst_agreeing
    if judge_diff(row.diff, measured.dtypes, carried, Limits(), None, most).name == "diverges":
        return row
    norms = (one for one in upstream.parts_of(row.pair) if is_norm(one.pair.reference) and not one.is_input)
    limit = WRONG_TOKEN * floor_for(*measured.dtypes)[1].diverges
    for norm in norms:
        errors = token_errors(norm.pair)
        if norm.verdict.name == "diverges" or errors is None or not errors.max(initial=0.0) >= row.worst_token:
            continue
        given = [one for one in upstream.inputs_of(norm.pair) if one.shape == norm.shape]
        if given and all(largest_error(one.pair) <= limit for one in given):
            told = f"rel_l2 {row.diff.rel_l2:.1e} holds for most tokens; one is off by {row.worst_token:.1e}"
            name = printable(norm.pair.reference.layer.removeprefix(f"{row.pair.reference.layer}."))
            return row._replace(verdict=Verdict("drifts", f"{told}, which was small before {name} scaled it up"))
    return row


def is_norm(entry: Entry) -> bool:
    """Whether a layer is a norm, by its class, or by its name if the class is unknown."""
    kind = (entry.origin.module_class if entry.origin else None) or entry.layer.rpartition(".")[2]
    return "norm" in kind.lower()


def _stands_out_only(measured: Measurement, times: float = 1.0) -> bool:
    """Whether a pair, in few bits, is wrong only because it stands out of a quiet run; healthy layers can be as far
    off."""
    is_short, most = growth_for(measured.dtypes) != GROWTH, times * floor_for(*measured.dtypes)[1].diverges
    return is_short and not measured.diff.apart and measured.diff.rel_l2 <= most


def unless_block(history: History, row: Row, measured: Measurement) -> Row:
    """Excuse a block of which nothing else was dumped: it is many layers, which may amplify more than a single one."""
    entry, floor = row.pair.reference, floor_for(*measured.dtypes)[1]
    is_all = not history.upstream.has_inputs(row.pair) and not history.upstream.parts_of(row.pair)
    is_block = entry.layer.rpartition(".")[2].isdigit() and is_all
    error, before = measured.diff.rel_l2, max(history.upstream.worst or 0.0, history.upstream.worst_agreeing or 0.0)
    if not is_block or growth_for(measured.dtypes) == GROWTH or measured.diff.apart or error > floor.diverges:
        return row
    if not before or error > _GROWTH_OF_BLOCK * before:
        return row
    return row._replace(
        verdict=Verdict("drifts", f"rel_l2 {error:.1e}, because the input of the block already differs ({before:.1e})")
    )


def unless_few_numbers(_: History, row: Row, measured: Measurement) -> Row:
    """Excuse one number per token, of a few tokens: if terms cancel, the relative error says nothing."""
    shape = measured.views.shape
    if not shape or shape[-1] != 1 or measured.diff.elements >= _FEW_NUMBERS or measured.diff.apart:
        return row
    # the first step has more tokens to judge by
    is_late = row.pair.reference.step > 0 and growth_for(measured.dtypes) != GROWTH
    most = math.inf if is_late else _CANCELLED * floor_for(*measured.dtypes)[1].diverges
    if measured.golden is not None or row.is_exact or not measured.diff.rel_l2 <= most:
        return row
    why = f"rel_l2 {measured.diff.rel_l2:.1e}, of {measured.diff.elements} numbers, which are too few to tell"
    return row._replace(verdict=Verdict("drifts", why))
