"""Judging measured pairs in execution order: from measurements to rows.

``verdict`` decides from an error and what came in. Here it is asked in the right order, and a pair that does not agree
is looked at for what may excuse it: a mask in other numbers, an expert that got other tokens, terms that cancelled, a
type that cannot hold the reference. That reads the pair again, which few pairs need.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tensordiff.align.match import Pair
from tensordiff.align.views import Views
from tensordiff.compare.judge.excuses import between_parts, even_error, is_same_mask, token_errors
from tensordiff.compare.judge.routes import RouteFlips, judge_routes
from tensordiff.compare.judge.upstream_error import UpstreamError
from tensordiff.compare.judge.verdict import (
    GROWTH,
    GoldenErrors,
    Verdict,
    floor_for,
    growth_for,
    is_coarser,
    judge_by_golden,
    judge_diff,
)
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.measure.dispatch import measure
from tensordiff.compare.row import Row, values_of

_FEW_TOKENS = 1 / 6  # share of the tokens that near-ties may send to other experts in one layer


class Measurement(NamedTuple):
    """What was measured of a pair, before it is judged."""

    pair: Pair
    dtypes: tuple[str, str]
    views: Views
    diff: Diff
    injected: Diff | None
    golden: GoldenErrors | None
    limits: Limits
    """The limits of this pair."""
    kl_div: float | None
    """Measured only where it has a limit."""


class Judge:
    """Judges pairs in execution order, each in the light of those before it."""

    def __init__(self) -> None:
        self.upstream = UpstreamError()
        self.flips: RouteFlips | None = None

    def row(self, measured: Measurement) -> Row:
        """Judge a measured pair, and remember its row for those that follow."""
        pair, dtypes, views, diff, injected, golden, limits, _ = measured
        carried = self.upstream.carried_into(pair)
        ratio = golden.ratio if golden else None
        shown = tuple(pair.views + views.named())
        verdict = self._verdict(measured, carried)
        row = Row(
            pair=pair, dtypes=dtypes, shape=views.shape, views=shown, diff=diff, injected=injected, golden_ratio=ratio,
            verdict=verdict, amplification=_amplification(diff.rel_l2, carried),
        )  # fmt: skip
        if verdict.name == "agrees" or limits.are_set:
            self.upstream.record(row, golden)
            return row
        return self._after_excuses(row, measured)

    def _verdict(self, measured: Measurement, carried: float | None) -> Verdict:
        """By the golden run where it says something, else by the floor and what came in."""
        pair, dtypes, _, diff, _, golden, limits, kl_div = measured
        if golden is not None and not limits.are_set and not diff.apart and diff.elements:
            ratio = golden.guarded(dtypes)
            if ratio is not None:
                return judge_by_golden(golden, ratio, self.upstream.golden_ratio_into(pair))
        return judge_diff(diff, dtypes, carried, limits, kl_div, self.upstream.worst_agreeing)

    def _after_excuses(self, row: Row, measured: Measurement) -> Row:
        """A row that does not agree, after everything that may excuse it or locate the fault."""
        if is_same_mask(row.pair, measured.diff):
            return row._replace(verdict=Verdict("agrees", "the same mask, in other numbers"), amplification=None)
        row = row._replace(verdict=self._by_routes(row, measured))
        for check in (
            self._unless_downcast,
            self._unless_cancelled,
            self._unless_small_tokens,
            self._unless_few_tokens,
        ):
            row = check(row, measured) if row.verdict.name == "diverges" else row
        if measured.injected is not None:
            row = row._replace(verdict=_weigh_injected(row.verdict, measured, measured.injected))
        if row.verdict.name == "diverges" and not row.is_input:
            where = between_parts(row, self.upstream, knows_inputs=measured.injected is not None)
            row = row._replace(verdict=Verdict("diverges", f"{row.verdict.why}{where}"))
        self.upstream.record(row, measured.golden, self._propagated_error(row, measured))
        return row

    def _propagated_error(self, row: Row, measured: Measurement) -> float | None:
        """The error to pass on instead of rel_l2: rows sorted by expert only seem wrong, so what came in counts."""
        if self.flips is None or row.verdict.name != "drifts" or not self.flips.concerns(row.pair):
            return None
        return self.upstream.carried_into(row.pair) if self.flips.has_row_per_choice(measured.views.shape) else None

    def _by_routes(self, row: Row, measured: Measurement) -> Verdict:
        """Judge experts by the tokens whose routes agree."""
        if row.is_exact and not row.is_input and (judged := judge_routes(row, self.upstream.latest_outputs)):
            self.flips = judged[1] or self.flips
            return judged[0]
        if self.flips is None or not self.flips.concerns(row.pair):
            return row.verdict
        if row.is_exact:
            return Verdict("drifts", f"{row.verdict.why}: {self.flips.summary}")
        sides = self.flips.values_where_equal(row.pair)
        return row.verdict if sides is None else self._where_routes_agree(measured, self.flips, measure(*sides))

    def _where_routes_agree(self, measured: Measurement, flips: RouteFlips, part: Diff) -> Verdict:
        carried = self.upstream.carried_into(measured.pair)
        alone = judge_diff(part, measured.dtypes, carried, Limits(), None, self.upstream.worst_agreeing)
        if alone.name == "diverges" and flips.has_row_per_choice(measured.views.shape):
            return Verdict("drifts", f"{flips.summary}, and its rows, one a token and expert, stand in another order")
        if alone.name == "diverges":
            return Verdict("diverges", f"{alone.why} where the routes agree; {flips.summary}")
        return Verdict("drifts", f"rel_l2 {measured.diff.rel_l2:.1e}: {flips.summary}; the others {part.rel_l2:.1e}")

    def _unless_downcast(self, row: Row, measured: Measurement) -> Row:
        """A candidate of fewer bits cannot be nearer than the reference cast to its type, which is measured here."""
        sides = values_of(row.pair) if is_coarser(measured.dtypes) else None
        if sides is None:
            return row
        ref, cand = sides
        with np.errstate(all="ignore"):
            cast = ref.astype(cand.dtype)
        best, left = measure(ref, cast), measure(cast, cand)
        row = row._replace(downcast=left.rel_l2)
        kind, error = measured.dtypes[1], measured.diff.rel_l2
        if best.apart and not left.apart:
            return row._replace(verdict=Verdict("diverges", f"{row.verdict.why}; {kind} cannot hold the reference"))
        if best.apart or measured.diff.apart or error > growth_for(measured.dtypes) * best.rel_l2:
            return row
        why = f"rel_l2 {error:.1e}, and casting the reference to {kind} alone costs {best.rel_l2:.1e}"
        return row._replace(verdict=Verdict("drifts", why))

    def _unless_cancelled(self, row: Row, measured: Measurement) -> Row:
        """A sum whose terms cancel may be off by as much as its terms are."""
        left = None if measured.diff.apart else self.upstream.cancellation_error(row)
        if left is None or measured.diff.rel_l2 > growth_for(measured.dtypes) * left:
            return row
        why = f"rel_l2 {measured.diff.rel_l2:.1e}: large terms cancel here, whose own errors come to {left:.1e} of it"
        return row._replace(verdict=Verdict("drifts", why))

    def _unless_small_tokens(self, row: Row, measured: Measurement) -> Row:
        """A norm scales small tokens up, so what came in may be worse than its error says."""
        given = [] if row.is_input else self.upstream.inputs_of(row.pair)
        even = max((even_error(other.pair) for other in given if other.shape == row.shape), default=0.0)
        verdict = judge_diff(measured.diff, measured.dtypes, even, Limits(), None, self.upstream.worst_agreeing)
        if verdict.name == "diverges" or not even > (self.upstream.carried_into(row.pair) or 0.0):
            return row
        why = f"rel_l2 {measured.diff.rel_l2:.1e}, and {even:.1e} came in, were all tokens equally large"
        return row._replace(verdict=Verdict("drifts", why))

    def _unless_few_tokens(self, row: Row, measured: Measurement) -> Row:
        """A few tokens of a block, of which nothing else was dumped, may have been sent to other experts."""
        is_block = row.pair.reference.layer.rpartition(".")[2].isdigit()
        is_all_there_is = not self.upstream.has_inputs(row.pair) and not self.upstream.parts_of(row.pair)
        has_few_bits = growth_for(measured.dtypes) != GROWTH
        if row.is_input or measured.diff.apart or not (is_block and is_all_there_is and has_few_bits):
            return row
        errors = token_errors(row.pair)
        most = growth_for(measured.dtypes) * max(self.upstream.worst or 0.0, floor_for(*measured.dtypes)[1].agrees / 2)
        wrong = None if errors is None else errors[errors > most]
        if errors is None or wrong is None or not 0 < wrong.size <= _FEW_TOKENS * errors.size or wrong.max() > 1:
            return row
        told = f"rel_l2 {measured.diff.rel_l2:.1e}, all of it in {wrong.size} of {errors.size} tokens"
        why = f"{told}: they may have taken other experts; dump the router, or float32, to tell that from an error"
        return row._replace(verdict=Verdict("drifts", why))


def _amplification(error: float, carried: float | None) -> float | None:
    """The error over that of what came in; None where that is unknown or zero."""
    if carried is None or carried == 0 or not math.isfinite(carried):
        return None
    return error / carried


def _weigh_injected(verdict: Verdict, measured: Measurement, injected: Diff) -> Verdict:
    """A layer that is still wrong with the right inputs is a culprit; one that is right again is a victim."""
    alone = judge_diff(injected, measured.dtypes, None, Limits())
    if alone.name == "agrees":
        why = f"rel_l2 {measured.diff.rel_l2:.1e}, but {injected.rel_l2:.1e} when given the reference's inputs"
        return Verdict("drifts", why)
    if alone.name == "diverges":
        return Verdict("diverges", f"{alone.why} even when given the reference's inputs")
    return verdict
