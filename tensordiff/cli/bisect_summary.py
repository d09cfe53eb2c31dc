"""What a binary search came to, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tensordiff.cli.page import Page
from tensordiff.cli.streams import echo
from tensordiff.compare.engine import Row
from tensordiff.errors import TensordiffError, printable
from tensordiff.report.words import label
from tensordiff.search.bisect_outcome import BisectOutcome
from tensordiff.search.monotone import Check
from tensordiff.session import Session

_SHOWN = 4


def print_outcome(page: Page, session: Session, outcome: BisectOutcome) -> None:
    """The first bad place, or who is left to suspect, and whether the assumption held."""
    echo()
    if outcome.first_bad is not None:
        _print_first_bad(page, outcome, outcome.first_bad)
    elif outcome.bisect.is_done and outcome.bisect.any_bad:
        page.print(f"skips leave several suspects: {_names(outcome, outcome.bisect.suspects)}", fg="red", bold=True)
    elif outcome.bisect.all_good:
        echo("nothing is bad")
    if outcome.check is not None:
        _print_check(page, session, outcome, outcome.check)
    echo(f"verdict: {outcome.verdict}")


def _print_first_bad(page: Page, outcome: BisectOutcome, row: Row) -> None:
    page.print(f"first bad: {label(row.pair)}", fg="red", bold=True)
    page.print(printable(outcome.why_bad), "  ")
    page.print(printable(row.pair.reference.name), "  reference  ", " " * 13)
    page.print(printable(row.pair.candidate.name), "  candidate  ", " " * 13)


def _print_check(page: Page, session: Session, outcome: BisectOutcome, check: Check) -> None:
    if check.is_monotone and check.looked:
        page.print(f"{len(check.looked)} more places that were looked at bear this out")
    if check.is_monotone is False:
        told = "; ".join(_contradictions(outcome, check))
        scan = f"tensordiff compare {printable(session.reference.path)} {printable(session.candidate.path)}"
        page.print(f"not monotone ({told}), so a scan may answer otherwise: {scan}", "! ", fg="yellow")


def _contradictions(outcome: BisectOutcome, check: Check) -> Iterator[str]:
    if check.earlier is not None:
        yield f"bad before it: {_names(outcome, [check.earlier])}"
    if check.good_again:
        yield f"good after a bad one: {_names(outcome, check.good_again)}"


def _names(outcome: BisectOutcome, positions: Sequence[int]) -> str:
    shown = ", ".join(label(outcome.oracle.pairs[at]) for at in positions[:_SHOWN])
    return f"{shown} and {len(positions) - _SHOWN} more" if len(positions) > _SHOWN else shown


def why_untold(outcome: BisectOutcome, log: Path | None) -> TensordiffError:
    """Why the search has no answer, and what to try."""
    bisect = outcome.bisect
    if not bisect.is_done:
        left = f"stopped with {len(bisect.suspects)} suspects left"
        kept = "save the marks shown above" if log is None else f"the marks are in {printable(log)}"
        return TensordiffError(f"{left}; {kept}, and go on with --replay" if bisect.marks else left)
    if bisect.all_good:
        return TensordiffError(f"{outcome.unread[0]}; what it holds was not searched")
    first = bisect.suspects[0]
    why = f"{label(outcome.oracle.pairs[first])}: {outcome.oracle.row(first).verdict.why}"
    return TensordiffError(f"{len(bisect.suspects)} places were skipped and none is known to be bad, first {why}")
