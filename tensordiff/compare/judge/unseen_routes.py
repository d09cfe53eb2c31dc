"""Tokens that may have taken other experts where no routes were dumped, in types of few bits."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.judge.history import History
from tensordiff.compare.judge.measurement import Measurement
from tensordiff.compare.judge.routes import is_router, most_flips, router_logits
from tensordiff.compare.judge.tokens import errors_of_tokens, token_errors
from tensordiff.compare.judge.upstream_error import mixture_of
from tensordiff.compare.judge.verdict import GROWTH, Verdict, floor_for, growth_for, judge_diff
from tensordiff.compare.limits import Limits
from tensordiff.compare.row import Row

_EXCHANGED = 2.0  # relative error of a token, of which one or more experts were exchanged
FEW_TOKENS = 1 / 4  # share of the tokens that near-ties may send to other experts in one layer


def unless_few_tokens(history: History, row: Row, measured: Measurement) -> Row:
    """A few tokens of a block, of which nothing else was dumped, may have been sent to other experts."""
    entry = row.pair.reference
    is_block = entry.layer.rpartition(".")[2].isdigit()
    is_all_there_is = not history.upstream.has_inputs(row.pair) and not history.upstream.parts_of(row.pair)
    knows_routes = (mixture_of(entry.layer), entry.step) in history.upstream.same_routes
    weighs = is_router(row.pair) and _weighs_few(history, row)
    may_flip = (is_block and is_all_there_is) or (entry.layer.endswith("experts") and not knows_routes) or weighs
    has_few_bits = growth_for(measured.dtypes) != GROWTH
    if row.is_input or measured.diff.apart or not (may_flip and has_few_bits):
        return row
    errors = _errors_of_visible(history, row)
    most = growth_for(measured.dtypes) * max(history.upstream.worst or 0.0, floor_for(*measured.dtypes)[1].agrees / 2)
    wrong = None if errors is None else errors[errors > most]
    logits = None if errors is None else router_logits(row, history.upstream.latest_outputs, errors.size)
    few = float(most_flips(*logits)) if logits else FEW_TOKENS * (errors.size if errors is not None else 0)
    if errors is not None and errors.size > 1 and measured.diff.rel_l2 <= floor_for(*measured.dtypes)[1].diverges:
        few = max(few, 1.0)  # of the few tokens of a batch that decodes
    if errors is None or wrong is None or not 0 < wrong.size <= few or wrong.max() > _EXCHANGED:
        return row
    told = f"rel_l2 {measured.diff.rel_l2:.1e}, all of it in {wrong.size} of {errors.size} tokens"
    why = f"{told}: they may have taken other experts; dump the router, or float32, to tell that from an error"
    return row._replace(verdict=Verdict("drifts", why))


def _weighs_few(history: History, row: Row) -> bool:
    """Whether a router gives weights of the chosen experts: they may jump where a score passes a threshold."""
    shape = row.shape or ()
    logits = router_logits(row, history.upstream.latest_outputs, math.prod(shape[:-1])) if len(shape) >= 2 else None
    return logits is not None and shape[-1] < logits[0].shape[-1]


def unless_after_mixture(history: History, row: Row, measured: Measurement) -> Row:
    """After a mixture of experts, in few bits, a layer is wrong only if most of its tokens are.

    A token that took another expert is far off from there on, and what it is shows in others that attend to it.
    Routes that are known to be wrong themselves are no such flips.
    """
    if not history.mixtures or measured.diff.apart or growth_for(measured.dtypes) == GROWTH:
        return row
    if any(part.is_exact and part.verdict.name == "diverges" for part in history.upstream.parts_of(row.pair)):
        return row
    if _is_given_right_tokens(history, row, measured):
        return row
    errors = _errors_of_visible(history, row)
    if errors is None or errors.size < 2:
        return row
    usual = float(np.sort(errors)[(errors.size - 1) // 2])
    carried = history.upstream.carried_into(row.pair)
    most = history.upstream.worst_agreeing
    verdict = judge_diff(measured.diff._replace(rel_l2=usual), measured.dtypes, carried, Limits(), None, most)
    if verdict.name == "diverges":
        return row
    told = f"rel_l2 {measured.diff.rel_l2:.1e}, but half of the tokens are off by {usual:.1e} at most"
    why = f"{told}: the others may have taken other experts; dump float32 to tell that from an error"
    return row._replace(verdict=Verdict("drifts", why))


def _is_given_right_tokens(history: History, row: Row, measured: Measurement) -> bool:
    """Whether every token that a layer was given is right, and it sends none to experts itself."""
    entry = row.pair.reference
    sends = any(f"{one}.".startswith(f"{entry.layer}.") or entry.layer.startswith(one) for one in history.mixtures)
    given = history.upstream.inputs_of(row.pair) or _since_mixture(history, row)
    if not given or entry.step > 0 or sends:
        return False  # what is kept of an earlier step is not dumped with the rest
    errors = [_errors_of_visible(history, one) for one in given]
    most = 2 * floor_for(*measured.dtypes)[1].agrees
    return all(one is None or not one.size or float(one.max()) <= most for one in errors)


def _since_mixture(history: History, row: Row) -> list[Row]:
    """All outputs of a step since its last mixture ended, where inputs were not dumped.

    A token that an earlier mixture sent elsewhere shows in them, if a module around one is among them: its output is
    what all that follows is computed from. Without such a module, nothing is known.
    """
    found: list[Row] = []
    for other in reversed(history.upstream.latest_outputs):
        entry = other.pair.reference
        if entry.step != row.pair.reference.step:
            return []
        if any(entry.layer.startswith(f"{one}.") for one in history.mixtures):
            break
        found.append(other)
    around = (one.startswith(f"{other.pair.reference.layer}.") for other in found for one in history.mixtures)
    return found if any(around) else []


def _errors_of_visible(history: History, row: Row) -> NDArray[np.float64] | None:
    """The error of each token that is no padding."""
    visible = history.padding.visible(row)
    return errors_of_tokens(visible.ref, visible.cand) if visible else token_errors(row.pair)
