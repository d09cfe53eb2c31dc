"""Judging measured pairs in execution order: from measurements to rows.

``verdict`` decides from an error and what came in. Here it is asked in the right order, and a pair that does not agree
is looked at for what may excuse it: a mask in other numbers, an expert that got other tokens, terms that cancelled, a
type that cannot hold the reference. That reads the pair again, which few pairs need.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import numpy as np

from tensordiff.align.match import Pair
from tensordiff.align.views import Views
from tensordiff.compare.judge.excuses import between_parts, errors_of_tokens, even_error, token_errors
from tensordiff.compare.judge.masks import diff_of_visible, is_same_mask
from tensordiff.compare.judge.outliers import error_of_most
from tensordiff.compare.judge.padding import Padding, Visible
from tensordiff.compare.judge.precision import Precision
from tensordiff.compare.judge.routes import RouteFlips, is_router, judge_routes, judge_sorted, most_flips, router_logits
from tensordiff.compare.judge.upstream_error import UpstreamError, mixture_of, parent_of
from tensordiff.compare.judge.verdict import (
    GROWTH,
    GROWTH_OF_FEW_BITS,
    UNITS,
    GoldenErrors,
    Verdict,
    floor_for,
    growth_for,
    growth_of,
    is_coarser,
    judge_by_golden,
    judge_diff,
)
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.measure.dispatch import measure
from tensordiff.compare.row import Row, values_of

_PART_OF_EXPERTS = re.compile(r"(?:^|\.)experts\.(?!\d)")
_EXCHANGED = 2.0  # relative error of a token, of which one or more experts were exchanged
_TABLE_ROUNDINGS = 4  # half steps that a table of cosines may be off by
_NUMBERED = re.compile(r"(?:^|\.)\d+(?:\.|$)")
_FEW_NUMBERS = 8
_GROWTH_OF_BLOCK = 4.5  # how much a whole block may multiply an error, in few bits
_MIXTURE = re.compile(r"(?:^|\.)(?:experts|router|gate|moe|block_sparse_moe)(?:\.|$)")
_TABLE = re.compile(r"rotary|(?:^|[._])rope(?:[._]|$)|RotaryEmb|RoPE", re.IGNORECASE)
_FEW_TOKENS = 1 / 4  # share of the tokens that near-ties may send to other experts in one layer


def is_mixture(pair: Pair) -> bool:
    """Whether a pair belongs to a mixture of experts, by its name: a router of it, or its experts."""
    return any(_MIXTURE.search(name) for name in (pair.name, pair.reference.layer))


def is_table(pair: Pair) -> bool:
    """Whether a layer is named like a table of rotary positions, or its class is."""
    entry = pair.reference
    kind = (entry.origin and entry.origin.module_class) or ""
    return _TABLE.search(entry.layer.rpartition(".")[2]) is not None or _TABLE.search(kind) is not None


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

    def __init__(self, run_dtypes: tuple[str, str] | None = None) -> None:
        self.upstream = UpstreamError()
        self.precision = Precision(run_dtypes)
        self.padding = Padding()
        self.flips: RouteFlips | None = None
        self.has_flipped_before = False
        self.mixtures: set[str] = set()
        """Modules that hold a router and experts."""

    def row(self, measured: Measurement) -> Row:
        """Judge a measured pair, and remember its row for those that follow."""
        measured = _of_visible(measured)
        if is_mixture(measured.pair):
            self.mixtures.add(mixture_of(measured.pair.reference.layer))
        pair, dtypes, views, diff, injected, golden, limits, _ = measured
        measured = measured._replace(
            dtypes=self.precision.on_the_way(pair, dtypes, is_exact=floor_for(*dtypes)[0] == "exact")
        )
        carried = self.upstream.carried_into(pair)
        ratio = golden.ratio if golden else None
        ignored = golden.reference if golden and not golden.is_trusted(dtypes) else None
        shown = tuple(pair.views + views.named())
        row = Row(
            pair=pair, dtypes=dtypes, shape=views.shape, views=shown, diff=diff, injected=injected, golden_ratio=ratio,
            verdict=self._verdict(measured, carried), amplification=_amplification(diff.rel_l2, carried),
            ignored_golden=ignored, after_flips=self.flips is not None, computed_in=measured.dtypes,
        )  # fmt: skip
        if limits.are_set:
            self.upstream.record(row, golden)
            return row
        if row.verdict.name == "agrees" and (wrong := self._wrong_table(row, measured)) is not None:
            row = row._replace(verdict=wrong)
        self.padding.see(row)
        if row.verdict.name == "diverges" and not self._is_excused_block(row, measured):
            kind, floor = floor_for(*measured.dtypes)
            few = _FEW_TOKENS if growth_of(kind) != GROWTH else 0.0
            self.padding.guess(row, max(floor.agrees, 3 * (carried or 0.0)), few)
        if row.verdict.name != "agrees" and (visible := self.padding.visible(row)) is not None:
            return self._of_visible_tokens(row, measured, visible)
        self.padding.record(row)
        hidden = _hidden_error(row, diff, measured.dtypes, carried)
        if hidden is not None:
            row = row._replace(verdict=_of_hidden(hidden, measured, carried))
            measured = measured._replace(diff=diff._replace(rel_l2=hidden))
        if row.verdict.name == "agrees":
            self.upstream.record(row, golden)
            return row
        return self._after_excuses(row, measured, hidden)

    def _wrong_table(self, row: Row, measured: Measurement) -> Verdict | None:
        """A table of positions that is off by more than a few roundings, in a type of few bits.

        It is made of integers, without sums, so that its error is no more than that of a rounding or two.
        """
        kind, _ = floor_for(*measured.dtypes)
        if row.is_input or row.is_exact or golden_judged(measured) or growth_of(kind) == GROWTH:
            return None
        limit, error = _TABLE_ROUNDINGS * UNITS[kind], measured.diff.rel_l2
        if not error > limit or self.upstream.parts_of(row.pair) or not is_table(row.pair):
            return None
        carried = max((one.diff.rel_l2 for one in self.upstream.inputs_of(row.pair) if one.diff), default=0.0)
        if carried > limit or not self.upstream.equal_integers.get(row.pair.reference.call_key, True):
            return None
        told = f"rel_l2 {error:.1e} is more than rounding of a table of positions explains ({limit:.1e} in {kind})"
        return Verdict("diverges", told)

    def _of_visible_tokens(self, row: Row, measured: Measurement, visible: Visible) -> Row:
        """A row that does not agree, judged by the tokens that are no padding."""
        measured = measured._replace(diff=measure(visible.ref, visible.cand))
        verdict = self._verdict(measured, self.upstream.carried_into(row.pair))
        is_aside = verdict.name != "diverges" and self.padding.is_guessed(row)
        name = "drifts" if is_aside else verdict.name
        row = row._replace(
            verdict=Verdict(name, f"{verdict.why} ({visible.told})"),
            set_aside=row.verdict if is_aside and row.verdict.name == "diverges" else None,
        )
        self.padding.record(row, is_wrong_in_padding=verdict.name == "agrees")
        if verdict.name == "agrees":
            self.upstream.record(row, measured.golden, measured.diff.rel_l2)
            return row
        return self._after_excuses(row, measured, measured.diff.rel_l2)

    def _verdict(self, measured: Measurement, carried: float | None) -> Verdict:
        """By the golden run where it says something, else by the floor and what came in."""
        pair, dtypes, _, diff, _, golden, limits, kl_div = measured
        may_judge = golden is not None and golden.is_trusted(dtypes)
        if golden is not None and may_judge and not limits.are_set and not diff.apart and diff.elements:
            ratio = golden.guarded(dtypes)
            if ratio is not None:
                return judge_by_golden(golden, ratio, self.upstream.golden_ratio_into(pair))
        return judge_diff(diff, dtypes, carried, limits, kl_div, self.upstream.worst_agreeing)

    def _after_excuses(self, row: Row, measured: Measurement, hidden: float | None) -> Row:
        """A row that does not agree, after everything that may excuse it or locate the fault."""
        if is_same_mask(row.pair, measured.diff):
            return row._replace(verdict=Verdict("agrees", "the same mask, in other numbers"), amplification=None)
        row = row._replace(verdict=self._by_routes(row, measured))
        for check in (
            self._unless_padding,
            self._unless_rows_of_expert,
            self._unless_downcast,
            self._unless_cancelled,
            self._unless_small_tokens,
            self._unless_few_tokens,
            self._unless_after_mixture,
            self._unless_block,
            self._unless_few_numbers,
        ):
            row = check(row, measured) if row.verdict.name == "diverges" else row
        if measured.injected is not None:
            plain, weighed = row.verdict, _weigh_injected(row.verdict, measured, measured.injected)
            row = row._replace(verdict=weighed, plain_verdict=None if plain.name == weighed.name else plain)
        if row.verdict.name == "diverges" and not row.is_input:
            where = between_parts(row, self.upstream, knows_inputs=measured.injected is not None)
            row = row._replace(verdict=Verdict("diverges", f"{row.verdict.why}{where}"))
        self.upstream.record(row, measured.golden, self._propagated_error(row, measured) or hidden)
        return row

    def _propagated_error(self, row: Row, measured: Measurement) -> float | None:
        """The error to pass on instead of rel_l2: rows sorted by expert only seem wrong, so what came in counts."""
        if self.flips is None or row.verdict.name != "drifts" or not self.flips.concerns(row.pair):
            return None
        return self.upstream.carried_into(row.pair) if self.flips.has_row_per_choice(measured.views.shape) else None

    def _by_routes(self, row: Row, measured: Measurement) -> Verdict:
        """Judge experts by the tokens whose routes agree."""
        tokens = math.prod((row.shape or (0,))[:-1])
        hidden = self.padding.hidden_tokens(row.pair.reference.step, tokens)
        may_be_routes = row.is_exact and (not row.is_input or is_router(row.pair))
        if may_be_routes and (judged := judge_routes(row, self.upstream.latest_outputs, hidden)):
            self._note(judged[1])
            return judged[0]
        if (judged_sorted := self._sorted(row)) is not None:
            self._note(judged_sorted[1])
            return judged_sorted[0]
        if self.flips is None or not self.flips.concerns(row.pair):
            return row.verdict
        if row.is_exact:
            return Verdict("drifts", f"{row.verdict.why}: {self.flips.summary}")
        sides = self.flips.values_where_equal(row.pair)
        return row.verdict if sides is None else self._where_routes_agree(measured, self.flips, measure(*sides))

    def _sorted(self, row: Row) -> tuple[Verdict, RouteFlips] | None:
        """The verdict on what a router gives sorted by expert."""
        is_padded = self.padding.is_known(row.pair.reference.step)
        return judge_sorted(row, self.upstream.latest_outputs, is_padded=is_padded)

    def _note(self, flips: RouteFlips | None) -> None:
        """Remember routes that differ, and that others did before."""
        if flips is None:
            return
        if self.flips is not None and self.flips.flipped.any() and self.flips.router != flips.router:
            self.has_flipped_before = True
        self.flips = flips

    def _where_routes_agree(self, measured: Measurement, flips: RouteFlips, part: Diff) -> Verdict:
        carried = self.upstream.carried_into(measured.pair)
        alone = judge_diff(part, measured.dtypes, carried, Limits(), None, self.upstream.worst_agreeing)
        if alone.name == "diverges" and flips.has_row_per_choice(measured.views.shape):
            return Verdict("drifts", f"{flips.summary}, and its rows, one a token and expert, stand in another order")
        layer, has_few_bits = measured.pair.reference.layer, growth_for(measured.dtypes) != GROWTH
        is_whole = parent_of(flips.router).startswith(f"{layer}.") and not _NUMBERED.search(layer)
        if alone.name == "diverges" and is_whole and has_few_bits and self.has_flipped_before:
            return Verdict("drifts", f"rel_l2 {measured.diff.rel_l2:.1e}: {flips.summary}, and others before")
        if alone.name == "diverges":
            return Verdict("diverges", f"{alone.why} where the routes agree; {flips.summary}")
        return Verdict("drifts", f"rel_l2 {measured.diff.rel_l2:.1e}: {flips.summary}; the others {part.rel_l2:.1e}")

    def _unless_padding(self, row: Row, measured: Measurement) -> Row:
        """Padding that came in wrong, and not into a module around the layer, is that module's fault."""
        if row.is_input or not self.padding.came_in(row):
            return row
        why = f"rel_l2 {measured.diff.rel_l2:.1e}, and what came in is wrong in tokens that the mask hides"
        return row._replace(verdict=Verdict("drifts", why))

    def _unless_rows_of_expert(self, row: Row, measured: Measurement) -> Row:
        """Rows of one expert are of other tokens, where tokens took other experts."""
        entry = row.pair.reference
        if not _PART_OF_EXPERTS.search(entry.layer) or len(measured.views.shape) != 2:
            return row
        same = self.upstream.same_routes.get((mixture_of(entry.layer), entry.step))
        given = [] if row.is_input else self.upstream.inputs_of(row.pair)
        has_right_inputs = bool(given) and all(one.verdict.name == "agrees" for one in given)
        is_padded = self.padding.is_known(entry.step)
        may_flip = growth_for(measured.dtypes) != GROWTH or is_padded
        carried = self.upstream.carried_into(row.pair) or 0.0
        after = row.after_flips and carried > floor_for(*measured.dtypes)[1].agrees
        if has_right_inputs or (same and not is_padded and not after) or (same is None and not may_flip):
            return row
        why = f"rel_l2 {measured.diff.rel_l2:.1e}: its rows are tokens of one expert, and may be other tokens here"
        return row._replace(verdict=Verdict("drifts", why))

    def unmeasured(self, row: Row) -> Row:
        """A row that could not be measured; an expert that got other tokens may have got another number of them."""
        entry = row.pair.reference
        if row.dtypes is None or not _PART_OF_EXPERTS.search(entry.layer):
            return row
        if self.upstream.same_routes.get((mixture_of(entry.layer), entry.step)):
            return row
        return row._replace(verdict=Verdict("drifts", f"{row.verdict.why}: rows are tokens of one expert"))

    def _unless_downcast(self, row: Row, measured: Measurement) -> Row:
        """A candidate of fewer bits cannot be nearer than the reference cast to its type, which is measured here."""
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

    def _unless_after_mixture(self, row: Row, measured: Measurement) -> Row:
        """After a mixture of experts, in few bits, a layer is wrong only if most of its tokens are.

        A token that took another expert is far off from there on, and what it is shows in others that attend to it.
        Routes that are known to be wrong themselves are no such flips.
        """
        if not self.mixtures or measured.diff.apart or growth_for(measured.dtypes) == GROWTH:
            return row
        if any(part.is_exact and part.verdict.name == "diverges" for part in self.upstream.parts_of(row.pair)):
            return row
        if self._is_given_right_tokens(row, measured):
            return row
        visible = self.padding.visible(row)
        errors = errors_of_tokens(visible.ref, visible.cand) if visible else token_errors(row.pair)
        if errors is None or errors.size < 2:
            return row
        usual = float(np.sort(errors)[(errors.size - 1) // 2])
        carried = self.upstream.carried_into(row.pair)
        most = self.upstream.worst_agreeing
        verdict = judge_diff(measured.diff._replace(rel_l2=usual), measured.dtypes, carried, Limits(), None, most)
        if verdict.name == "diverges":
            return row
        told = f"rel_l2 {measured.diff.rel_l2:.1e}, but half of the tokens are off by {usual:.1e} at most"
        why = f"{told}: the others may have taken other experts; dump float32 to tell that from an error"
        return row._replace(verdict=Verdict("drifts", why))

    def _unless_block(self, row: Row, measured: Measurement) -> Row:
        """A block of which nothing else was dumped is many layers, which may multiply more than one does."""
        entry, floor = row.pair.reference, floor_for(*measured.dtypes)[1]
        is_all = not self.upstream.has_inputs(row.pair) and not self.upstream.parts_of(row.pair)
        is_block = entry.layer.rpartition(".")[2].isdigit() and is_all
        error, before = measured.diff.rel_l2, max(self.upstream.worst or 0.0, self.upstream.worst_agreeing or 0.0)
        if not is_block or growth_for(measured.dtypes) == GROWTH or measured.diff.apart or error > floor.diverges:
            return row
        if not before or error > _GROWTH_OF_BLOCK * before:
            return row
        return row._replace(verdict=Verdict("drifts", f"rel_l2 {error:.1e}, and {before:.1e} came into the block"))

    def _is_given_right_tokens(self, row: Row, measured: Measurement) -> bool:
        """Whether every token that a layer was given is right, and it sends none to experts itself."""
        entry, given = row.pair.reference, self.upstream.inputs_of(row.pair)
        sends = any(f"{one}.".startswith(f"{entry.layer}.") or entry.layer.startswith(one) for one in self.mixtures)
        if not given or entry.step > 0 or sends:
            return False  # what is kept of an earlier step is not dumped with the rest
        errors = [token_errors(one.pair) for one in given]
        most = 2 * floor_for(*measured.dtypes)[1].agrees
        return all(one is None or not one.size or float(one.max()) <= most for one in errors)

    def _is_excused_block(self, row: Row, measured: Measurement) -> bool:
        """Whether a block is excused as it is, so that no padding need be guessed."""
        for check in (self._unless_few_tokens, self._unless_block):
            row = check(row, measured) if row.verdict.name == "diverges" else row
        return row.verdict.name != "diverges"

    def _unless_few_numbers(self, row: Row, measured: Measurement) -> Row:
        """One number a token, of a few tokens: where terms cancel, nothing is left to be near to."""
        shape = measured.views.shape
        if not shape or shape[-1] != 1 or measured.diff.elements >= _FEW_NUMBERS or measured.diff.apart:
            return row
        if measured.golden is not None or row.is_exact:
            return row
        why = f"rel_l2 {measured.diff.rel_l2:.1e}, of {measured.diff.elements} numbers, which are too few to tell"
        return row._replace(verdict=Verdict("drifts", why))

    def _weighs_few(self, row: Row) -> bool:
        """Whether a router gives weights of the chosen experts: they may jump where a score passes a threshold."""
        shape = row.shape or ()
        logits = router_logits(row, self.upstream.latest_outputs, math.prod(shape[:-1])) if len(shape) >= 2 else None
        return logits is not None and shape[-1] < logits[0].shape[-1]

    def _unless_few_tokens(self, row: Row, measured: Measurement) -> Row:
        """A few tokens of a block, of which nothing else was dumped, may have been sent to other experts."""
        entry = row.pair.reference
        is_block = entry.layer.rpartition(".")[2].isdigit()
        is_all_there_is = not self.upstream.has_inputs(row.pair) and not self.upstream.parts_of(row.pair)
        knows_routes = (mixture_of(entry.layer), entry.step) in self.upstream.same_routes
        weighs = is_router(row.pair) and self._weighs_few(row)
        may_flip = (is_block and is_all_there_is) or (entry.layer.endswith("experts") and not knows_routes) or weighs
        has_few_bits = growth_for(measured.dtypes) != GROWTH
        if row.is_input or measured.diff.apart or not (may_flip and has_few_bits):
            return row
        visible = self.padding.visible(row)
        errors = errors_of_tokens(visible.ref, visible.cand) if visible else token_errors(row.pair)
        most = growth_for(measured.dtypes) * max(self.upstream.worst or 0.0, floor_for(*measured.dtypes)[1].agrees / 2)
        wrong = None if errors is None else errors[errors > most]
        logits = None if errors is None else router_logits(row, self.upstream.latest_outputs, errors.size)
        few = float(most_flips(*logits)) if logits else _FEW_TOKENS * (errors.size if errors is not None else 0)
        if errors is not None and errors.size > 1 and measured.diff.rel_l2 <= floor_for(*measured.dtypes)[1].diverges:
            few = max(few, 1.0)  # of the few tokens of a batch that decodes
        if errors is None or wrong is None or not 0 < wrong.size <= few or wrong.max() > _EXCHANGED:
            return row
        told = f"rel_l2 {measured.diff.rel_l2:.1e}, all of it in {wrong.size} of {errors.size} tokens"
        why = f"{told}: they may have taken other experts; dump the router, or float32, to tell that from an error"
        return row._replace(verdict=Verdict("drifts", why))


def golden_judged(measured: Measurement) -> bool:
    """Whether a golden run decides on a pair."""
    return measured.golden is not None and measured.golden.is_trusted(measured.dtypes)


def _of_visible(measured: Measurement) -> Measurement:
    """Masked scores without what both sides hide."""
    visible = None if measured.limits.are_set else diff_of_visible(measured.pair, measured.diff)
    return measured if visible is None else measured._replace(diff=visible)


def _hidden_error(row: Row, diff: Diff, dtypes: tuple[str, str], carried: float | None) -> float | None:
    """The error of most elements of a pair that seems right, where a few large ones hide that it is not."""
    kind, floor = floor_for(*dtypes)
    is_clean = carried is None or carried <= floor.agrees
    if kind == "exact" or not (row.verdict.name == "agrees" or (row.verdict.name == "drifts" and is_clean)):
        return None
    error = error_of_most(row.pair, diff)
    # Without its largest elements every tensor is a little further off: that alone hides nothing.
    most = max(floor.diverges, GROWTH_OF_FEW_BITS * diff.rel_l2)
    return error if error is not None and not error <= most else None


def _of_hidden(error: float, measured: Measurement, carried: float | None) -> Verdict:
    """Judge a pair by the error of most of its elements."""
    verdict = judge_diff(measured.diff._replace(rel_l2=error), measured.dtypes, carried, Limits())
    why = f"rel_l2 {measured.diff.rel_l2:.1e} is that of a few large elements; the others are off by {error:.1e}"
    return Verdict(verdict.name, why if carried is None else f"{why}, and {carried:.1e} came in")


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
