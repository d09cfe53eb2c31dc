"""``tensordiff weights``: compares two checkpoints as parameters, as ``compare`` does when given two checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click

from tensordiff.cli.options import _AMOUNT, PATH, json_option
from tensordiff.cli.progress import Progress
from tensordiff.cli.streams import Page, echo, say_if_slow
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.dump import open_dump
from tensordiff.errors import TensordiffError, printable
from tensordiff.report.comparison_json import WEIGHTS_SCHEMA, dumps, weights_json
from tensordiff.report.junit import write_weights_junit
from tensordiff.report.labels import PARAMETER_COLOURS, PARAMETER_GLYPHS, number, shape_text, short, types_text
from tensordiff.session.request import Request
from tensordiff.session.sources import source_in
from tensordiff.session.weights import compare_checkpoints
from tensordiff.util.text_width import cut_middle, pad
from tensordiff.weights.comparison import ParameterRow, WeightsComparison, WeightsOutcome
from tensordiff.weights.groups import FindingGroup
from tensordiff.weights.parameters import holds_parameters

_NAME, _SHAPE, _TYPE = 56, 18, 18
_NARROW = 34


class WeightsOptions(NamedTuple):
    """What is printed, and where else it is written."""

    as_json: bool = False
    everything: bool = False
    schema: str = WEIGHTS_SCHEMA
    junit: Path | None = None


@click.command("weights")
@click.argument("reference", type=PATH)
@click.argument("candidate", type=PATH)
@click.option("--rules", type=PATH, metavar="FILE", help="Rules (TOML) that make names alike; maps such as cat(q, k).")
@click.option("--only", metavar="REGEX", help="Only parameters whose name matches.")
@click.option("--atol", type=_AMOUNT, metavar="X", help="Absolute tolerance, instead of the automatic one, by dtype.")
@click.option("--rtol", type=_AMOUNT, metavar="X", help="Tolerance relative to |reference|.")
@click.option("--threshold", type=_AMOUNT, metavar="X", help="Largest rel_l2 that still agrees.")
@click.option("--min-coverage", type=click.FloatRange(0, 100), default=50.0, metavar="PCT",
              help="Least share of parameters that must be paired (default 50).")  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="Print every parameter, including those that agree.")
@json_option
def command(
    reference: Path, candidate: Path, rules: Path | None, only: str | None, atol: float | None, rtol: float | None,
    threshold: float | None, min_coverage: float, everything: bool, as_json: bool,
) -> int:  # fmt: skip
    """Compare two checkpoints as parameters: what differs, is missing or unexpected, and what kind of bug it is.

    A checkpoint is a Hugging Face folder (sharded or not), a .safetensors, .bin, .pt, .gguf, .npz or .msgpack file, a
    folder of torch.distributed.checkpoint, or a capture that was made with --weights. Names are paired by rules and
    presets, then by value: q, k and v that one side fuses, experts in one stack, a transposed Conv1D, rope's rows as
    GGUF orders them, a head that is the embedding, a padded vocabulary.

    \b
    ✓ agrees      equal, or differs by no more than rounding or quantization explains
    ✗ diverges    it differs; if the values show what happened to it, that is named:
                  not loaded, transposed, rows permuted, in the wrong slot, cast, scaled …
    - missing     the candidate has none
    + unexpected  the reference has none
    ? unknown     it could not be read

    The same finding in many layers is one line. There is no order and no culprit: each is wrong by itself.
    Exit status: 0 everything was compared and agrees, 1 something differs, 2 inconclusive.
    """
    limits = Limits(Tolerance.of(atol, rtol), threshold)
    request = Request(reference, candidate, rules=rules, limits=limits, only=only, min_coverage=min_coverage)
    for path in (reference, candidate):
        if source_in(path) is not None:
            raise TensordiffError(
                f"{printable(path)}: is a source, and weights reads files; give the checkpoint's folder or file, or "
                "capture the source with --weights"
            )
    sides = open_dump(reference), open_dump(candidate)
    for dump in sides:
        if not holds_parameters(dump) and dump.format == "tensordiff":
            raise TensordiffError(
                f"{printable(dump.path)}: holds activations and no parameters; capture it again with --weights"
            )
    return print_weights(compare_checkpoints(request, *sides), WeightsOptions(as_json, everything))


def print_weights(comparison: WeightsComparison, options: WeightsOptions) -> int:
    """Compare and print; returns the exit status. Raises after printing if the result is unknown."""
    say_if_slow()
    if options.as_json:
        with Progress("reading", len(comparison)) as progress:
            outcome = comparison.outcome(progress.over(comparison.rows()))
        echo(dumps(weights_json(comparison, outcome, options.schema)))
    else:
        outcome = _print_text(comparison, options)
    sides = f"{comparison.candidate.path} against {comparison.reference.path}"
    write_weights_junit(options.junit, outcome, sides)
    if outcome.verdict == "unknown":
        raise TensordiffError("; ".join(outcome.doubts[:3]))
    return outcome.exit_status


def _print_text(comparison: WeightsComparison, options: WeightsOptions) -> WeightsOutcome:
    page = Page.here()
    for side, dump in (("reference", comparison.reference), ("candidate", comparison.candidate)):
        count = len(dump.parameters) or len(dump)
        page.print(f"{printable(dump.path)}  ({dump.format}, {count} tensors)", f"{side:9}  ", " " * 11)
    if options.everything:
        _print_headings(page)
    outcome = comparison.outcome(_printed(comparison, page, options.everything))
    if not options.everything and outcome.findings:
        _print_headings(page)
        for group in outcome.groups():
            _print_group(page, group)
    _print_summary(page, outcome)
    return outcome


def _printed(comparison: WeightsComparison, page: Page, everything: bool) -> Iterator[ParameterRow]:
    with Progress("reading", len(comparison)) as progress:
        for row in progress.over(comparison.rows()):
            if everything:
                progress.clear()
                _print_row(page, row.name, row)
            yield row


def _print_headings(page: Page) -> None:
    echo()
    heading = (
        f"  {pad('parameter', _width(page))} {'shape':<{_SHAPE}} {'type':<{_TYPE}} {'max|Δ|':>8} {'rel_l2':>8}  what"
    )
    echo(click.style(heading, bold=True))


def _width(page: Page) -> int:
    return _NAME if page.width is None or page.width >= 140 else _NARROW


def _print_group(page: Page, group: FindingGroup) -> None:
    """Print one line for several parameters with the same finding, with the numbers of the worst of them."""
    worst = max(group.rows, key=lambda row: row.diff.rel_l2 if row.diff is not None else 0.0)
    name = group.name if len(group.rows) == 1 else f"{group.name} ({len(group.rows)})"
    _print_row(page, name, replace(worst, why=group.sentence, hint=None))


def _print_row(page: Page, name: str, row: ParameterRow) -> None:
    glyph, colour = PARAMETER_GLYPHS[row.verdict], PARAMETER_COLOURS[row.verdict]
    numbers = [number(row.diff.max_abs if row.diff else None), number(row.diff.rel_l2 if row.diff else None)]
    width = _width(page)
    label = short(printable(name)) if page.width is None else cut_middle(printable(name), width)
    head = f"{glyph} {pad(label, width)} {shape_text(row):<{_SHAPE}} {types_text(row):<{_TYPE}}"
    line = f"{head} {numbers[0]:>8} {numbers[1]:>8}"
    page.print(printable(row.sentence), f"{line}  ", " " * 4, fg=colour if row.verdict != "agrees" else None)


def _print_summary(page: Page, outcome: WeightsOutcome) -> None:
    echo()
    counts = ((name, count) for name, count in outcome.counts.items() if count)
    echo("  ".join(
        click.style(f"{PARAMETER_GLYPHS[name]} {count} {name}", fg=PARAMETER_COLOURS[name]) for name, count in counts
    ))  # fmt: skip
    for note in outcome.notes:
        page.print(printable(note), "note: ", " " * 6)
    for sentence in outcome.doubts:
        page.print(sentence, "left out: ", " " * 10)
    echo(f"verdict: {outcome.verdict}")
