"""Tokens that may have taken other experts although no routes were dumped, in types of few bits.

Also the reverse: tokens that cannot have taken other experts, because everything that could reach them is known to be
right. A layer is judged by these tokens alone, however far off the others are.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.judge.evidence import History, Measurement
from tensordiff.compare.judge.routes import FEW_DECODED, RouteFlips, is_router, most_flips, router_logits
from tensordiff.compare.judge.uneven_errors import errors_of_tokens, token_errors
from tensordiff.compare.judge.upstream_error import mixture_of
from tensordiff.compare.judge.verdict import GROWTH, Verdict, floor_for, growth_for, judge_diff
from tensordiff.compare.limits import Limits
from tensordiff.compare.row import Row, values_of
from tensordiff.dump.dtypes import Array

_EXCHANGED = 2.0  # relative error of a token one or more of whose experts were exchanged
FEW_TOKENS = 1 / 4  # share of the tokens that near-ties may send to other experts in one layer
_MULTIPLIES = 1.5  # amplification from which tokens are checked one by one
_FEWEST = 4  # tokens at the beginning that must be right
_MOST = 4096
_STEPS = 8  # earlier steps that are checked, besides the first


def unless_few_tokens(history: History, row: Row, measured: Measurement) -> Row:
    """Excuse a few wrong tokens of a block of which nothing else was dumped: they may have taken other experts."""
    entry = row.pair.reference
    is_block = entry.layer.rpartition(".")[2].isdigit()
    is_alone = not history.upstream.has_inputs(row.pair) and not history.upstream.parts_of(row.pair)
    knows_routes = (mixture_of(entry.layer), entry.step) in history.upstream.same_routes
    weighs = is_router(row.pair) and _weighs_few(history, row)
    may_hold_experts = is_block and is_alone and history.has_experts is not False
    may_flip = may_hold_experts or (_are_experts(row) and not knows_routes) or weighs
    has_few_bits = growth_for(measured.dtypes) != GROWTH
    if row.is_input or measured.diff.apart or not (may_flip and has_few_bits):
        return row
    errors = _errors_of_visible(history, row)
    if errors is None:
        return row
    few = _most_flips(row, errors.size, router_logits(row, history.upstream.latest_outputs, errors.size))
    is_decoded = 0 < errors.size <= FEW_DECODED and entry.step > 0 and is_block and history.has_experts
    if is_decoded or (errors.size > 1 and measured.diff.rel_l2 <= floor_for(*measured.dtypes)[1].diverges):
        few = max(few, 1.0)  # one of the few tokens of a decoding batch
    right = _most_of_right_tokens(history, measured)
    wrong = errors[errors > (min(right, float(errors.max() / 2)) if is_decoded else right)]
    if not 0 < wrong.size <= few or wrong.max() > _EXCHANGED:
        return row
    told = f"rel_l2 {measured.diff.rel_l2:.1e}, all of it in {wrong.size} of {errors.size} tokens"
    why = f"{told}: they may have taken other experts; dump the router, or float32, to tell that from an error"
    return row._replace(verdict=Verdict("drifts", why), is_undecided=not history.mixtures)


def _weighs_few(history: History, row: Row) -> bool:
    """Whether a router outputs the weights of the chosen experts, which may jump where a score passes a threshold."""
    shape = row.shape or ()
    logits = router_logits(row, history.upstream.latest_outputs, math.prod(shape[:-1])) if len(shape) >= 2 else None
    return logits is not None and shape[-1] < logits[0].shape[-1]


def unless_after_mixture(history: History, row: Row, measured: Measurement) -> Row:
    """After a mixture of experts, in few bits, excuse a layer unless most of its tokens are wrong.

    A token that took another expert is far off from there on, and affects other tokens that attend to it. Routes that
    are known to be wrong by themselves are not such flips.
    """
    if not history.mixtures or measured.diff.apart or growth_for(measured.dtypes) == GROWTH:
        return row
    if any(part.is_exact and part.verdict.name == "diverges" for part in history.upstream.parts_of(row.pair)):
        return row
    if _is_given_right_tokens(history, row, measured):
        return row
    errors = _errors_of_visible(history, row)
    if errors is None or errors.size < 2 or _are_more_than_flip(history, row, measured, errors):
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


def _are_more_than_flip(history: History, row: Row, measured: Measurement, errors: NDArray[np.float64]) -> bool:
    """Whether a mixture's experts are wrong in more tokens than rounding of the router's logits may send elsewhere.

    Tokens that were wrong before also have wrong logits, so they are counted among those that may flip.
    """
    if not _are_experts(row):
        return False
    logits = router_logits(row, history.upstream.latest_outputs, errors.size)
    wrong = int((errors > _most_of_right_tokens(history, measured)).sum())
    return logits is not None and wrong > _most_flips(row, errors.size, logits)


def _most_flips(row: Row, tokens: int, logits: tuple[Array, Array] | None) -> float:
    """How many tokens of a mixture may have taken other experts, by the logits of its router if they were dumped.

    Among few tokens one always may: what a router adds to its logits is not dumped, and may decide.
    """
    few = FEW_TOKENS * tokens if logits is None else float(most_flips(*logits))
    return max(few, 1.0) if _are_experts(row) and tokens <= FEW_DECODED else few


def _are_experts(row: Row) -> bool:
    """Whether a layer is the routed experts; shared experts, which see all tokens, do not count."""
    return row.pair.reference.layer.rpartition(".")[2] == "experts"


def _most_of_right_tokens(history: History, measured: Measurement) -> float:
    """How far off a token may be that took the same experts."""
    rounding = floor_for(*measured.dtypes)[1].agrees / 2
    return growth_for(measured.dtypes) * max(history.upstream.worst or 0.0, rounding)


def unless_kept_wrong(history: History, row: Row, measured: Measurement) -> Row:
    """After a mixture, in few bits, excuse a decoding layer: values kept from earlier steps may be of rerouted tokens.

    Kept values show where inputs were dumped. Where they were not, the worst token of earlier steps tells how far off
    they may be.
    """
    entry = row.pair.reference
    is_short = growth_for(measured.dtypes) != GROWTH
    is_block = entry.layer.rpartition(".")[2].isdigit() and not history.upstream.parts_of(row.pair)
    if not entry.step or not (history.mixtures or is_block) or row.is_input or measured.diff.apart:
        return row
    if not is_short or history.upstream.has_inputs(row.pair):
        return row
    steps = sorted({0, *range(max(0, entry.step - _STEPS), entry.step)})
    rows = (one for step in steps for one in history.upstream.beside(row.pair, step))
    before = (one for one in rows if not one.is_input and one.diff)
    errors = [found for one in before if (found := _errors_of_visible(history, one)) is not None and found.size]
    kept = max((float(one.max()) for one in errors), default=0.0)
    most = history.upstream.worst_agreeing
    if judge_diff(measured.diff, measured.dtypes, kept, Limits(), None, most).name == "diverges":
        return row
    told = f"rel_l2 {measured.diff.rel_l2:.1e}, and tokens of earlier steps are off by up to {kept:.1e}"
    why = f"{told}: what is kept of them may be as far off; dump inputs to tell that from an error"
    return row._replace(verdict=Verdict("drifts", why))


def wrong_right_tokens(history: History, row: Row, measured: Measurement) -> Verdict | None:
    """The verdict on tokens that were right up to this layer, although other tokens had taken other experts before.

    In a causal model, the tokens before the first of those are not affected by them.
    """
    entry, flips = row.pair.reference, history.flips
    if (
        flips is None
        or entry.step
        or row.is_input
        or row.is_exact
        or measured.diff.apart
        or measured.golden is not None
    ):
        return None
    if (row.amplification or 0.0) < _MULTIPLIES or history.padding.is_known(entry.step) or _has_rows(history, row):
        return None
    errors = [one for one in (_by_token(given, flips.tokens) for given in _given(history, row)) if one is not None]
    result, flipped = _by_token(row, flips.tokens), _flipped_here(history, row, flips)
    if not errors or result is None or flipped is None:
        return None
    floor = floor_for(*measured.dtypes)[1]
    astray = (np.max(errors, axis=0) > 2 * floor.agrees) | flipped[: len(result)]
    count = int(np.argmax(astray)) if astray.any() else len(astray)
    if count < _FEWEST:
        return None
    carried = float(np.sqrt(np.square(np.max(errors, axis=0)[:count]).mean()))
    error = float(np.median(result[:count]))  # the median, since some tokens may be small
    diff, most = measured.diff._replace(rel_l2=error), history.upstream.worst_agreeing
    if judge_diff(diff, measured.dtypes, carried, Limits(), None, most).name != "diverges":
        return None
    told = f"rel_l2 {measured.diff.rel_l2:.1e}; most of its first {count} tokens are off by {error:.1e}, though"
    return Verdict(
        "diverges", f"{told} their input agrees ({carried:.1e}): no token that took other experts reaches them"
    )


def _has_rows(history: History, row: Row) -> bool:
    """Whether several texts run at once, so that the first tokens of some may be padding."""
    shapes = (one.shape or () for one in (row, *history.upstream.latest_outputs))
    return any(len(shape) > 2 and shape[0] > 1 for shape in shapes)


def _given(history: History, row: Row) -> list[Row]:
    """The inputs of a layer or, if they were not dumped, the latest outputs of the same step."""
    step, upstream = row.pair.reference.step, history.upstream
    given = upstream.inputs_of(row.pair) or [one for one in upstream.latest_outputs if one.pair.reference.step == step]
    return [one for one in given if not one.is_exact and (one.shape or ())[-1:] != (1,)]


def _flipped_here(history: History, row: Row, flips: RouteFlips) -> NDArray[np.bool_] | None:
    """Tokens that a layer itself sends to other experts; None if that is unknown."""
    entry = row.pair.reference
    own = (one for one in history.mixtures if _is_around_or_in(one, entry.layer))
    if all((one, entry.step) in history.upstream.same_routes for one in own):
        return flips.flipped if flips.concerns(row.pair) else np.zeros_like(flips.flipped)
    logits = router_logits(row, history.upstream.latest_outputs, flips.tokens) if is_router(row.pair) else None
    chosen = (row.shape or (0,))[-1]
    if logits is None or not chosen < logits[0].shape[-1]:
        return None
    best = [np.sort(np.argsort(-side, 1, kind="stable")[:, :chosen], 1) for side in logits]
    return np.asarray((best[0] != best[1]).any(1))


def _by_token(row: Row, tokens: int) -> NDArray[np.float64] | None:
    """The error of each of the first tokens; None if a tensor does not have one row per token."""
    sides = values_of(row.pair) if row.diff is not None else None
    if sides is None or sides[0].ndim < 2 or math.prod(sides[0].shape[:-1]) != tokens:
        return None
    ref, cand = (side.reshape(tokens, -1)[:_MOST].astype(np.float64) for side in sides)
    with np.errstate(all="ignore"):
        sizes = np.maximum(np.linalg.norm(ref, axis=1), np.finfo(np.float64).tiny)
        return np.asarray(np.linalg.norm(cand - ref, axis=1) / sizes)


def _is_given_right_tokens(history: History, row: Row, measured: Measurement) -> bool:
    """Whether every token that a layer got is right, and the layer itself sends none to other experts."""
    entry = row.pair.reference
    sends = any(_is_around_or_in(one, entry.layer) for one in _mixtures_unseen(history, entry.step))
    given = history.upstream.inputs_of(row.pair) or _since_mixture(history, row)
    if not given or entry.step > 0 or sends:
        return False  # values kept from an earlier step may not have been dumped
    errors = [_errors_of_visible(history, one) for one in given]
    most = 2 * floor_for(*measured.dtypes)[1].agrees
    return all(one is None or not one.size or float(one.max()) <= most for one in errors)


def _is_around_or_in(mixture: str, layer: str) -> bool:
    """Whether a layer belongs to a mixture, or contains it."""
    return f"{mixture}.".startswith(f"{layer}.") or layer.startswith(mixture)


def _mixtures_unseen(history: History, step: int) -> list[str]:
    """Mixtures that are not known to send every token to the same experts."""
    return [one for one in history.mixtures if not history.upstream.same_routes.get((one, step))]


def _since_mixture(history: History, row: Row) -> list[Row]:
    """All outputs of a step since the last mixture that may have rerouted tokens, for layers without dumped inputs.

    A rerouted token shows in these outputs if one of them belongs to a module around a mixture, since everything that
    follows is computed from that module's output. Without such a module nothing is known, and the list is empty.
    """
    found: list[Row] = []
    step, latest = row.pair.reference.step, history.upstream.latest_outputs
    unseen = _mixtures_unseen(history, step)
    for other in reversed(latest):
        entry = other.pair.reference
        if entry.step != step:
            return []
        if any(entry.layer.startswith(f"{one}.") for one in unseen):
            break
        found.append(other)
    else:
        if len(latest) < (latest.maxlen or 0):  # there was no such mixture
            return found
    around = (one.startswith(f"{other.pair.reference.layer}.") for other in found for one in history.mixtures)
    return found if any(around) else []


def _errors_of_visible(history: History, row: Row) -> NDArray[np.float64] | None:
    """The error of each token that is not padding."""
    visible = history.padding.visible(row)
    return errors_of_tokens(visible.ref, visible.cand) if visible else token_errors(row.pair)
