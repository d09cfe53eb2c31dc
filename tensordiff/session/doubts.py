"""Why two dumps cannot be said to agree although no layer diverges.

What was compared is said to agree, and nothing else: a capture that was interrupted, a comparison of a small part, an
output of the model that nothing was compared with, or that is off without an explanation, each is a doubt. So is a
layer that diverges by itself and not in the injected run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensordiff.align.coverage import Coverage
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.row import Row
from tensordiff.errors import printable
from tensordiff.search.final_output import missing_output, unexplained_output
from tensordiff.session.paired_dumps import PairedDumps
from tensordiff.session.request import Request


def doubts_of_dumps(request: Request, dumps: PairedDumps, coverage: Coverage) -> Iterator[str]:
    """What captures, and how much of them is compared, leave open."""
    sides = (("reference", dumps.reference), ("candidate", dumps.candidate))
    for side, dump in sides:
        if dump.interrupted and not request.allow_partial:
            why = f"the {side} {printable(dump.path)} is an interrupted capture: what came after was not compared"
            yield f"{why}; capture it again, or accept that with --allow-partial"
    if any(dump.statistics for _, dump in sides):
        which = " and ".join(f"the {side}" for side, dump in sides if dump.statistics)
        yield f"{which} holds statistics and no values, and equal statistics do not prove equal values; dump the values"
    if 100 * coverage.share < request.min_coverage:
        share = f"coverage is {coverage.share:.0%}, below {request.min_coverage:g} %: {coverage.sentence}"
        has_orphans = dumps.alignment.reference_orphans and dumps.alignment.candidate_orphans
        find = "tensordiff align --auto pairs what the values prove, " if has_orphans else ""
        yield f"{share}; {find}--min-coverage {int(100 * coverage.share)} accepts it"


def doubts_of_rows(request: Request, dumps: PairedDumps, rows: Sequence[Row]) -> Iterator[str]:
    """What the measured rows leave open."""
    if request.only is None and not request.limits.are_set:
        outputs = missing_output(dumps.reference, dumps.candidate, rows) if request.step is None else None
        yield from (why for why in (outputs, unexplained_output(rows, dumps.alignment)) if why)
    measured = [row.diff for row in rows if row.diff is not None and not row.is_input]
    if measured and not any(map(_has_values, measured)):
        yield "no output has a value that could be compared: each is empty, or NaN or infinite throughout; capture more"
    cleared = next((row for row in rows if _is_cleared_by_injection(row)), None)
    if cleared is not None:
        what = f"{printable(cleared.pair.name)} diverges in the plain run and is right in the injected one"
        yield f"{what}, which names no other layer; what lies before it was not compared"


def _has_values(diff: Diff) -> bool:
    """Whether both sides have finite values somewhere."""
    return all(nan + inf < diff.elements for nan, inf in zip(diff.nan, diff.inf, strict=True))


def _is_cleared_by_injection(row: Row) -> bool:
    return row.plain_verdict is not None and row.plain_verdict.name == "diverges" != row.verdict.name
