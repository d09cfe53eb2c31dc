"""The report as JUnit XML, which every CI shows: one test case per pair, and a failure if it diverges.

A pair that drifts passes, since it is not at fault itself. A pair that could not be judged is an error, and so is a
comparison without pairs, which would otherwise look like a success.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from tensordiff.compare.row import Row
from tensordiff.errors import printable
from tensordiff.report.labels import component, label
from tensordiff.report.model import summary_sentence
from tensordiff.search.outcome import Outcome
from tensordiff.util.atomic_write import write_file

if TYPE_CHECKING:
    from tensordiff.weights.comparison import ParameterRow, WeightsOutcome


def write_junit(path: Path | None, outcome: Outcome, name: str) -> None:
    """Write the XML of a comparison if a path was given."""
    if path is not None:
        write_file(path, junit(outcome, name), make_folders=True)


def junit(outcome: Outcome, name: str) -> str:
    """A comparison as one test suite."""
    cases = [_case(row) for row in outcome.rows]
    failures = sum(row.verdict.name == "diverges" for row in outcome.rows)
    errors = sum(row.verdict.name == "unknown" for row in outcome.rows)
    if outcome.verdict == "unknown" and not errors:
        cases.append(_whole_case(summary_sentence(outcome)))
        errors = 1
    return _suite(name, cases, failures, errors, summary_sentence(outcome))


def write_weights_junit(path: Path | None, outcome: WeightsOutcome, name: str) -> None:
    """Write the XML of a comparison of weights if a path was given."""
    if path is not None:
        write_file(path, weights_junit(outcome, name), make_folders=True)


def weights_junit(outcome: WeightsOutcome, name: str) -> str:
    """One test case per parameter; a parameter that only one side has is a failure, too."""
    cases = [_parameter_case(row) for row in outcome.rows]
    errors = outcome.counts["unknown"]
    if outcome.verdict == "unknown" and not errors:
        cases.append(_whole_case("; ".join(outcome.doubts)))
        errors = 1
    return _suite(name, cases, len(outcome.findings), errors, f"verdict: {outcome.verdict}")


def _parameter_case(row: ParameterRow) -> str:
    said = ""
    if row.verdict != "agrees":
        tag = "failure" if row.is_finding else "error"
        names = f"reference {printable(row.reference or '(none)')}, candidate {printable(row.candidate or '(none)')}"
        said = f'<{tag} type="{row.verdict}" message="{_text(row.sentence)}">{escape(names)}</{tag}>'
    return f'<testcase classname="weights" name="{_text(row.name)}">{said}</testcase>'


def _suite(name: str, cases: Sequence[str], failures: int, errors: int, said: str) -> str:
    numbers = f'tests="{len(cases)}" failures="{failures}" errors="{errors}" skipped="0"'
    return "\n".join((
        '<?xml version="1.0" encoding="UTF-8"?>', f'<testsuites name="tensordiff" {numbers}>',
        f'<testsuite name="{_text(name)}" {numbers}>', *cases,
        f"<system-out>{_text(said)}</system-out>", "</testsuite>", "</testsuites>", "",
    ))  # fmt: skip


def _case(row: Row) -> str:
    inside = "".join(_case_result(row))
    return f'<testcase classname="{component(row.pair.name)}" name="{_text(label(row.pair))}">{inside}</testcase>'


def _case_result(row: Row) -> Iterator[str]:
    why = _text(row.verdict.why)
    names = f"reference {printable(row.pair.reference.name)}, candidate {printable(row.pair.candidate.name)}"
    if row.verdict.name == "diverges":
        yield f'<failure type="diverges" message="{why}">{escape(names)}</failure>'
    elif row.verdict.name == "unknown":
        yield f'<error type="unknown" message="{why}">{escape(names)}</error>'


def _whole_case(said: str) -> str:
    error = f'<error type="unknown" message="{_text(said)}"></error>'
    return f'<testcase classname="comparison" name="comparison">{error}</testcase>'


def _text(text: str) -> str:
    """Escape text; printable text has no character that XML 1.0 forbids."""
    return escape(printable(text))
