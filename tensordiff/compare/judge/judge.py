"""What the numbers of a pair mean after all that came before: from numbers to rows, one after the other.

The verdict itself is made in ``verdict``, from an error and what came in. Here it is asked in the right order, and
what could excuse a pair is looked at, of those pairs only that stand out: a mask in other numbers, an expert given
other tokens, terms that cancelled, a type that cannot hold the reference. That reads a pair again, which few need.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tensordiff.align.match import Pair
from tensordiff.align.views import Views
from tensordiff.compare.judge.excuses import between_parts, even_error, is_same_mask, token_errors
from tensordiff.compare.judge.routes import Flips, judge_routes
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

_FEW_TOKENS = 1 / 6  # the share that near-ties may send to other experts in one layer


class Measurement(NamedTuple):
    """A pair's numbers, before they are judged."""

    pair: Pair
    dtypes: tuple[str, str]
    views: Views
    diff: Diff
    injected: Diff | None
    golden: GoldenErrors | None
    limits: Limits
    """Those that are the pair's own."""
    kl_div: float | None
    """Measured only where there is a limit to it."""


class Judge:
    """Judges numbers in execution order."""

    def __init__(self) -> None:
        self.past = UpstreamError()
        self.flips: Flips | None = None

    def row(self, numbers: Measurement) -> Row:
        """What a pair's numbers mean; remembered for those that follow."""
        pair, dtypes, views, diff, injected, golden, limits, _ = numbers
        carried = self.past.into(pair)
        ratio = golden.ratio if golden else None
        shown = tuple(pair.views + views.named())
        verdict = self._judged(numbers, carried)
        row = Row(pair, dtypes, views.shape, shown, diff, injected, ratio, verdict, _over(diff.rel_l2, carried))
        if verdict.name == "agrees" or limits.are_set:
            self.past.note(row, golden)
            return row
        return self._looked_at(row, numbers)

    def _judged(self, numbers: Measurement, carried: float | None) -> Verdict:
        """By a golden run where it says something, else by the floor and what came in."""
        pair, dtypes, _, diff, _, golden, limits, kl_div = numbers
        if golden is not None and not limits.are_set and not diff.apart and diff.elements:
            ratio = golden.guarded(dtypes)
            if ratio is not None:
                return judge_by_golden(golden, ratio, self.past.golden_into(pair))
        return judge_diff(diff, dtypes, carried, limits, kl_div, self.past.usual)

    def _looked_at(self, row: Row, numbers: Measurement) -> Row:
        """A row that does not agree, after all that may excuse it, or that says more of it."""
        if is_same_mask(row.pair, numbers.diff):
            return row._replace(verdict=Verdict("agrees", "the same mask, in other numbers"), amplification=None)
        row = row._replace(verdict=self._by_routes(row, numbers))
        for look in (self._if_held, self._if_not_cancelled, self._if_not_uneven, self._if_not_one_token):
            row = look(row, numbers) if row.verdict.name == "diverges" else row
        if numbers.injected is not None:
            row = row._replace(verdict=_weigh_injected(row.verdict, numbers, numbers.injected))
        if row.verdict.name == "diverges" and not row.is_input:
            where = between_parts(row, self.past, knows_inputs=numbers.injected is not None)
            row = row._replace(verdict=Verdict("diverges", f"{row.verdict.why}{where}"))
        self.past.note(row, numbers.golden, self._error_that_goes_on(row, numbers))
        return row

    def _error_that_goes_on(self, row: Row, numbers: Measurement) -> float | None:
        """Rows that stand in another order are no error; where routes differ, what came in goes on."""
        is_mixed = self.flips is not None and self.flips.concerns(row.pair)
        if (
            is_mixed
            and self.flips
            and self.flips.has_a_row_a_choice(numbers.views.shape)
            and row.verdict.name == "drifts"
        ):
            return self.past.into(row.pair)
        return None

    def _by_routes(self, row: Row, numbers: Measurement) -> Verdict:
        """Experts are judged where the routes agree."""
        if row.is_exact and not row.is_input and (found := judge_routes(row, self.past.latest)):
            self.flips = found[1] or self.flips
            return found[0]
        if self.flips is None or not self.flips.concerns(row.pair):
            return row.verdict
        if row.is_exact:
            return Verdict("drifts", f"{row.verdict.why}: {self.flips.told}")
        sides = self.flips.where_they_agree(row.pair)
        return row.verdict if sides is None else self._where_routes_agree(numbers, self.flips, measure(*sides))

    def _where_routes_agree(self, numbers: Measurement, flips: Flips, part: Diff) -> Verdict:
        alone = judge_diff(part, numbers.dtypes, self.past.into(numbers.pair), Limits(), None, self.past.usual)
        if alone.name == "diverges" and flips.has_a_row_a_choice(numbers.views.shape):
            return Verdict("drifts", f"{flips.told}, and its rows, one a token and expert, stand in another order")
        if alone.name == "diverges":
            return Verdict("diverges", f"{alone.why} where the routes agree; {flips.told}")
        return Verdict("drifts", f"rel_l2 {numbers.diff.rel_l2:.1e}: {flips.told}; the others {part.rel_l2:.1e}")

    def _if_held(self, row: Row, numbers: Measurement) -> Row:
        """A candidate of fewer bits is compared with the reference cast to its type, too: it can be no nearer."""
        sides = values_of(row.pair) if is_coarser(numbers.dtypes) else None
        if sides is None:
            return row
        ref, cand = sides
        with np.errstate(all="ignore"):
            cast = ref.astype(cand.dtype)
        best, left = measure(ref, cast), measure(cast, cand)
        row = row._replace(downcast=left.rel_l2)
        kind, error = numbers.dtypes[1], numbers.diff.rel_l2
        if best.apart and not left.apart:
            return row._replace(verdict=Verdict("diverges", f"{row.verdict.why}; {kind} cannot hold the reference"))
        if best.apart or numbers.diff.apart or error > growth_for(numbers.dtypes) * best.rel_l2:
            return row
        why = f"rel_l2 {error:.1e}, and casting the reference to {kind} alone costs {best.rel_l2:.1e}"
        return row._replace(verdict=Verdict("drifts", why))

    def _if_not_cancelled(self, row: Row, numbers: Measurement) -> Row:
        """A sum whose terms cancelled is as wrong as they were."""
        left = None if numbers.diff.apart else self.past.cancelled(row)
        if left is None or numbers.diff.rel_l2 > growth_for(numbers.dtypes) * left:
            return row
        why = f"rel_l2 {numbers.diff.rel_l2:.1e}: large terms cancel here, whose own errors come to {left:.1e} of it"
        return row._replace(verdict=Verdict("drifts", why))

    def _if_not_uneven(self, row: Row, numbers: Measurement) -> Row:
        """What came in may be worse than its error says: a norm makes its small tokens as large as the others."""
        given = [] if row.is_input else self.past.given_to(row.pair)
        even = max((even_error(other.pair) for other in given if other.shape == row.shape), default=0.0)
        verdict = judge_diff(numbers.diff, numbers.dtypes, even, Limits(), None, self.past.usual)
        if verdict.name == "diverges" or not even > (self.past.into(row.pair) or 0.0):
            return row
        why = f"rel_l2 {numbers.diff.rel_l2:.1e}, and {even:.1e} came in, were all tokens equally large"
        return row._replace(verdict=Verdict("drifts", why))

    def _if_not_one_token(self, row: Row, numbers: Measurement) -> Row:
        """A whole block of which nothing else was dumped, and a few tokens that may have been sent to other experts."""
        is_block = row.pair.reference.layer.rpartition(".")[2].isdigit()
        is_all_there_is = not self.past.has_inputs(row.pair) and not self.past.parts_of(row.pair)
        has_few_bits = growth_for(numbers.dtypes) != GROWTH
        if row.is_input or numbers.diff.apart or not (is_block and is_all_there_is and has_few_bits):
            return row
        errors = token_errors(row.pair)
        most = growth_for(numbers.dtypes) * max(self.past.worst or 0.0, floor_for(*numbers.dtypes)[1].agrees / 2)
        wrong = None if errors is None else errors[errors > most]
        if errors is None or wrong is None or not 0 < wrong.size <= _FEW_TOKENS * errors.size or wrong.max() > 1:
            return row
        told = f"rel_l2 {numbers.diff.rel_l2:.1e}, all of it in {wrong.size} of {errors.size} tokens"
        why = f"{told}: they may have taken other experts; dump the router, or float32, to tell that from an error"
        return row._replace(verdict=Verdict("drifts", why))


def _over(error: float, carried: float | None) -> float | None:
    """How much larger an error is than what came in."""
    if carried is None or carried == 0 or not math.isfinite(carried):
        return None
    return error / carried


def _weigh_injected(verdict: Verdict, numbers: Measurement, injected: Diff) -> Verdict:
    """With right inputs injected, what is still wrong is a culprit, what is right again a victim."""
    alone = judge_diff(injected, numbers.dtypes, None, Limits())
    if alone.name == "agrees":
        why = f"rel_l2 {numbers.diff.rel_l2:.1e}, but {injected.rel_l2:.1e} when given the reference's inputs"
        return Verdict("drifts", why)
    if alone.name == "diverges":
        return Verdict("diverges", f"{alone.why} even when given the reference's inputs")
    return verdict
