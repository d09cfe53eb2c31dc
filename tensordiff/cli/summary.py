"""The summary below a table: verdicts, orphans, lint, the culprit; and the error for an unknown result."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tensordiff.cli.streams import Page, echo
from tensordiff.cli.table import print_findings
from tensordiff.compare.hint import Hint
from tensordiff.compare.judge.verdict import VerdictName
from tensordiff.compare.look.elements import Element
from tensordiff.compare.look.logits import LogitsDiff
from tensordiff.compare.row import Row
from tensordiff.dump.lint import Finding
from tensordiff.dump.model import Entry
from tensordiff.errors import AlignError, TensordiffError, printable
from tensordiff.report.labels import COLOURS, GLYPHS, entry_label, label, short
from tensordiff.report.model import explanation
from tensordiff.search.outcome import Outcome
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.util.nearest_name import nearest_name
from tensordiff.util.sizes import format_percent

_SHOWN = 4


def print_summary(page: Page, session: Session, outcome: Outcome, findings: Sequence[Finding] = ()) -> None:
    """Print the number of rows with each verdict, what is not paired, what lint finds, and the culprit."""
    counts = {name: sum(row.verdict.name == name for row in outcome.rows) for name in GLYPHS}
    echo()
    if outcome.rows:
        echo("  ".join(_count(name, count) for name, count in counts.items() if count))
    if outcome.rows and outcome.coverage is not None:
        part = f", {len(outcome.in_part)} of them in part" if outcome.in_part else ""
        page.print(f"{outcome.coverage.sentence}{part}", f"coverage {format_percent(outcome.coverage.share)}: ")
    if outcome.in_part:
        _print_in_part(page, outcome.in_part)
    _print_orphans(page, "reference", session.alignment.reference_orphans)
    _print_orphans(page, "candidate", session.alignment.candidate_orphans)
    if logits := session.logits(outcome.rows):
        page.print(_logits(logits))
    if outcome.rows:
        print_findings(page, "checks of the measured values", findings)
    if outcome.culprit is None:
        if outcome.unanswered:
            page.print(outcome.unanswered)
        page.print(f"verdict: {outcome.verdict}{explanation(outcome).rstrip(',')}")
    else:
        _print_culprit(page, outcome.culprit, session.hint(outcome.culprit))
        if outcome.taken_weights:
            page.print(f"more than its {printable(outcome.taken_weights)} explain", "  ")
        if (weights := session.layer_weights(outcome.culprit)) is not None and weights.hint is None:
            page.print(weights.sentence, "  ")
        _print_others(page, outcome.culprits[1:])


def _count(name: VerdictName, count: int) -> str:
    return click.style(f"{GLYPHS[name]} {count} {name}", fg=COLOURS[name])


def _print_in_part(page: Page, rows: Sequence[Row]) -> None:
    """Print the pairs of which views left a part out: the rest of these outputs is not known to agree."""
    shown = ", ".join(f"{short(row.pair.name)} ({'; '.join(row.views)})" for row in rows[:_SHOWN])
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    page.print(f"{shown}{more}", "compared in part, by a view: ")


def _logits(found: LogitsDiff) -> str:
    tokens = f"{found.tokens}" if found.tokens == found.of else f"{found.tokens} of {found.of}"
    same = f"top-1 {format_percent(found.top_1)}, top-{found.k} {format_percent(found.top_k)} the same"
    worst = f"worst kl_div {found.kl_div:.1e}, cos_dist {found.cosine_distance:.1e}"
    return f"logits of {tokens} tokens: {same}; {worst}"


def _print_orphans(page: Page, side: str, orphans: Sequence[Entry]) -> None:
    if orphans:
        shown = ", ".join(short(entry_label(entry)) for entry in orphans[:_SHOWN])
        more = f" and {len(orphans) - _SHOWN} more" if len(orphans) > _SHOWN else ""
        page.print(f"{shown}{more}", f"not paired on the {side}: ")


def _print_culprit(page: Page, row: Row, hint: Hint | None) -> None:
    page.print(f"verdict: diverges, first at {short(label(row.pair))}", fg="red", bold=True)
    page.print(row.verdict.why, "  ")
    if row.diff is not None:
        at, shape = list(row.diff.max_abs_index or ()), list(row.shape or ())
        page.print(f"largest |Δ| {row.diff.max_abs:.6g} at {at} of {shape}", "  ")
    if hint is not None:
        page.print(hint.sentence, "  looks like: ", " " * 14)
    page.print(entry_label(row.pair.reference), "  reference  ", " " * 13)
    page.print(entry_label(row.pair.candidate), "  candidate  ", " " * 13)


def _print_others(page: Page, others: Sequence[Row]) -> None:
    """Print the culprits after the first."""
    if others:
        shown = ", ".join(short(label(row.pair)) for row in others[:_SHOWN])
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        page.print(f"{shown}{more}", "  also wrong by itself: ", " " * 4)


def print_worst(page: Page, elements: Sequence[Element]) -> None:
    """Print a row's largest errors, one a line."""
    page.print("largest errors: |Δ|, place, reference, candidate", "  ")
    for item in elements:
        page.print(f"{item.error:.6g} at {list(item.index)}: {item.reference:.9g}, {item.candidate:.9g}", "    ")


def inconclusive_error(session: Session, outcome: Outcome) -> TensordiffError:
    """The error for a comparison without a result: why, and what to try."""
    unknown = [row for row in outcome.rows if row.verdict.name == "unknown"]
    if unknown:
        first = f"{short(label(unknown[0].pair))}: {unknown[0].verdict.why}"
        return TensordiffError(f"{len(unknown)} of {len(outcome.rows)} pairs could not be compared, first {first}")
    if outcome.rows and outcome.unread:
        more = f" (and {len(outcome.reasons) - 1} more reasons)" if len(outcome.reasons) > 1 else ""
        problems = (*session.reference.problems, *session.candidate.problems)
        is_left_out = not next((problem.do for problem in problems if problem.is_unread), "")
        return TensordiffError(f"{outcome.unread[0]}{'; what it holds was not compared' * is_left_out}{more}")
    if outcome.rows and outcome.doubts:
        return TensordiffError("; ".join(outcome.doubts))
    paths = f"{printable(session.candidate.path)} and {printable(session.reference.path)}"
    if count := len(session.alignment.pairs):
        return AlignError(f"{paths}: none of the {count} pairs is {_filter(session.request)}{_nearest(session)}")
    return AlignError(
        f"{paths}: nothing could be paired by name; tensordiff align --auto pairs what the values "
        "prove, or write rules that make the names alike (--rules)"
    )


def _nearest(session: Session) -> str:
    """If no name matched, the nearest one."""
    only = session.request.only
    near = nearest_name(only or "", (pair.name for pair in session.alignment.pairs))
    if near is not None:
        return f"; the nearest is {printable(near)}"
    return "; tensordiff inspect lists the names and steps of a dump"


def _filter(request: Request) -> str:
    step = "" if request.step is None else f" of step {request.step}"
    return step.strip() if request.only is None else f"named like {request.only!r}{step}"
