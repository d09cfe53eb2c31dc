"""``tensordiff weights``: two checkpoints as parameters; also what ``compare`` does with two checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from tensordiff.align.rules.file import RulesFile, read_rules_file
from tensordiff.cli.options import _AMOUNT, PATH, json_option
from tensordiff.cli.progress import Progress
from tensordiff.cli.streams import Page, echo
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.dump import Dump, open_dump
from tensordiff.errors import TensordiffError, printable
from tensordiff.report.comparison_json import dumps
from tensordiff.report.labels import number, short
from tensordiff.report.weights_json import SCHEMA, weights_json
from tensordiff.util.text_width import cut_middle, pad
from tensordiff.weights.comparison import ParameterRow, WeightsComparison, WeightsOutcome
from tensordiff.weights.parameters import holds_parameters

_MARKS = {
    "agrees": ("✓", "green"), "diverges": ("✗", "red"), "missing": ("-", "red"), "unexpected": ("+", "yellow"),
    "unknown": ("?", "magenta"),
}  # fmt: skip
_NAME, _SHAPE, _TYPE = 56, 18, 18
_NARROW = 34


class WeightsOptions(NamedTuple):
    """What is printed, and how it is judged."""

    as_json: bool = False
    everything: bool = False
    rules: Path | None = None
    limits: Limits = Limits()
    only: str | None = None
    min_coverage: float = 50.0
    schema: str = SCHEMA


@click.command("weights")
@click.argument("reference", type=PATH)
@click.argument("candidate", type=PATH)
@click.option("--rules", type=PATH, metavar="FILE", help="Rules (TOML) that make names alike; maps such as cat(q, k).")
@click.option("--only", metavar="REGEX", help="Only parameters whose name matches.")
@click.option("--atol", type=_AMOUNT, metavar="X", help="Absolute tolerance, in the place of what types explain.")
@click.option("--rtol", type=_AMOUNT, metavar="X", help="Tolerance relative to |reference|.")
@click.option("--threshold", type=_AMOUNT, metavar="X", help="Largest rel_l2 that still agrees.")
@click.option("--min-coverage", type=click.FloatRange(0, 100), default=50.0, metavar="PCT",
              help="Parameters that must be paired before anything is said (default 50).")  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="Print every parameter, also those that agree.")
@json_option
def command(
    reference: Path, candidate: Path, rules: Path | None, only: str | None, atol: float | None, rtol: float | None,
    threshold: float | None, min_coverage: float, everything: bool, as_json: bool,
) -> int:  # fmt: skip
    """Compare two checkpoints as parameters: what is different, missing, or there too much, and what kind of bug it is.

    A checkpoint is a Hugging Face folder (sharded or not), a .safetensors, .bin, .pt, .gguf, .npz or .msgpack file, a
    folder of torch.distributed.checkpoint, or a capture that was made with --weights. Names are paired by rules and
    presets, then by value: q, k and v that one side fuses, experts in one stack, a transposed Conv1D, rope's rows as
    GGUF orders them, a head that is the embedding, a padded vocabulary.

    \b
    ✓ agrees      equal, or apart by no more than rounding or quantization explains
    ✗ diverges    it differs; where the values prove it, what happened to it:
                  not loaded, transposed, rows permuted, in the wrong slot, cast, scaled …
    - missing     the candidate has none
    + unexpected  the reference has none
    ? unknown     it could not be read

    Findings that are the same in many layers are one line. There is no order and no culprit: each is wrong by itself.
    Exit status: 0 all was compared and agrees, 1 something differs, 2 could not tell.
    """
    limits = Limits(Tolerance.of(atol, rtol), threshold)
    options = WeightsOptions(as_json, everything, rules, limits, only, min_coverage)
    sides = open_dump(reference), open_dump(candidate)
    for dump in sides:
        if not holds_parameters(dump) and dump.format == "tensordiff":
            raise TensordiffError(
                f"{printable(dump.path)}: holds activations and no parameters; capture it again with --weights"
            )
    return compare_checkpoints(*sides, options)


def compare_checkpoints(reference: Dump, candidate: Dump, options: WeightsOptions) -> int:
    """Compare and print; the exit status. Raises after printing where the result is unknown."""
    rules = read_rules_file(options.rules) if options.rules else RulesFile()
    limits = Limits(
        options.limits.tolerance, options.limits.threshold, rules=(*options.limits.rules, *rules.tolerances)
    )
    comparison = WeightsComparison(reference, candidate, rules, limits, options.only, options.min_coverage)
    if options.as_json:
        with Progress("reading", len(comparison)) as progress:
            outcome = comparison.outcome(progress.over(comparison.rows()))
        echo(dumps(weights_json(comparison, outcome, options.schema)))
    else:
        outcome = _print_text(comparison, options)
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
        for name, rows in outcome.groups():
            _print_row(page, name if len(rows) == 1 else f"{name} ({len(rows)})", rows[0])
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


def _print_row(page: Page, name: str, row: ParameterRow) -> None:
    glyph, colour = _MARKS[row.verdict]
    ours, theirs = row.dtypes
    types = ours or theirs or "" if ours == theirs or not (ours and theirs) else f"{ours}→{theirs}"
    shape = "x".join(map(str, row.shape)) or "scalar"
    numbers = [number(row.diff.max_abs if row.diff else None), number(row.diff.rel_l2 if row.diff else None)]
    width = _width(page)
    label = short(name) if page.width is None else cut_middle(printable(name), width)
    line = f"{glyph} {pad(label, width)} {shape:<{_SHAPE}} {types:<{_TYPE}} {numbers[0]:>8} {numbers[1]:>8}"
    page.print(printable(row.sentence), f"{line}  ", " " * 4, fg=colour if row.verdict != "agrees" else None)


def _print_summary(page: Page, outcome: WeightsOutcome) -> None:
    echo()
    counts = {name: sum(row.verdict == name for row in outcome.rows) for name in _MARKS}
    marks = ((name, count) for name, count in counts.items() if count)
    echo("  ".join(click.style(f"{_MARKS[name][0]} {count} {name}", fg=_MARKS[name][1]) for name, count in marks))
    for note in outcome.notes:
        page.print(note, "note: ", " " * 6)
    for sentence in outcome.doubts:
        page.print(sentence, "left out: ", " " * 10)
    echo(f"verdict: {outcome.verdict}")
