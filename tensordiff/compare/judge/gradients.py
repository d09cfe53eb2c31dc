"""Judge gradients: the backward of a module is right if it computes right gradients from right ones.

The backward of a call gets the gradient of its output and the values of its forward. So a gradient that it computes is
wrong by itself only if both of these agree; if the forward already differs, its gradients must differ, too. A module
that was called several times has one gradient per parameter, the sum over its calls.

A gradient may be zero except for rounding. The gradient of the bias of attention keys is, since that bias shifts all
scores of a token alike. Two such gradients have nothing in common, and neither is wrong. The gradient of a bias is a
sum of incoming gradients, so it may be off only by their errors and by rounding.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from tensordiff.align.match import Pair
from tensordiff.compare.judge.evidence import History, Measurement
from tensordiff.compare.judge.excuses import unless_downcast
from tensordiff.compare.judge.parents import parent_of
from tensordiff.compare.judge.upstream_error import between_parts, worse
from tensordiff.compare.judge.verdict import GROWTH, UNITS, Floor, Verdict, floor_for, growth_of, judge_diff
from tensordiff.compare.limits import Limits
from tensordiff.compare.row import Row
from tensordiff.dump.model import CallKey
from tensordiff.dump.names import split_backward
from tensordiff.util.slices import release

_ATTENTION = re.compile(r"att(?:ention|n)", re.IGNORECASE)
_OF_INPUT = "output_grad_input"


class _Given(NamedTuple):
    """The gradients that a backward got: the norm of their values, the norm of their error, and their number."""

    size: float
    error: float
    elements: float


class GradientJudge:
    """Judges the gradients of a run, using its forward."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._forward: dict[CallKey, float] = {}
        """The worst error of a call's inputs and outputs, in the forward."""
        self._given: dict[tuple[str, int], _Given] = {}
        """The gradients that the backward of a layer got, by layer and step."""
        self._calls: dict[tuple[str, int], set[int]] = {}

    def release(self) -> None:
        """Forget all pairs, in slices."""
        release(self._forward, self._given, self._calls)

    def note(self, row: Row) -> Row:
        """Remember a row for the gradients that follow, and return it."""
        entry, diff = row.pair.reference, row.diff
        if diff is None:
            return row
        if not row.is_gradient and not row.is_exact:
            self._forward[entry.call_key] = worse(self._forward.get(entry.call_key, 0.0), diff.rel_l2)
        place = entry.layer, entry.step
        self._calls.setdefault(place, set()).add(entry.call)
        if row.is_gradient and row.is_input:
            root = math.sqrt(diff.elements)
            own, before = _Given(root * diff.ref_rms, root * diff.rms, diff.elements), self._given.get(place)
            self._given[place] = own if before is None else _Given(*(a + b for a, b in zip(own, before, strict=True)))
        return row

    def row(self, measured: Measurement) -> Row:
        """Judge a measured gradient by precision, by the incoming gradient and by the forward."""
        pair, dtypes, views, diff, _, golden, _, _ = measured
        gradient, forward = self._incoming(pair), self._of_forward(pair)
        carried, has_flipped = worse(gradient or 0.0, forward), self.history.flips is not None
        is_parameter = not pair.reference.is_input and not pair.reference.port.startswith(_OF_INPUT)
        row = Row(
            pair=pair, dtypes=dtypes, shape=views.shape, views=tuple(pair.views + views.named()), diff=diff,
            injected=None, golden_ratio=golden.ratio if golden else None, verdict=Verdict("agrees", ""),
            amplification=diff.rel_l2 / carried if 0 < carried < math.inf and not is_parameter else None,
            computed_in=dtypes, after_flips=has_flipped,
            after_proven_flips=has_flipped and self.history.are_flips_proven,
        )  # fmt: skip
        row = row._replace(verdict=self._verdict(measured, row, gradient or 0.0, forward))
        if row.verdict.name == "diverges":
            row = unless_downcast(self.history, row, measured)
        if row.verdict.name == "diverges" and not row.is_input:
            where = between_parts(row, self.history.upstream)
            row = row._replace(verdict=Verdict("diverges", f"{row.verdict.why}{where}"))
        if not is_parameter:
            self.history.upstream.record(row)  # the gradient of a parameter is not passed on
        return row

    def _incoming(self, pair: Pair) -> float | None:
        """The error of the gradient that came into the backward of a call; for a parameter, of any of the module's
        calls."""
        entry = pair.reference
        if entry.is_input or entry.port.startswith(_OF_INPUT):
            return self.history.upstream.carried_into(pair)
        errors, calls = self.history.upstream.input_errors, self._calls.get((entry.layer, entry.step), {entry.call})
        known = [errors[key] for call in calls if (key := CallKey(entry.layer, entry.step, call)) in errors]
        return max(known) if known else self.history.upstream.carried_into(pair)

    def _of_forward(self, pair: Pair) -> float:
        """The error of a call's forward; for a parameter, of all calls of its module."""
        entry = pair.reference
        layer = split_backward(entry.layer)[1]
        is_of_one = entry.port.startswith(_OF_INPUT)
        calls = {entry.call} if is_of_one else self._calls.get((layer, entry.step), set())
        errors = [self._forward.get(CallKey(layer, entry.step, call), 0.0) for call in calls]
        return math.nan if any(map(math.isnan, errors)) else max(errors, default=0.0)

    def _verdict(self, measured: Measurement, row: Row, gradient: float, forward: float) -> Verdict:
        diff, dtypes = measured.diff, measured.dtypes
        kind, floor = floor_for(*dtypes)
        verdict = judge_diff(diff, dtypes, worse(gradient, forward), Limits())
        if verdict.name == "agrees" or diff.apart:
            return verdict
        if gradient <= floor.agrees and forward <= floor.agrees and self._is_sum_of_errors(row, kind):
            return Verdict("agrees", f"rel_l2 {diff.rel_l2:.1e}: no more than rounding of the terms that it sums up")
        if verdict.name == "diverges" and self._is_of_softmax(row, kind, floor):
            why = f"large terms cancel in the backward of a softmax ({kind}); compare runs in float32"
            return Verdict("drifts", f"rel_l2 {diff.rel_l2:.1e}: {why}")
        return _explained(verdict, row.is_input, gradient, forward, floor) or verdict

    def _is_sum_of_errors(self, row: Row, kind: str) -> bool:
        """Whether the gradient of a bias is off by no more than rounding and the errors of the gradients that it
        sums."""
        entry, diff = row.pair.reference, row.diff
        given = self._given.get((entry.layer, entry.step))
        is_parameter = not row.is_input and not entry.port.startswith(_OF_INPUT)
        if diff is None or given is None or not is_parameter or len(row.shape or ()) != 1 or not diff.elements:
            return False
        rounding = growth_of(kind) * UNITS.get(kind, 0.0) * given.size
        most = math.sqrt(given.elements / diff.elements) * given.error + rounding
        return math.sqrt(diff.elements) * diff.rms <= most

    def _is_of_softmax(self, row: Row, kind: str, floor: Floor) -> bool:
        """Whether a gradient inside attention, in few bits, is off by no more than rounding in the softmax explains.

        The backward of a softmax subtracts nearly equal numbers where it attends to many tokens alike.
        """
        entry, diff = row.pair.reference, row.diff
        if diff is None or growth_of(kind) == GROWTH or not _ATTENTION.search(entry.layer):
            return False
        around = self._given.get((parent_of(entry.layer), entry.step))
        return around is not None and math.sqrt(diff.elements) * diff.rms <= floor.agrees * around.size


def _explained(verdict: Verdict, is_input: bool, gradient: float, forward: float, floor: Floor) -> Verdict | None:
    """A verdict in terms of a backward; None if there is nothing to add. Its sentence begins with the error."""
    error, agree = verdict.why.partition(",")[0].partition(" is ")[0], worse(gradient, forward) <= floor.agrees
    if verdict.name == "drifts" and agree:
        return None
    if verdict.name == "drifts":
        what, came = ("forward", forward) if forward >= gradient else ("incoming gradient", gradient)
        return Verdict("drifts", f"{error}, because its {what} already differs ({came:.1e})")
    if is_input:
        return Verdict("diverges", f"{error}, though the gradients before it and the forward agree") if agree else None
    both = f"its incoming gradient ({gradient:.1e}) and its forward ({forward:.1e})"
    if agree:
        return Verdict("diverges", f"{error}, though {both} agree: its backward is wrong")
    return Verdict("diverges", f"{error}, more than {both} explain: its backward is wrong")
