"""The content of a report, independent of its format.

``build_report`` collects it once; the formats only decide how it looks. Nothing depends on the clock unless a stamp is
given, so the same comparison produces the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from tensordiff import __version__
from tensordiff.align.coverage import Coverage
from tensordiff.align.order import OrderDifference, order_differences
from tensordiff.align.rules.rule import Side
from tensordiff.compare.judge.verdict import VerdictName
from tensordiff.compare.lint import lint_rows
from tensordiff.compare.look.logits import LogitsDiff
from tensordiff.compare.row import Row
from tensordiff.dump.lint import Finding
from tensordiff.dump.model import Dump, Entry
from tensordiff.errors import printable
from tensordiff.report.comparison_json import mse_summary
from tensordiff.report.labels import GLYPHS, counted, entry_label, format_shape, label, nan_rank, number, short
from tensordiff.report.row_detail import RowDetail, row_detail
from tensordiff.search.outcome import Outcome, culprits
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.util.text_width import cut_end

_GLOSSARY = (
    ("culprit", "a layer whose output is wrong although its inputs are right: look there first"),
    ("victim", "a layer that differs because its input already did; its verdict is drifts"),
    ("rel_l2", "the norm of the difference over the norm of the reference; it decides the verdict"),
    ("coverage", "the share of outputs that were compared, of the side that has fewer of them compared"),
)
_INJECTION = (
    "injected",
    "the candidate run again, each layer given the reference's inputs: its own error alone",
)
_MOST_DETAILS = 20  # rows that are read again to be shown in detail
_MOST_DIFFERENCES = 20  # differences of the execution order that are listed
_LONGEST_FACT = 200  # characters


class Orphan(NamedTuple):
    """An entry that is not paired."""

    side: Side
    name: str
    why: str


class ExecutionOrder(NamedTuple):
    """Whether both sides ran in the same order."""

    name: str
    """``same``, ``differs`` or ``unknown``."""
    taken_from: str
    differences: tuple[OrderDifference, ...]


class DumpSummary(NamedTuple):
    """One of the two dumps, summarized in a line."""

    path: str
    format: str
    entries: int
    orphans: int


class Fact(NamedTuple):
    """A fact about the runs as each dump records it; empty if a dump does not record it."""

    name: str
    reference: str
    candidate: str

    @property
    def differs(self) -> bool:
        """Whether both dumps record the fact with different values."""
        return bool(self.reference and self.candidate) and self.reference != self.candidate


@dataclass(frozen=True)
class ReportModel:
    """The content of a report."""

    session: Session
    title: str
    sentence: str
    """The result in one sentence."""
    scope: str
    """Which of the pairs are shown; empty if all are."""
    stamp: str | None
    """When the report was written, as text."""
    outcome: Outcome
    """The outcome of the whole comparison, even if only some rows are shown."""
    rows: tuple[Row, ...]
    """The rows that are shown, in execution order."""
    details: tuple[RowDetail, ...]
    """The culprit in detail, or the selected rows."""
    reference: DumpSummary
    candidate: DumpSummary
    coverage: Coverage
    order: ExecutionOrder
    orphans: tuple[Orphan, ...]
    findings: tuple[Finding, ...]
    logits: LogitsDiff | None
    settings: tuple[tuple[str, str], ...]
    facts: tuple[Fact, ...]
    has_injected: bool
    has_golden: bool
    notes: tuple[tuple[str, str], ...] = ()
    """The user's notes: the layer, and the text."""

    @property
    def glossary(self) -> tuple[tuple[str, str], ...]:
        """Explanations of the terms used, for readers who did not run the comparison."""
        return (*_GLOSSARY, *(_INJECTION,) * self.has_injected)

    @property
    def verdict(self) -> VerdictName:
        """The overall verdict."""
        return self.outcome.verdict

    @cached_property
    def outputs(self) -> tuple[Row, ...]:
        """The rows of layers' outputs; if only inputs are shown, the inputs."""
        return tuple(row for row in self.rows if not row.is_input) or self.rows

    @cached_property
    def counts(self) -> dict[VerdictName, int]:
        """The number of shown rows of each verdict."""
        return {name: sum(row.verdict.name == name for row in self.rows) for name in GLYPHS}

    @cached_property
    def culprit_rows(self) -> tuple[Row, ...]:
        """Every row that is wrong by itself; ``Outcome.culprits`` has one per call."""
        return tuple(culprits(self.outcome.rows))

    @cached_property
    def enclosing(self) -> tuple[Row, ...]:
        """Outputs that diverge because they contain a culprit."""
        named = {id(row) for row in self.culprit_rows}
        wrong = (row for row in self.outcome.rows if row.verdict.name == "diverges" and not row.is_input)
        return tuple(row for row in wrong if id(row) not in named)

    @cached_property
    def victims(self) -> tuple[Row, ...]:
        """Outputs that are wrong because of an earlier error."""
        if not self.culprit_rows:
            return ()
        first = self.culprit_rows[0].pair.index
        later = (row for row in self.outcome.rows if row.pair.index > first and not row.is_input)
        return tuple(row for row in later if row.verdict.name == "drifts")

    @property
    def fault_groups(self) -> tuple[tuple[str, tuple[Row, ...]], ...]:
        """The wrong rows, grouped by the kind of fault; empty groups are left out."""
        groups = (
            ("Culprits: wrong by themselves", self.culprit_rows),
            ("Modules that contain a culprit", self.enclosing),
            ("Victims: wrong because of what came before", self.victims),
        )
        return tuple((title, rows) for title, rows in groups if rows)

    @property
    def sentence_parts(self) -> tuple[str, str, str]:
        """The first sentence, split at the layer that it names: the text before it, the layer, the text after it."""
        name = name_in_sentence(self.outcome)
        return self.sentence.partition(name) if name else (self.sentence, "", "")

    def component_lines(self, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """A line for all outputs, then one per component: name, pairs, statistics of the MSE, and how many are
        finite."""
        statistics = self.statistics
        yield "all", str(len(self.outputs)), *_cells(statistics["mse"], columns)
        for name, about in statistics["components"].items():
            yield name, str(about["pairs"]), *_cells(about["mse"], columns)

    @cached_property
    def statistics(self) -> dict[str, Any]:
        """MSE statistics of the outputs, overall and by component."""
        return mse_summary(self.rows)


def _cells(mse: Mapping[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    return *(number(mse[column]) for column in columns), str(mse["finite"])


def build_report(
    session: Session,
    outcome: Outcome,
    rows: Sequence[Row] | None = None,
    title: str | None = None,
    stamp: str | None = None,
    notes: Mapping[str, str] | None = None,
) -> ReportModel:
    """Collect the content of a report of a comparison, or of some of its rows. Pairs shown in detail are read again.

    ``notes`` maps layers to notes, as in a session file.
    """
    shown = outcome.rows if rows is None else tuple(rows)
    reference, candidate = session.reference, session.candidate
    return ReportModel(
        session=session,
        title=printable(title or f"{_dump_name(candidate)} against {_dump_name(reference)}"),
        sentence=summary_sentence(outcome),
        scope=scope_sentence(len(shown), len(outcome.rows)) if rows is not None else "",
        stamp=stamp and printable(stamp),
        outcome=outcome,
        rows=shown,
        details=tuple(row_detail(session, outcome, row) for row in _rows_in_detail(outcome, rows)),
        reference=_dump_summary(reference, session.alignment.reference_orphans),
        candidate=_dump_summary(candidate, session.alignment.candidate_orphans),
        coverage=outcome.coverage or session.alignment.coverage,
        order=_order(session),
        orphans=tuple(_orphans(session)),
        findings=(*session.header_findings(), *lint_rows(outcome.rows)),
        logits=session.logits(outcome.rows),
        settings=(*comparison_settings(session.request), *_learned(session)),
        facts=run_facts(reference.facts, candidate.facts),
        has_injected=session.comparer.injected is not None,
        has_golden=session.comparer.golden is not None,
        notes=tuple(_notes(shown, notes or {})),
    )


def _notes(rows: Sequence[Row], notes: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in dict.fromkeys(row.pair.name for row in rows):
        if note := notes.get(name):
            yield printable(name), printable(note)


def _learned(session: Session) -> Iterator[tuple[str, str]]:
    """What was learned about names, if anything."""
    if learned := session.dumps.learned:
        yield "learned", learned.sentence.removeprefix("learned ")
        yield from (("overruled", sentence) for sentence in learned.overruled())


def _dump_name(dump: Dump) -> str:
    """The last part of the dump's path; for ``.`` the name of the current folder."""
    return dump.path.name or dump.path.resolve().name


def _rows_in_detail(outcome: Outcome, rows: Sequence[Row] | None) -> Sequence[Row]:
    if rows is not None:
        return rows[:_MOST_DETAILS]
    return () if outcome.culprit is None else (outcome.culprit,)


def _dump_summary(dump: Dump, orphans: Sequence[Entry]) -> DumpSummary:
    return DumpSummary(printable(dump.path), dump.format, len(dump), len(orphans))


def _order(session: Session) -> ExecutionOrder:
    alignment = session.alignment
    found = [(pair.reference, pair.candidate, pair.by) for pair in alignment.pairs]
    parts = order_differences(session.reference, session.candidate, found) if alignment.order == "differs" else []
    return ExecutionOrder(alignment.order, alignment.order_from, tuple(parts))


def _orphans(session: Session) -> Iterator[Orphan]:
    sides: tuple[tuple[Side, Any], ...] = (
        ("reference", session.alignment.reference_orphans),
        ("candidate", session.alignment.candidate_orphans),
    )
    for side, entries in sides:
        for entry in entries:
            yield Orphan(side, entry_label(entry), session.dumps.why_orphan(entry, side))


def order_sentences(order: ExecutionOrder) -> Iterator[str]:
    """Sentences on the execution order, and on where it differs."""
    if order.name == "same":
        yield "Both sides ran the paired layers in the same order."
        return
    if order.name == "unknown":
        source = {"values": "recovered from the values", "names": "guessed from the names"}
        taken = source.get(order.taken_from, f"that of the {order.taken_from}")
        yield f"Not known: a dump carries no order. The order shown is {taken}."
        return
    yield f"The order differs at {len(order.differences)} positions; shown is that of the {order.taken_from}."
    for part in order.differences[:_MOST_DIFFERENCES]:
        yield f"  position {part.position}: {printable(part.reference)} against {printable(part.candidate)}"
    if len(order.differences) > _MOST_DIFFERENCES:
        yield f"  and {len(order.differences) - _MOST_DIFFERENCES} more"


def summary_sentence(outcome: Outcome) -> str:
    """The result of a comparison in one sentence: the culprit and the evidence, or that there is none."""
    if outcome.culprit is not None:
        return _culprit_sentence(outcome.culprit, outcome)
    if outcome.verdict == "unknown":
        return _unknown_sentence(outcome)
    explained, unanswered = explanation(outcome), outcome.unanswered and f"; {outcome.unanswered}"
    worst = _worst(outcome.rows)
    largest = f"the largest rel_l2 is {number(worst.diff.rel_l2)}, at {short(label(worst.pair))}" if worst.diff else ""
    if outcome.verdict == "agrees":
        return f"The two runs agree{explained} in all of {counted(len(outcome.rows), 'pair')}: {largest}{unanswered}."
    drifting = sum(row.verdict.name == "drifts" for row in outcome.rows)
    some = f"{drifting} of {counted(len(outcome.rows), 'pair')}"
    return f"Nothing diverges{explained or ','} and {some} drift: {largest}{unanswered}."


def explanation(outcome: Outcome) -> str:
    """The clause that names what explains a quantized candidate's error; empty for any other candidate."""
    return f", as its {printable(outcome.taken_weights)} explain," if outcome.taken_weights else ""


def name_in_sentence(outcome: Outcome) -> str:
    """The layer that ``summary_sentence`` names, so that formats can highlight it; empty if it names none."""
    if outcome.culprit is not None:
        return short(label(outcome.culprit.pair))
    unknown = next((row for row in outcome.rows if row.verdict.name == "unknown"), None)
    if outcome.verdict == "unknown":
        return short(label(unknown.pair)) if unknown else ""
    return short(label(_worst(outcome.rows).pair))


def scope_sentence(shown: int, total: int) -> str:
    """Which rows a partial report shows."""
    return f"Shown here: {shown} of {counted(total, 'pair')}, as selected."


def _culprit_sentence(row: Row, outcome: Outcome) -> str:
    what = "tensor that differs" if row.is_input else "place that is wrong by itself"
    more = f", by more than its {printable(outcome.taken_weights)} explain" if outcome.taken_weights else ""
    return f"{short(label(row.pair))} is the first {what}{more}: {printable(row.verdict.why)}{_evidence(row)}."


def _evidence(row: Row) -> str:
    if row.diff is None:
        return ""
    at = format_shape(row.diff.max_abs_index or ())
    golden = (
        ""
        if row.golden_ratio is None
        else f"; {row.golden_ratio:.3g} times the reference's own error against the golden"
    )
    return f"; largest |Δ| {row.diff.max_abs:.3g} at {at} of {format_shape(row.shape)}{golden}"


_UNREAD_SHOWN = 20


def unread_sentences(outcome: Outcome) -> list[str]:
    """The files that were not read: the first few, and the number of the others."""
    rest = len(outcome.unread) - _UNREAD_SHOWN
    return [*outcome.unread[:_UNREAD_SHOWN], *([f"{rest:,} more files and folders"] if rest > 0 else [])]


def _unknown_sentence(outcome: Outcome) -> str:
    begin = "Whether the two runs agree is unknown"
    unknown = [row for row in outcome.rows if row.verdict.name == "unknown"]
    if unknown:
        first = f"first {short(label(unknown[0].pair))}: {printable(unknown[0].verdict.why)}"
        return f"{begin}: {len(unknown)} of {counted(len(outcome.rows), 'pair')} could not be compared, {first}."
    return f"{begin}: {outcome.reasons[0] if outcome.reasons and outcome.rows else 'nothing was paired'}."


def _worst(rows: Sequence[Row]) -> Row:
    return max(rows, key=lambda row: nan_rank(row.diff.rel_l2 if row.diff else -1.0))


_NOT_SETTINGS = frozenset({"signature", "calls", "config"})  # lint reports where two configs differ


def run_facts(reference: Mapping[str, object], candidate: Mapping[str, object]) -> tuple[Fact, ...]:
    """What the dumps record about their runs, in the reference's order and shortened."""
    of_reference, of_candidate = (
        dict(_flat({name: value for name, value in facts.items() if name not in _NOT_SETTINGS}))
        for facts in (reference, candidate)
    )
    names = dict.fromkeys((*of_reference, *of_candidate))
    return tuple(Fact(printable(name), of_reference.get(name, ""), of_candidate.get(name, "")) for name in names)


def _flat(facts: Mapping[str, object], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif value is not None:
            yield f"{before}{name}", cut_end(printable(_text(value)), _LONGEST_FACT, len)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def comparison_settings(request: Request) -> tuple[tuple[str, str], ...]:
    """How the comparison was made: the given options, and the version of tensordiff."""
    limits = request.limits
    said = (
        ("rules", request.rules), ("tolerances", request.tolerances), ("injected", request.injected),
        ("golden", request.golden), ("atol", limits.tolerance and limits.tolerance.atol),
        ("rtol", limits.tolerance and limits.tolerance.rtol), ("threshold", limits.threshold),
        ("step", request.step), ("only", request.only), ("tensordiff", __version__),
    )  # fmt: skip
    return tuple((name, printable(value)) for name, value in said if value is not None)
