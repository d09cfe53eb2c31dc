"""Judging measured pairs in execution order: from measurements to rows.

``verdict`` decides from an error and what came in. Here it is asked in the right order, and a pair that does not agree
is looked at for what may excuse it: a mask in other numbers, an expert that got other tokens, terms that cancelled, a
type that cannot hold the reference. That reads the pair again, which few pairs need.
"""

from __future__ import annotations

import math

from tensordiff.compare.judge import excuses, experts, unseen_routes
from tensordiff.compare.judge.first_block import uneven_block
from tensordiff.compare.judge.history import History
from tensordiff.compare.judge.location import between_parts
from tensordiff.compare.judge.masks import is_same_mask
from tensordiff.compare.judge.measurement import Measurement, of_visible
from tensordiff.compare.judge.outliers import are_few_wrong, hidden_error, of_hidden
from tensordiff.compare.judge.padding import Visible
from tensordiff.compare.judge.positions import wrong_table
from tensordiff.compare.judge.verdict import GROWTH, Verdict, floor_for, growth_of, judge_by_golden, judge_diff
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.measure.dispatch import measure
from tensordiff.compare.row import Row

_EXCUSES = (
    excuses.unless_padding,
    experts.unless_rows_of_expert,
    excuses.unless_downcast,
    excuses.unless_cancelled,
    excuses.unless_small_tokens,
    excuses.unless_small_tokens_unseen,
    excuses.unless_part_multiplies,
    unseen_routes.unless_few_tokens,
    unseen_routes.unless_after_mixture,
    excuses.unless_block,
    excuses.unless_few_numbers,
)


class Judge:
    """Judges pairs in execution order, each in the light of those before it."""

    def __init__(self, run_dtypes: tuple[str, str] | None = None) -> None:
        self.history = History(run_dtypes)

    def row(self, measured: Measurement) -> Row:
        """Judge a measured pair, and remember its row for those that follow."""
        measured = of_visible(measured)
        self.history.see(measured.pair)
        pair, dtypes, views, diff, injected, golden, limits, _ = measured
        measured = measured._replace(dtypes=self._explained_by(measured))
        carried = self.history.upstream.carried_into(pair)
        ratio = golden.ratio if golden else None
        ignored = golden.reference if golden and not golden.is_trusted(dtypes) else None
        shown, has_flipped = tuple(pair.views + views.named()), self.history.flips is not None
        row = Row(
            pair=pair, dtypes=dtypes, shape=views.shape, views=shown, diff=diff, injected=injected, golden_ratio=ratio,
            verdict=self._verdict(measured, carried), amplification=_amplification(diff.rel_l2, carried),
            ignored_golden=ignored, after_flips=has_flipped, computed_in=measured.dtypes,
            after_proven_flips=has_flipped and self.history.are_flips_proven,
        )  # fmt: skip
        if limits.are_set:
            self.history.upstream.record(row, golden)
            return row
        if row.verdict.name == "agrees" and (wrong := wrong_table(self.history, row, measured)) is not None:
            row = row._replace(verdict=wrong)
        self.history.padding.see(row)
        if row.verdict.name == "diverges" and not self._is_excused_block(row, measured):
            kind, floor = floor_for(*measured.dtypes)
            few = unseen_routes.FEW_TOKENS if growth_of(kind) != GROWTH else 0.0
            self.history.padding.guess(row, max(floor.agrees, 3 * (carried or 0.0)), few)
        if row.verdict.name != "agrees" and (visible := self.history.padding.visible(row)) is not None:
            return self._of_visible_tokens(row, measured, visible)
        self.history.padding.record(row)
        hidden = hidden_error(row, diff, measured.dtypes, carried)
        if hidden is not None:
            row = row._replace(verdict=of_hidden(hidden, measured, carried))
            measured = measured._replace(diff=diff._replace(rel_l2=hidden))
        if row.verdict.name == "agrees":
            self.history.upstream.record(row, golden)
            return row
        return self._after_excuses(row, measured, hidden)

    def _explained_by(self, measured: Measurement) -> tuple[str, str]:
        """The coarsest types that explain the error of a pair."""
        pair, dtypes, diff = measured.pair, measured.dtypes, measured.diff
        is_exact, is_equal = floor_for(*dtypes)[0] == "exact", self.history.upstream.is_given_equal(pair)
        way = self.history.precision.on_the_way(pair, dtypes, is_exact=is_exact, is_given_equal=is_equal)
        return dtypes if are_few_wrong(pair, diff, dtypes, way) else way

    def _of_visible_tokens(self, row: Row, measured: Measurement, visible: Visible) -> Row:
        """A row that does not agree, judged by the tokens that are no padding."""
        measured = measured._replace(diff=measure(visible.ref, visible.cand))
        verdict = self._verdict(measured, self.history.upstream.carried_into(row.pair))
        is_aside = verdict.name != "diverges" and self.history.padding.is_guessed(row)
        name = "drifts" if is_aside else verdict.name
        row = row._replace(
            verdict=Verdict(name, f"{verdict.why} ({visible.told})"),
            set_aside=row.verdict if is_aside and row.verdict.name == "diverges" else None,
        )
        self.history.padding.record(row, is_wrong_in_padding=verdict.name == "agrees")
        if verdict.name == "agrees":
            self.history.upstream.record(row, measured.golden, measured.diff.rel_l2)
            return row
        return self._after_excuses(row, measured, measured.diff.rel_l2)

    def _verdict(self, measured: Measurement, carried: float | None) -> Verdict:
        """By the golden run where it says something, else by the floor and what came in."""
        pair, dtypes, _, diff, _, golden, limits, kl_div = measured
        may_judge = golden is not None and golden.is_trusted(dtypes)
        if golden is not None and may_judge and not limits.are_set and not diff.apart and diff.elements:
            ratio = golden.guarded(dtypes)
            if ratio is not None:
                return judge_by_golden(golden, ratio, self.history.upstream.golden_ratio_into(pair))
        return judge_diff(diff, dtypes, carried, limits, kl_div, self.history.upstream.worst_agreeing)

    def _after_excuses(self, row: Row, measured: Measurement, hidden: float | None) -> Row:
        """A row that does not agree, after everything that may excuse it or locate the fault."""
        if is_same_mask(row.pair, measured.diff):
            return row._replace(verdict=Verdict("agrees", "the same mask, in other numbers"), amplification=None)
        row = row._replace(verdict=experts.by_routes(self.history, row, measured))
        for check in _EXCUSES:
            row = check(self.history, row, measured) if row.verdict.name == "diverges" else row
        if row.verdict.name == "drifts" and (wrong := uneven_block(self.history, row, measured)) is not None:
            row = row._replace(verdict=wrong)
        if measured.injected is not None:
            plain, weighed = row.verdict, _weigh_injected(row.verdict, measured, measured.injected)
            row = row._replace(verdict=weighed, plain_verdict=None if plain.name == weighed.name else plain)
        if row.verdict.name == "diverges" and not row.is_input:
            where = between_parts(row, self.history.upstream, knows_inputs=measured.injected is not None)
            row = row._replace(verdict=Verdict("diverges", f"{row.verdict.why}{where}"))
        self.history.upstream.record(
            row, measured.golden, experts.propagated_error(self.history, row, measured) or hidden
        )
        return row

    def _is_excused_block(self, row: Row, measured: Measurement) -> bool:
        """Whether a block is excused as it is, so that no padding need be guessed."""
        for check in (unseen_routes.unless_few_tokens, excuses.unless_block):
            row = check(self.history, row, measured) if row.verdict.name == "diverges" else row
        return row.verdict.name != "diverges"

    def unmeasured(self, row: Row) -> Row:
        """A row that could not be measured."""
        return experts.unmeasured(self.history, row)


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
