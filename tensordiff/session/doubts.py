"""Reasons why two dumps cannot be said to agree although no layer diverges.

Agreement is claimed only for what was compared. So each of these is a doubt: an interrupted capture, a comparison of
only a small part, a model output that was compared with nothing or whose error is not explained, and a layer that
diverges in the plain run but not in the injected one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensordiff.align.coverage import Coverage
from tensordiff.align.match import Pair
from tensordiff.align.second_run import second_run
from tensordiff.compare.row import Row
from tensordiff.errors import printable
from tensordiff.search.final_output import (
    WITHOUT_VALUES,
    ComparedOutputs,
    empty_output,
    has_values,
    missing_output,
    unanswered_output,
    unexplained_gradient,
    unexplained_output,
)
from tensordiff.session.paired_dumps import PairedDumps
from tensordiff.session.request import Request
from tensordiff.util.sizes import format_percent


def doubts_of_dumps(request: Request, dumps: PairedDumps, coverage: Coverage) -> Iterator[str]:
    """Doubts about the captures themselves and about how much of them is compared."""
    sides = (("reference", dumps.reference), ("candidate", dumps.candidate))
    for side, dump in sides:
        if dump.interrupted and not request.allow_partial:
            why = f"the {side} {printable(dump.path)} is an interrupted capture: what came after was not compared"
            yield f"{why}; capture it again, or accept that with --allow-partial"
    if any(dump.statistics for _, dump in sides):
        alone = [f"the {side}" for side, dump in sides if dump.statistics and not dump.is_summarized]
        which = f"{' and '.join(alone)} {'hold' if len(alone) > 1 else 'holds'}"
        yield f"{which} statistics and no values, and equal statistics do not prove equal values; dump the values"
    if (steps := coverage.reference.missing_steps) and not request.allow_partial:
        yield _missing_steps(steps)
    if not request.allow_partial:
        for side, covered in (("reference", coverage.reference), ("candidate", coverage.candidate)):
            if (found := second_run(covered)) is not None:
                what = f"the {side} {found.sentence}, and what was not compared repeats what was"
                yield f"{what}; open one of them alone, or accept that with --allow-partial"
        yield from _namesakes(dumps, coverage)
        if request.only is None and (last := coverage.uncompared_last_operation):
            what = f"{printable(last)} computes what its layer gives, and was not compared with what the other's gives"
            yield f"{what}; map the two, or accept that with --allow-partial"
    if 100 * coverage.share < request.min_coverage:
        share = f"coverage is {format_percent(coverage.share)}, below {request.min_coverage:g}%: {coverage.sentence}"
        has_orphans = dumps.alignment.reference_orphans and dumps.alignment.candidate_orphans
        find = "tensordiff align --auto pairs what the values prove, " if has_orphans else ""
        yield f"{share}; {find}--min-coverage {int(100 * coverage.share)} accepts it"


def _namesakes(dumps: PairedDumps, coverage: Coverage) -> Iterator[str]:
    """Tensors of the reference whose name belongs to a different tensor in the candidate, and that were not compared.

    The candidate may not compute such a tensor at all: a port that forgot the dense layer of a pooler looks like a
    pooler.
    """
    left = {entry.layer for entry in coverage.reference.left}
    for one in dumps.learned.namesakes:
        if one.reference in left:
            yield f"{one.sentence}; map the tensor that is meant, or accept that with --allow-partial"


def _missing_steps(steps: Sequence[int]) -> str:
    """Steps that only the candidate has are no doubt; steps that only the reference has are."""
    some = ", ".join(map(str, steps[:4])) + (", …" if len(steps) > 4 else "")
    told = f"step {some}" if len(steps) == 1 else f"{len(steps)} steps ({some})"
    what = f"of {told} of the reference nothing was compared, since the candidate has no counterpart"
    return f"{what}; capture as many steps, compare one with --step, or accept that with --allow-partial"


def doubts_of_pairs(request: Request, dumps: PairedDumps, pairs: Sequence[Pair]) -> Iterator[str]:
    """Doubts about which pairs are compared: the model's own output is missing."""
    return doubts_of_outputs(request, compared_outputs(request, dumps, pairs))


def compared_outputs(request: Request, dumps: PairedDumps, pairs: Sequence[Pair]) -> ComparedOutputs | None:
    """The models' own outputs and what was compared of them; None if the user selected tensors."""
    return ComparedOutputs.of(dumps.reference, dumps.candidate, pairs) if request.only is None else None


def doubts_of_outputs(request: Request, outputs: ComparedOutputs | None) -> Iterator[str]:
    """Doubts about the models' own outputs: one was not compared."""
    if outputs is not None and (missing := missing_output(outputs, request.step)):
        yield missing


def output_not_answered(request: Request, outputs: ComparedOutputs | None) -> str:
    """A sentence if only one side has the model's own output, so that it was not compared; empty if that is a doubt."""
    if outputs is None or not outputs.compared[0] or any(doubts_of_outputs(request, outputs)):
        return ""
    return unanswered_output(outputs, request.step)


def doubts_of_rows(request: Request, dumps: PairedDumps, rows: Sequence[Row]) -> Iterator[str]:
    """Doubts that follow from the measured rows, apart from the models' own outputs."""
    is_all = request.only is None
    off = (
        None
        if request.limits.are_set
        else (unexplained_output(rows, dumps.alignment, are_all=is_all) or unexplained_gradient(rows))
    )
    yield from filter(None, (off, empty_output(rows, dumps.alignment) if is_all else None))
    measured = [row.diff for row in rows if row.diff is not None and not row.pair.reference.is_input]
    if measured and not any(map(has_values, measured)):
        yield f"no output has a value that could be compared: each is {WITHOUT_VALUES}; capture more"
    undecided = next((row for row in rows if row.is_undecided and row.injected is None), None)
    if undecided is not None:
        yield f"{printable(undecided.pair.name)} is not explained: {undecided.verdict.why}"
    cleared = next((row for row in rows if row.plain_verdict is not None and _is_cleared_by_injection(row)), None)
    if cleared is not None:
        what = f"{printable(cleared.pair.name)} diverges in the plain run and is right in the injected one"
        yield f"{what}, which names no other layer; what lies before it was not compared"


def _is_cleared_by_injection(row: Row) -> bool:
    return row.plain_verdict is not None and row.plain_verdict.name == "diverges" != row.verdict.name
