"""One comparison: two dumps, their pairing, and the comparer that measures the pairs.

The command line, the app and the library all use this class and repeat none of its decisions. It does not print and
does not look at the clock: long work is an iterator, and its consumer shows progress or stops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tensordiff.align import Alignment, AlignmentPlan, Pair
from tensordiff.align.coverage import Coverage
from tensordiff.align.learn import Learned
from tensordiff.align.rules.file import RulesFile, read_rules_file
from tensordiff.align.rules.tables import MapRule
from tensordiff.align.structure_gaps import Gap
from tensordiff.compare.comparer import Comparer
from tensordiff.compare.hint import Hint
from tensordiff.compare.hint.row_hint import hint_for_row
from tensordiff.compare.judge.pairing import Pairing
from tensordiff.compare.lint import lint_pair
from tensordiff.compare.look.axes import DumpAxes
from tensordiff.compare.look.elements import Element, worst_elements
from tensordiff.compare.look.logits import LogitsDiff, combined, compare_logits, has_distributions, is_logits
from tensordiff.compare.measure.dispatch import as_reals
from tensordiff.compare.row import Row, values_of
from tensordiff.dump import Dump, Entry, open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.dump.lint import Finding
from tensordiff.dump.statistics import common_statistics
from tensordiff.errors import printable
from tensordiff.search.outcome import Outcome
from tensordiff.session.doubts import (
    compared_outputs,
    doubts_of_dumps,
    doubts_of_outputs,
    doubts_of_pairs,
    doubts_of_rows,
    output_not_answered,
)
from tensordiff.session.paired_dumps import PairedDumps
from tensordiff.session.quantized import quantization_findings, taken_weights
from tensordiff.session.request import Request
from tensordiff.session.sources import refuse_source
from tensordiff.session.storage.state import SessionState, read_state, rules_of_state
from tensordiff.session.third_dumps import ThirdDumps
from tensordiff.session.unused_rules import unused_rules
from tensordiff.session.weights import (
    LayerWeights,
    are_checkpoints,
    compare_captured,
    refuse_checkpoints,
    weights_findings,
    weights_of_layer,
)
from tensordiff.util.garbage_collector import gc_paused
from tensordiff.util.regex import UserRegex
from tensordiff.util.temporary_folders import is_temporary

if TYPE_CHECKING:
    from tensordiff.weights.comparison import WeightsOutcome

_LOGITS_READ = 1 << 24
"""Elements of logits that a summary reads: all for a short prompt, some for a long one."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """A comparison that is ready to be measured; nothing is measured before it is asked for."""

    request: Request
    dumps: PairedDumps
    comparer: Comparer
    third_dumps: ThirdDumps = field(default_factory=ThirdDumps)
    saved_rules: RulesFile = field(default_factory=RulesFile)
    """The rules as they are in their file; ``rules`` are those in force, edited or not."""

    @classmethod
    def open(cls, request: Request, state: SessionState | None = None) -> Self:
        """Open and align the dumps of a request, with the rules of a session's ``state``.

        Reads headers, and the values of a few layers if names leave entries unpaired.
        """
        with gc_paused():
            for path in (request.reference, request.candidate):
                refuse_source(path)
            reference, candidate = open_dump(request.reference), open_dump(request.candidate)
            return cls.of_dumps(request, reference, candidate, ThirdDumps.open(request), state)

    @classmethod
    def of_dumps(
        cls,
        request: Request,
        reference: Dump,
        candidate: Dump,
        third_dumps: ThirdDumps | None = None,
        state: SessionState | None = None,
        learned: Learned | None = None,
    ) -> Self:
        """Align dumps that are already open or in memory; everything else is taken from the request.

        ``learned`` are rules that were learned elsewhere; if given, none are learned here.
        """
        third_dumps = third_dumps or ThirdDumps()
        reference, candidate = common_statistics(reference, candidate)
        saved_rules = read_rules_file(request.rules) if request.rules else None
        rules = rules_of_request(request, state, saved_rules)
        # A few statistics per tensor prove nothing.
        learns = request.learn and not reference.statistics and learned is None
        dumps = PairedDumps.align(reference, candidate, rules, learns=learns, learned=learned)
        comparer = third_dumps.comparer(dumps, request.limits_with(rules), request.cluster)
        third_dumps.refuse_other_origin(reference, candidate)
        return cls(
            request=request,
            comparer=comparer,
            dumps=dumps,
            third_dumps=third_dumps,
            saved_rules=saved_rules or RulesFile(),
        )

    # --- what is compared ------------------------------------------------------------------------

    @property
    def reference(self) -> Dump:
        """The trusted dump."""
        return self.dumps.reference

    @property
    def candidate(self) -> Dump:
        """The dump under test."""
        return self.dumps.candidate

    @property
    def rules(self) -> RulesFile:
        """The user's rules in force, whether they are in a file or not."""
        return self.dumps.rules

    @property
    def plan(self) -> AlignmentPlan:
        """The rules and presets that the dumps are aligned by."""
        return self.dumps.plan

    @property
    def alignment(self) -> Alignment:
        """All pairs and orphans."""
        return self.dumps.alignment

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """The pairs that the request selects."""
        if self.request.step is None and self.request.only is None:
            return self.alignment.pairs
        return tuple(pair for pair in self.alignment.pairs if self._selects(pair.reference, pair.name))

    def _selects(self, entry: Entry, name: str | None = None) -> bool:
        """Whether the request selects an entry; ``name`` is the entry's name in the table, which may be different."""
        if self.request.step is not None and entry.step != self.request.step:
            return False
        return self._only is None or any(map(self._only.matches, filter(None, (name, entry.name))))

    @cached_property
    def _only(self) -> UserRegex | None:
        return None if self.request.only is None else UserRegex("--only", self.request.only)

    # --- the same comparison with something changed ----------------------------------------------

    def realigned(self, rules: RulesFile) -> Session:
        """This comparison with other rules, which also align the third dumps."""
        dumps = self.dumps.with_rules(rules)
        comparer = self.third_dumps.comparer(dumps, self.request.limits_with(rules), self.request.cluster)
        return replace(self, dumps=dumps, comparer=comparer)

    def with_proven_maps(self, maps: tuple[MapRule, ...]) -> Session:
        """This comparison with maps that the values prove, for entries that names leave unpaired."""
        return replace(self, dumps=self.dumps.with_proven_maps(maps))

    def with_candidate(self, path: Path) -> Session:
        """This comparison with another run of the candidate, but the same rules, tolerances and golden run."""
        return replace(
            self,
            request=self.request.with_candidate(path),
            dumps=self.dumps.with_candidate(open_dump(path)),
            comparer=replace(self.comparer, injected=None),
            third_dumps=replace(self.third_dumps, injected=None),
        )

    def with_injected(self, path: Path) -> Session:
        """This comparison with an injected run of the candidate."""
        third_dumps = replace(self.third_dumps, injected=open_dump(path))
        comparer = third_dumps.comparer(self.dumps, self.comparer.limits, self.request.cluster)
        third_dumps.refuse_other_origin(self.reference, self.candidate)
        return replace(self, request=replace(self.request, injected=path), comparer=comparer, third_dumps=third_dumps)

    def with_threshold(self, threshold: float | None) -> Session:
        """This comparison with another threshold for ``rel_l2``; None uses the automatic floors."""
        request = replace(self.request, limits=replace(self.request.limits, threshold=threshold))
        comparer = replace(self.comparer, limits=replace(self.comparer.limits, threshold=threshold))
        return replace(self, request=request, comparer=comparer)

    def with_rules_file(self, path: Path, saved_rules: RulesFile) -> Session:
        """This comparison after its rules were written to a file; if the file holds the rules in force, they take its
        name."""
        rules = saved_rules if saved_rules == self.rules else self.rules
        request = replace(self.request, rules=path)
        return replace(self, request=request, dumps=replace(self.dumps, rules=rules), saved_rules=saved_rules)

    # --- measuring -------------------------------------------------------------------------------

    def header_findings(self) -> Iterator[Finding]:
        """Findings on headers, pairing and third dumps. Reads the token ids, the embedding and, if both dumps hold
        them, the weights."""
        if self.weights is not None:
            yield from weights_findings(self.weights)
        yield from unused_rules(self.dumps, self.comparer.limits)
        yield from quantization_findings(self.reference, self.candidate)
        yield from lint_pair(self.reference, self.candidate, self.alignment, self._paired)
        yield from self.third_dumps.findings(self.candidate)

    @property
    def lasting_reference(self) -> Path | None:
        """The path of the reference's dump if it outlives this process; else None."""
        return None if is_temporary(self.reference.path) else self.reference.path

    @property
    def are_checkpoints(self) -> bool:
        """Whether both sides are checkpoints. They can be paired here, but are judged as parameters."""
        return are_checkpoints(self.reference, self.candidate)

    def rows(self) -> Iterator[Row]:
        """Measure the pairs in order. Two checkpoints are refused; see ``weights.compare_checkpoints``."""
        refuse_checkpoints(self.reference, self.candidate)
        alignment = self.alignment
        pairing = Pairing(alignment.pairs, self.reference, alignment.reference_orphans)
        return self.comparer.rows(self.pairs, pairing)

    def outcome(self, rows: Iterable[Row]) -> Outcome:
        """The outcome of the measured rows."""
        with gc_paused():
            measured = tuple(rows)
            coverage = self.coverage(measured)
            doubts = doubts_of_dumps(self.request, self.dumps, coverage)
            pairs = [row.pair for row in measured if row.diff is not None]
            outputs = compared_outputs(self.request, self.dumps, pairs)
            of_outputs = doubts_of_outputs(self.request, outputs)
            of_rows = doubts_of_rows(self.request, self.dumps, measured)
            taken = taken_weights(self.reference) or ""
            unanswered = output_not_answered(self.request, outputs)
            return Outcome(measured, self.unread, (*doubts, *of_outputs, *of_rows), coverage, taken, unanswered)

    @property
    def unread(self) -> tuple[str, ...]:
        """A sentence for each file of the two dumps that could not be read."""
        return tuple(map(printable, (*self.reference.unread, *self.candidate.unread)))

    @cached_property
    def doubts(self) -> tuple[str, ...]:
        """Reasons why the two dumps cannot be said to agree, as far as they are known before measuring."""
        of_dumps = doubts_of_dumps(self.request, self.dumps, self._paired)
        return (*self.unread, *of_dumps, *doubts_of_pairs(self.request, self.dumps, self.pairs))

    def coverage(self, rows: Iterable[Row]) -> Coverage:
        """How much of what the request selects was compared."""
        return self._coverage_of(row.pair for row in rows if row.diff is not None)

    @property
    def _paired(self) -> Coverage:
        """How much of what the request selects is paired."""
        pairs = self.pairs
        return self.alignment.coverage if pairs is self.alignment.pairs else self._coverage_of(pairs)

    def _coverage_of(self, pairs: Iterable[Pair]) -> Coverage:
        orphans = (self.alignment.reference_orphans, self.alignment.candidate_orphans)
        return Coverage.of(pairs, self.pairs, *(filter(self._selects, some) for some in orphans))

    # --- looking closer; each reads tensors again ------------------------------------------------

    def hint(self, row: Row) -> Hint | None:
        """The kind of error a row shows: different weights if both dumps hold them, else judged by the values and by
        the tensors around the row in the reference."""
        weights = self.layer_weights(row)
        if weights is not None and weights.hint is not None:
            return weights.hint
        return hint_for_row(row, self.alignment.pairs, self.reference)

    @cached_property
    def reference_axes(self) -> DumpAxes:
        """What the reference shows of its axes."""
        return DumpAxes(self.reference)

    @cached_property
    def weights(self) -> WeightsOutcome | None:
        """The comparison of both sides' parameters; None if a dump does not hold them."""
        return compare_captured(self.reference, self.candidate, self.rules)

    def layer_weights(self, row: Row) -> LayerWeights | None:
        """Whether both sides have the same weights for a row's layer; None if that is unknown or the layer has none."""
        weights = self._checkpoints if self.comparer.are_parameters else self.weights
        return None if weights is None else weights_of_layer(weights, row.pair.name)

    @cached_property
    def _checkpoints(self) -> WeightsOutcome:
        """The comparison of two checkpoints as parameters."""
        from tensordiff.weights.comparison import compare_weights

        return compare_weights(self.reference, self.candidate)

    def sides(self, row: Row) -> tuple[Array, Array] | None:
        """Both sides of a row in one shape and in real numbers; None if it was not measured."""
        values = values_of(row.pair) if row.diff is not None else None
        return as_reals(*values) if values else None

    def worst(self, row: Row, count: int) -> list[Element]:
        """A row's largest errors, with index and both values."""
        values = values_of(row.pair) if row.diff is not None else None
        return worst_elements(*values, count) if values else []

    def logits(self, rows: Iterable[Row]) -> LogitsDiff | None:
        """How far apart the logits of the whole run are; None if no logits were dumped."""
        largest: dict[int, Row] = {}
        for row in rows:
            entry, shape = row.pair.reference, row.shape or ()
            if row.diff and row.diff.elements and is_logits(row.pair.name, entry.port, shape):
                before = largest.setdefault(entry.step, row)
                largest[entry.step] = max(row, before, key=lambda one: one.diff.elements if one.diff else 0)
        values = (values_of(row.pair) for row in largest.values())
        found = (sides for sides in values if sides is not None and all(map(has_distributions, sides)))
        return combined(compare_logits(*sides, max_elements=_LOGITS_READ) for sides in found)

    def after_gap(self, gap: Gap) -> Row | None:
        """The first row after layers that only one side has, which shows whether the two agree again."""
        return None if gap.after is None else next(self.comparer.rows([gap.after]))


def rules_of_request(
    request: Request, state: SessionState | None = None, saved_rules: RulesFile | None = None
) -> RulesFile:
    """The rules that a request puts in force: those of its file, with the edits of a session's ``state``."""
    saved_rules = saved_rules or (read_rules_file(request.rules) if request.rules else None)
    state = state or (read_state(request.session) if request.session else SessionState())
    return rules_of_state(state, saved_rules)
