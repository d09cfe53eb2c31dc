"""Comparing two checkpoints: a verdict for every parameter, and the overall outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from tensordiff.align.rules.file import RulesFile
from tensordiff.compare.hint import Hint
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.diff import Diff
from tensordiff.dump.dtypes import name_of
from tensordiff.dump.model import Dump, StoredTensor
from tensordiff.errors import AlignError, DumpError, printable
from tensordiff.util.mappings import count_losses, raise_losses
from tensordiff.util.regex import UserRegex
from tensordiff.weights.groups import FindingGroup, grouped
from tensordiff.weights.hint.catalogue import hint_for
from tensordiff.weights.hint.pair_tables import ParameterFinder, read_tables
from tensordiff.weights.layouts import replicas_differ
from tensordiff.weights.measure import measure_pair
from tensordiff.weights.packed import quantization_of
from tensordiff.weights.pairing import Pairing, pair_parameters
from tensordiff.weights.parameters import Parameter
from tensordiff.weights.sides import ParameterPair, SideView
from tensordiff.weights.transposition import LAYOUT_FINDINGS, is_transposed
from tensordiff.weights.views import Reshaped, Rows, read_rows, row_ranges

WeightVerdict = Literal["agrees", "diverges", "missing", "unexpected", "unknown"]
FINDINGS: tuple[WeightVerdict, ...] = ("diverges", "missing", "unexpected")
MOST_HINTS = 400
"""How many differing parameters are examined closely; if all differ, the first hundreds say why."""


@dataclass(frozen=True, eq=False)
class ParameterRow:
    """One parameter and what was found."""

    name: str
    verdict: WeightVerdict
    why: str
    reference: str | None
    """Its name on the reference's side, or an expression; None if it has none."""
    candidate: str | None
    by: str | None = None
    views: tuple[str, ...] = ()
    dtypes: tuple[str | None, str | None] = (None, None)
    shape: tuple[int, ...] = ()
    diff: Diff | None = None
    hint: Hint | None = None

    @property
    def is_finding(self) -> bool:
        """Whether it is something to look at."""
        return self.verdict in FINDINGS

    @property
    def sentence(self) -> str:
        """What is wrong with it, in few words."""
        return self.hint.sentence if self.hint is not None else self.why


@dataclass(frozen=True)
class WeightsOutcome:
    """The outcome of a whole comparison."""

    rows: tuple[ParameterRow, ...]
    unread: tuple[str, ...] = ()
    """A sentence for everything that looked like parameters and was not compared."""
    notes: tuple[str, ...] = ()
    min_coverage: float = 50.0

    @cached_property
    def findings(self) -> tuple[ParameterRow, ...]:
        """Parameters that differ, are missing or are unexpected."""
        return tuple(row for row in self.rows if row.is_finding)

    @cached_property
    def compared(self) -> int:
        """How many parameters were compared by value; those without elements do not count."""
        return sum(row.diff is not None and row.diff.elements > 0 for row in self.rows)

    @property
    def coverage(self) -> float:
        """The share of all parameters, of either side, that were compared."""
        return self.compared / len(self.rows) if self.rows else 0.0

    @cached_property
    def doubts(self) -> tuple[str, ...]:
        """Why this cannot be said to agree."""
        doubts = list(self.unread)
        unknown = [row for row in self.rows if row.verdict == "unknown"]
        if unknown:
            first = f"{printable(unknown[0].name)}: {unknown[0].why}"
            doubts.append(f"{len(unknown)} parameters could not be compared, first {first}")
        if not self.compared and not (self.unread and not self.rows):
            doubts.append("no parameter of one side could be paired with one of the other; write rules (--rules)")
        elif 100 * self.coverage < self.min_coverage:
            share = f"only {self.compared} of {len(self.rows)} parameters could be paired"
            doubts.append(f"{share}, less than {self.min_coverage:g} %; write rules (--rules), or lower --min-coverage")
        return tuple(doubts)

    @cached_property
    def counts(self) -> dict[WeightVerdict, int]:
        """How many parameters have each verdict."""
        counted = Counter(row.verdict for row in self.rows)
        return {name: counted[name] for name in get_args(WeightVerdict)}

    @property
    def verdict(self) -> Literal["agrees", "diverges", "unknown"]:
        """The verdict in one word.

        Missing parameters are no findings if names were not understood at all, or not everything was read.
        """
        if any(row.verdict == "diverges" for row in self.rows):
            return "diverges"
        if self.findings and not self.unread and self.compared and 100 * self.coverage >= self.min_coverage:
            return "diverges"
        return "unknown" if self.doubts else "agrees"

    @property
    def exit_status(self) -> int:
        """The exit status that the command-line contract defines."""
        return {"agrees": 0, "diverges": 1, "unknown": 2}[self.verdict]

    def groups(self) -> list[FindingGroup]:
        """Findings that are the same in many layers, grouped."""
        return grouped(self.findings)


class WeightsComparison:
    """Two checkpoints, paired; ``rows`` reads them."""

    def __init__(
        self,
        reference: Dump,
        candidate: Dump,
        rules: RulesFile | None = None,
        limits: Limits | None = None,
        only: str | None = None,
        min_coverage: float = 50.0,
    ) -> None:
        self.reference, self.candidate = reference, candidate
        self.limits, self.min_coverage = limits or Limits(), min_coverage
        self.pairing: Pairing = pair_parameters(reference, candidate, rules)
        self._finders = ParameterFinder(self.pairing.reference), ParameterFinder(self.pairing.candidate)
        self._only = only
        self._is_chosen: Callable[[str], bool] = UserRegex("--only", only).matches if only else lambda _: True
        self._hints = 0

    def __len__(self) -> int:
        """How many rows there will be."""
        pairing = self.pairing
        return len(pairing.pairs) + len(pairing.missing) + len(pairing.unexpected)

    def rows(self) -> Iterator[ParameterRow]:
        """A row for every parameter, read on demand."""
        for pair in self.pairing.pairs:
            if self._is_chosen(pair.name):
                yield self._row(pair)
        for item in self.pairing.missing:
            if self._is_chosen(item.title):
                yield self._unpaired_row(item, "missing")
        for item in self.pairing.unexpected:
            if self._is_chosen(item.title):
                yield self._unpaired_row(item, "unexpected")

    def outcome(self, rows: Iterable[ParameterRow]) -> WeightsOutcome:
        """The outcome of the rows."""
        unread = [*self.reference.unread, *self.candidate.unread]
        unread += [
            f"{dump.path}: is an interrupted capture; what came after was not compared"
            for dump in (self.reference, self.candidate)
            if dump.interrupted
        ]
        unread += [f"{side}: {item.name} {why}" for side, item, why in self.pairing.unread]
        found_rows = tuple(rows)
        if not found_rows and self._only and len(self):
            unread.append(
                f"none of the {len(self)} parameters is named like {self._only!r}; without --only all are compared"
            )
        return WeightsOutcome(found_rows, tuple(map(printable, unread)), tuple(self._notes()), self.min_coverage)

    def _notes(self) -> Iterator[str]:
        if derived := self.pairing.derived:
            names = ", ".join(printable(item.name) for item in derived[:3])
            more = f" and {len(derived) - 3} more" if len(derived) > 3 else ""
            yield f"on one side only, but computed by the model itself: {names}{more}"
        if training := self.pairing.training:
            yield f"training state on one side only, ignored: {printable(training[0].name)}{_and_more(training)}"
        if turned := [pair for pair in self.pairing.pairs if is_transposed(pair) and not pair.mismatch]:
            names = f"{printable(turned[0].name)}{_and_more(turned)}"
            yield f"taken as laid out [in, out] on one side and [out, in] on the other: {names}"
        for rule in self.pairing.learned:
            yield f"learned: {rule.reference} is {rule.candidate} (values of {rule.proofs} prove it)"

    # --- one parameter ---------------------------------------------------------------------------

    def _row(self, pair: ParameterPair) -> ParameterRow:
        before = count_losses()
        try:
            row = self._measured_row(pair)
            raise_losses(before, pair.name)
        except (DumpError, AlignError) as error:
            return self._row_of(pair, "unknown", str(error))
        return row

    def _row_of(self, pair: ParameterPair, verdict: WeightVerdict, why: str, **more: object) -> ParameterRow:
        sides = pair.reference, pair.candidate
        return ParameterRow(
            name=pair.name, verdict=verdict, why=why, reference=sides[0].label, candidate=sides[1].label,
            by=pair.by, views=tuple(pair.views), dtypes=(type_of(sides[0].stored), type_of(sides[1].stored)),
            shape=sides[0].stored.spec.shape, **more,  # type: ignore[arg-type]
        )  # fmt: skip

    def _measured_row(self, pair: ParameterPair) -> ParameterRow:
        if pair.mismatch:
            return self._row_of(pair, "diverges", pair.mismatch, hint=self._hint_of_shapes(pair))
        limits = self.limits.for_pair(pair.name, "output")
        measured = measure_pair(pair.reference.stored, pair.candidate.stored, limits.tolerance)
        diff = measured.diff
        if limits.are_set:
            broken = limits.broken_by(diff, None)
            explained = None if broken else f"within the tolerance {limits.label}"
        else:
            broken, explained = None, measured.explained
        if explained is None:
            if pair.is_tied:
                return self._row_of(pair, *self._untied_verdict(pair), diff=diff)
            hint = None if diff.apart else self._hint(pair)
            return self._row_of(pair, "diverges", broken or _difference_text(diff), diff=diff, hint=hint)
        return self._agreeing_row(pair, diff, explained)

    def _agreeing_row(self, pair: ParameterPair, diff: Diff, explained: str) -> ParameterRow:
        """The row of a pair whose common part is equal; rows that only one side has may still be a finding."""
        for side in (pair.reference, pair.candidate):
            if replicas_differ(side):
                return self._row_of(pair, "diverges", "devices that should hold the same do not", diff=diff)
        if pair.extra_rows:
            hint = _extra_rows(pair)
            if hint is not None:
                return self._row_of(pair, "diverges", f"{explained}; {hint.sentence}", diff=diff, hint=hint)
            padding = f"padded by {abs(pair.extra_rows)} rows of zeros"
            return self._row_of(pair, "agrees", f"{explained}; {padding}", diff=diff)
        text = f"{explained}; tied to the embedding" if pair.is_tied else explained
        return self._row_of(pair, "agrees", text, diff=diff)

    def _untied_verdict(self, pair: ParameterPair) -> tuple[WeightVerdict, str]:
        is_missing = "tied" in pair.candidate.views
        where = "candidate" if is_missing else "reference"
        why = f"the {where} has none, and its embedding, which would be used for it, differs"
        return ("missing" if is_missing else "unexpected"), why

    def _hint(self, pair: ParameterPair) -> Hint | None:
        self._hints += 1
        if self._hints > MOST_HINTS:
            return None
        hint = hint_for(read_tables(pair, *self._finders))
        if hint is not None or not pair.convention:
            return hint
        plain = pair.reference, SideView.of(pair.candidate.parameters[0])
        if plain[1].stored.spec.shape != pair.reference.stored.spec.shape:
            return None
        direct = measure_pair(plain[0].stored, plain[1].stored)
        if direct.explained is None:
            return None
        return Hint("rope rows" if "rope" in pair.convention else "transposed",
                    f"laid out differently from the others of its kind ({pair.convention})", {})  # fmt: skip

    def _hint_of_shapes(self, pair: ParameterPair) -> Hint | None:
        """A hint if shapes or layouts differ: the same numbers in another shape, or a slice of them."""
        if pair.mismatch in LAYOUT_FINDINGS:
            return Hint("transposed", pair.mismatch, {})
        ref, cand = pair.reference.stored, pair.candidate.stored
        a, b = ref.spec.shape, cand.spec.shape
        if ref.spec.size == cand.spec.size:
            return None
        if len(a) == len(b) and a and a[1:] == b[1:]:
            rows = min(a[0], b[0])
            if measure_pair(Rows(ref, rows), Rows(cand, rows)).explained is not None:
                kind = "truncated" if b[0] < a[0] else "padded"
                left = f"rows {rows} to {max(a[0], b[0]) - 1} {'are left out' if b[0] < a[0] else 'are more'}"
                return Hint(kind, f"{left}; the first {rows} are equal", {"rows": abs(a[0] - b[0])})
        return None

    def _unpaired_row(self, item: Parameter, verdict: WeightVerdict) -> ParameterRow:
        is_missing = verdict == "missing"
        other = self._finders[1 if is_missing else 0].holding(item.stored)
        text = "is not in the candidate" if is_missing else "is not in the reference"
        if other:
            side = "candidate" if is_missing else "reference"
            text += f"; its values are {printable(other[0].name)} of the {side}"
        kinds = (type_of(item.stored), None) if is_missing else (None, type_of(item.stored))
        return ParameterRow(
            name=item.title, verdict=verdict, why=text, reference=item.name if is_missing else None,
            candidate=None if is_missing else item.name, dtypes=kinds, shape=item.spec.shape,
        )  # fmt: skip


def _and_more(items: Sequence[object]) -> str:
    return f" and {len(items) - 1} more" if len(items) > 1 else ""


def type_of(stored: StoredTensor) -> str:
    """The dtype of a tensor, or how it is quantized."""
    quantization = quantization_of(stored)
    return quantization.name if quantization else name_of(stored.spec.dtype)


def _difference_text(diff: Diff) -> str:
    if diff.apart:
        return f"NaN or infinite on one side, in {diff.apart} of {diff.elements} elements"
    return f"rel_l2 {diff.rel_l2:.3g}, largest |Δ| {diff.max_abs:.3g} at {list(diff.max_abs_index or ())}"


def _extra_rows(pair: ParameterPair) -> Hint | None:
    """What is wrong with the rows that only one side has; None if they are zeros."""
    side = pair.candidate if pair.extra_rows > 0 else pair.reference
    stored = side.stored.stored if isinstance(side.stored, Rows | Reshaped) else side.stored
    rows = stored.spec.shape[0]
    first = rows - abs(pair.extra_rows)
    for start, stop in row_ranges(stored.spec.shape):
        low = max(start, first)
        if low < stop and np.any(read_rows(stored, low, stop)):
            if pair.extra_rows > 0:
                return Hint("padded", f"{rows - first} rows more than the reference, and they are not zero",
                            {"rows": rows - first})  # fmt: skip
            return Hint("truncated", f"truncated: rows {first} to {rows - 1} of the reference are not there",
                        {"rows": rows - first})  # fmt: skip
    return None


def compare_weights(reference: Dump, candidate: Dump, rules: RulesFile | None = None) -> WeightsOutcome:
    """Compare two checkpoints at once."""
    comparison = WeightsComparison(reference, candidate, rules)
    return comparison.outcome(comparison.rows())
