"""Judge measured pairs in execution order: turn measurements into rows.

``verdict`` decides from an error and the incoming error. This module asks it in the right order, and checks whether
anything excuses a pair that does not agree: a mask made of other numbers, an expert that got other tokens, terms that
cancel, a type that cannot hold the reference. Checking reads the pair again, which few pairs need.
"""

from __future__ import annotations

import math

from tensordiff.compare.judge import excuses, experts, softmax, unseen_routes
from tensordiff.compare.judge.below_floor import uneven_block, wrong_integer, wrong_table
from tensordiff.compare.judge.evidence import History, Measurement, of_visible
from tensordiff.compare.judge.gradients import GradientJudge
from tensordiff.compare.judge.masks import is_same_mask
from tensordiff.compare.judge.padding import Visible
from tensordiff.compare.judge.pairing import Pairing
from tensordiff.compare.judge.passed_on import passed_on
from tensordiff.compare.judge.precision import Precision
from tensordiff.compare.judge.softmax import right_scores
from tensordiff.compare.judge.uneven_errors import (
    are_few_wrong,
    hidden_error,
    hides_nothing,
    loud_stretches,
    of_hidden,
    of_wrong_token,
    wrong_token,
)
from tensordiff.compare.judge.upstream_error import between_parts, located_reason
from tensordiff.compare.judge.verdict import GROWTH, Verdict, floor_for, growth_of, judge_by_golden, judge_diff
from tensordiff.compare.judge.wrong_channels import of_wrong_part, wrong_part
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.measure.dispatch import measure
from tensordiff.compare.row import Row, unknown_row, values_of
from tensordiff.errors import ReleasedError

_EXCUSES = (
    excuses.unless_padding,
    experts.unless_rows_of_expert,
    excuses.unless_downcast,
    excuses.unless_cancelled,
    softmax.unless_right_scores,
    excuses.unless_small_tokens,
    excuses.unless_small_tokens_unseen,
    excuses.unless_part_multiplies,
    excuses.unless_norm_multiplies_tokens,
    unseen_routes.unless_few_tokens,
    unseen_routes.unless_after_mixture,
    unseen_routes.unless_kept_wrong,
    excuses.unless_block,
    excuses.unless_few_numbers,
)

_OF_ONE_TOKEN = 3.0
"""How far off one token may be, as a multiple of the error of all tokens, if none may be left out."""


class Judge:
    """Judges pairs in execution order, each with the history of those before it."""

    def __init__(
        self,
        precision: Precision,
        pairing: Pairing | None = None,
        *,
        has_gradients: bool = False,
        has_experts: bool | None = None,
    ) -> None:
        self.history = History(precision, pairing, has_experts=has_experts)
        self.gradients = GradientJudge(self.history) if has_gradients else None
        """Needed only if gradients follow, since it remembers every row of the forward."""

    def release(self) -> None:
        """Forget all pairs, once the last is judged: freed in one step, they would keep other threads waiting."""
        self.history.release()
        if self.gradients is not None:
            self.gradients.release()

    def row(self, measured: Measurement) -> Row:
        """Judge a measured pair, and remember its row for those that follow.

        The verdict is ``unknown`` if a tensor that had to be read again is gone, since it might have excused the pair.
        """
        try:
            return self._by_limits(measured)
        except ReleasedError as error:
            return unknown_row(measured.pair, str(error))

    def _by_limits(self, measured: Measurement) -> Row:
        """Let the user's own limits decide whether a pair passes.

        Limits say nothing about where an error begins, so the pair is also judged without them.
        """
        limits = measured.limits
        if not limits.are_set:
            return self._by_precision(measured)
        row = self._by_precision(measured._replace(limits=Limits()))
        verdict = judge_diff(measured.diff, measured.dtypes, None, limits, measured.kl_div)
        return row._replace(
            diff=measured.diff, verdict=verdict, set_aside=None, plain_verdict=None, without_limits=row.verdict,
            is_undecided=False,
        )  # fmt: skip

    def _by_precision(self, measured: Measurement) -> Row:
        if self.gradients is None:
            return self._row(measured)
        judge = self.gradients.row if measured.pair.reference.is_gradient else self._row
        return self.gradients.note(judge(measured))

    def _row(self, measured: Measurement) -> Row:
        """Judge by precision and by the incoming error."""
        measured = of_visible(measured)
        self.history.note_mixture(measured.pair)
        pair, dtypes, views, diff, injected, golden, _, _ = measured
        explained = self._explained_by(measured)
        measured = measured if explained == dtypes else measured._replace(dtypes=explained)
        carried = self.history.upstream.carried_into(pair)
        ratio = golden.ratio if golden else None
        ignored = golden.reference if golden and not golden.is_trusted(dtypes) else None
        by_shape = views.named() if views.reference or views.candidate else []
        shown, has_flipped = (*pair.views, *by_shape), self.history.flips is not None
        are_proven = has_flipped and self.history.are_flips_proven
        verdict, amplified = self._verdict(measured, carried), _amplification(diff.rel_l2, carried)
        row = Row(  # by position: by name it takes thrice as long, for every pair
            pair, dtypes, views.shape, shown, diff, injected, ratio, verdict, amplified, None, ignored, has_flipped,
            are_proven, measured.dtypes,
        )  # fmt: skip
        if row.verdict.name == "agrees" and (wrong := wrong_table(self.history, row, measured)) is not None:
            row = row._replace(verdict=wrong)
        if row.verdict.name != "diverges" and (wrong := wrong_integer(diff, dtypes)) is not None:
            row = row._replace(verdict=wrong)
        if is_input := pair.reference.is_input:
            self.history.padding.note_mask(row)
        if row.verdict.name == "agrees" and hides_nothing(diff, measured.dtypes):
            if is_input:
                self.history.padding.record(row)
            self.history.upstream.record(row, golden)
            return row
        row, measured = self._by_worst_token(row, measured)
        if row.verdict.name == "diverges" and not self._is_excused_anyway(row, measured):
            kind, floor = floor_for(*measured.dtypes)
            few = unseen_routes.FEW_TOKENS if growth_of(kind) != GROWTH else 0.0
            least = floor.agrees if few else _OF_ONE_TOKEN * floor.agrees
            self.history.padding.guess(row, max(least, 3 * (carried or 0.0)), few)
        if row.verdict.name != "agrees" and (visible := self.history.padding.visible(row)) is not None:
            return self._of_visible_tokens(row, measured, visible)
        self.history.padding.record(row)
        hidden = row.worst_token
        error = hidden_error(row, diff, measured.dtypes, carried) if hidden is None else None
        if error is not None and right_scores(self.history, row, measured) is None:
            hidden, row = error, row._replace(verdict=of_hidden(error, measured, carried))
            measured = measured._replace(diff=diff._replace(rel_l2=error))
        is_padded = self.history.padding.is_known(pair.reference.step)
        if hidden is None and (part := wrong_part(row, measured, carried, is_padded=is_padded)) is not None:
            hidden, row = part.error, row._replace(verdict=of_wrong_part(part, measured, carried))
            measured = measured._replace(diff=diff._replace(rel_l2=hidden))
            if not part.is_tokens:  # neither padding nor other experts explain a channel
                return self._located(row, measured, hidden)
        if row.verdict.name == "agrees" and (wrong := uneven_block(self.history, row, measured)) is not None:
            return self._located(row._replace(verdict=wrong), measured, hidden)
        if row.verdict.name == "agrees":
            self.history.upstream.record(row, golden)
            return row
        return self._after_excuses(row, measured, hidden)

    def _explained_by(self, measured: Measurement) -> tuple[str, str]:
        """The coarsest types that explain the error of a pair."""
        pair, dtypes, diff = measured.pair, measured.dtypes, measured.diff
        is_exact, is_equal = floor_for(*dtypes)[0] == "exact", self.history.upstream.is_given_equal(pair)
        way = self.history.precision.on_the_way(pair, dtypes, is_exact=is_exact, is_given_equal=is_equal)
        return dtypes if way != dtypes and are_few_wrong(pair, diff, dtypes, way) else way

    def _of_visible_tokens(self, row: Row, measured: Measurement, visible: Visible) -> Row:
        """Judge a row that does not agree by the tokens that are not padding."""
        unpadded, measured = measured, measured._replace(diff=measure(visible.ref, visible.cand))
        by_norm = self._verdict(measured, self.history.upstream.carried_into(row.pair))
        seen, measured = self._by_worst_token(row._replace(verdict=by_norm, worst_token=None), measured, visible)
        verdict = seen.verdict
        is_aside = verdict.name != "diverges" and self.history.padding.is_guessed(row)
        name = "drifts" if is_aside else verdict.name
        set_aside = self._excused(row, unpadded).verdict if is_aside else None
        row = row._replace(
            verdict=Verdict(name, f"{verdict.why} ({visible.told})"), worst_token=seen.worst_token,
            set_aside=set_aside if set_aside is not None and set_aside.name == "diverges" else None,
        )  # fmt: skip
        self.history.padding.record(row, is_wrong_in_padding=verdict.name == "agrees")
        if verdict.name == "agrees":
            self.history.upstream.record(row, measured.golden, measured.diff.rel_l2)
            return row
        return self._after_excuses(row, measured, measured.diff.rel_l2)

    def _by_worst_token(
        self, row: Row, measured: Measurement, visible: Visible | None = None
    ) -> tuple[Row, Measurement]:
        """Judge a row by its worst token, if the norm over all (or all visible) tokens hides that token's error."""
        loud = loud_stretches(measured.diff, measured.dtypes)
        if not loud or row.verdict.name == "diverges" or measured.golden is not None:
            return row, measured
        sides = (visible.ref, visible.cand) if visible else values_of(row.pair)
        error = None if sides is None else wrong_token(*sides, loud, measured.dtypes)
        if error is None:
            return row, measured
        carried, floor = self.history.upstream.carried_into(row.pair), floor_for(*measured.dtypes)[1]
        if row.verdict.name == "agrees" or carried is None or carried <= floor.agrees:
            row = row._replace(verdict=of_wrong_token(error, measured, carried))
        return row._replace(worst_token=error), measured._replace(diff=measured.diff._replace(rel_l2=error))

    def _verdict(self, measured: Measurement, carried: float | None) -> Verdict:
        """The verdict by the golden run if that decides, else by the floor and the incoming error."""
        pair, dtypes, _, diff, _, golden, limits, kl_div = measured
        may_judge = golden is not None and golden.is_trusted(dtypes)
        if golden is not None and may_judge and not diff.apart and diff.elements:
            ratio = golden.guarded(dtypes)
            if ratio is not None:
                return judge_by_golden(golden, ratio, self.history.upstream.golden_ratio_into(pair))
        return judge_diff(diff, dtypes, carried, limits, kl_div, self.history.upstream.worst_agreeing)

    def _after_excuses(self, row: Row, measured: Measurement, hidden: float | None) -> Row:
        """A row that does not agree, after checking everything that may excuse it."""
        if is_same_mask(row.pair, measured.diff):
            return row._replace(verdict=Verdict("agrees", "the same mask, in other numbers"), amplification=None)
        return self._located(self._excused(row, measured), measured, hidden)

    def _excused(self, row: Row, measured: Measurement) -> Row:
        """A row with what may excuse it, or show it to be wrong by itself."""
        row = row._replace(verdict=experts.by_routes(self.history, row, measured))
        for check in _EXCUSES:
            row = check(self.history, row, measured) if row.verdict.name == "diverges" else row
        for promote in (passed_on, uneven_block, unseen_routes.wrong_right_tokens):
            if row.verdict.name == "drifts" and (wrong := promote(self.history, row, measured)) is not None:
                row = row._replace(verdict=wrong)
        return row

    def _located(self, row: Row, measured: Measurement, hidden: float | None) -> Row:
        """A row that nothing excuses, after the injected run and the row's parts have been considered."""
        if measured.injected is not None:
            plain, weighed = row.verdict, _judge_injected(row.verdict, measured, measured.injected)
            row = row._replace(verdict=weighed, plain_verdict=None if plain.name == weighed.name else plain)
        if row.verdict.name == "diverges" and not row.is_input:
            where = between_parts(row, self.history.upstream, knows_inputs=measured.injected is not None)
            row = row._replace(verdict=Verdict("diverges", located_reason(row.verdict.why, where)))
        propagated = experts.propagated_error(self.history, row, measured)
        self.history.upstream.record(row, measured.golden, hidden if propagated is None else propagated)
        return row

    def _is_excused_anyway(self, row: Row, measured: Measurement) -> bool:
        """Whether known routes excuse a row, or it is a block that is excused, so that no padding is to be guessed."""
        row = row._replace(verdict=experts.by_routes(self.history, row, measured))
        for check in (unseen_routes.unless_few_tokens, excuses.unless_block):
            row = check(self.history, row, measured) if row.verdict.name == "diverges" else row
        return row.verdict.name != "diverges"

    def unmeasured(self, row: Row) -> Row:
        """The row of a pair that could not be measured."""
        try:
            return experts.unmeasured(self.history, row)
        except ReleasedError as error:
            return unknown_row(row.pair, str(error))


def _amplification(error: float, carried: float | None) -> float | None:
    """The error divided by the incoming error; None if that is unknown or zero."""
    if carried is None or carried == 0 or not math.isfinite(carried):
        return None
    return error / carried


def _judge_injected(verdict: Verdict, measured: Measurement, injected: Diff) -> Verdict:
    """A layer that is still wrong with right inputs is a culprit; one that becomes right is a victim."""
    alone = judge_diff(injected, measured.dtypes, None, Limits())
    if alone.name == "agrees":
        why = f"rel_l2 {measured.diff.rel_l2:.1e}, but {injected.rel_l2:.1e} when given the reference's inputs"
        return Verdict("drifts", why)
    if alone.name == "diverges":
        return Verdict("diverges", f"{alone.why} even when given the reference's inputs")
    return verdict
