"""``tensordiff report``: writes a comparison as files for others; or what changed between two comparisons."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import click

from tensordiff.cli.commands.compare import measure
from tensordiff.cli.options import (
    PATH,
    comparison_options,
    json_option,
    junit_option,
    keep_option,
    make_request,
    source_options,
    take,
    two_sides,
)
from tensordiff.cli.sources import open_dumps, run_sources
from tensordiff.cli.streams import echo, say
from tensordiff.cli.summary import inconclusive_error
from tensordiff.compare.row import Row
from tensordiff.errors import AlignError, TensordiffError, WriteError, printable
from tensordiff.report.change import Change, change, change_json, change_markdown, change_text, read_comparison
from tensordiff.report.comparison_json import dumps
from tensordiff.report.formats import render_for, write_model
from tensordiff.report.junit import write_junit
from tensordiff.report.labels import counted, label
from tensordiff.report.model import build_report
from tensordiff.search.outcome import Outcome
from tensordiff.session.request import Request
from tensordiff.util.atomic_write import write_file
from tensordiff.util.regex import UserRegex, check_regex


class ReportOptions(NamedTuple):
    """What to write."""

    outputs: tuple[Path, ...] = ()
    select: str | None = None
    title: str | None = None
    stamp: bool = False
    junit: Path | None = None
    as_json: bool = False


@click.command("report")
@two_sides
@comparison_options
@source_options
@keep_option
@click.option(
    "-o", "--output", "outputs", type=PATH, multiple=True, metavar="FILE",
    help="Write by suffix: .md .html .json .txt .csv .png; may be given several times.",
)  # fmt: skip
@click.option("--select", metavar="REGEX", help="Report only matching pairs, each in detail.")
@click.option("--title", metavar="TEXT", help="The report's title.")
@click.option("--stamp", is_flag=True, help="Add the date; without it the same input gives the same bytes.")
@junit_option
@json_option
def command(reference: Path, candidate: Path, **options: Any) -> int:
    """Compare two dumps and write what was found; without -o, as text on stdout.

    Given two files that compare --json or report -o FILE.json wrote, say what got better and what got worse between
    them; with -o as .md, .json or .txt. Fewer pairs than before are inconclusive unless --allow-partial is given.

    Exit status: as compare; for two such files 0 nothing is worse, 1 something is, 2 inconclusive.
    """
    chosen = take(options, ReportOptions)
    if all(path.suffix == ".json" and path.is_file() for path in (reference, candidate)):
        return report_change(reference, candidate, chosen, allow_partial=options["allow_partial"])
    return report(make_request(reference, candidate, **options), chosen)


def report(request: Request, options: ReportOptions) -> int:
    """Compare and write; returns the exit status. Raises after writing if the result is unknown."""
    for path in options.outputs:
        render_for(path)  # refuse an unknown suffix before the work, not after it
    if options.select is not None:
        check_regex("--select", options.select)
    session = open_dumps(run_sources(request))
    outcome = measure(session)
    rows = None if options.select is None else _selected(outcome, options.select)
    stamp = f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}" if options.stamp else None
    model = build_report(session, outcome, rows, options.title, stamp)
    for path in options.outputs:
        write_model(model, path)
    write_junit(options.junit, outcome, model.title)
    if options.as_json:
        echo(str(render_for("report.json")(model)).rstrip("\n"))
    elif options.outputs:
        echo(model.sentence)
        say(f"written: {', '.join(printable(path) for path in options.outputs)}")
    else:
        echo(str(render_for("report.txt")(model)).rstrip("\n"))
    if outcome.verdict == "unknown":
        raise inconclusive_error(session, outcome)
    return outcome.exit_status


def _selected(outcome: Outcome, select: str) -> list[Row]:
    selected = UserRegex("--select", select).matches
    found = [row for row in outcome.rows if selected(label(row.pair))]
    if not found:
        raise AlignError(f"--select {select!r}: no pair is named like that; see tensordiff align for the names")
    return found


_CHANGE_FORMATS: dict[str, Callable[[Change], str]] = {
    ".md": change_markdown,
    ".txt": change_text,
    ".json": lambda found: dumps(change_json(found)) + "\n",
}


def report_change(before: Path, after: Path, options: ReportOptions, *, allow_partial: bool) -> int:
    """Report what changed between two comparisons; returns the exit status."""
    formats = [(path, _change_format(path)) for path in options.outputs]
    found = change(read_comparison(before), read_comparison(after))
    for path, render in formats:
        write_file(path, render(found), make_folders=True)
    echo((dumps(change_json(found)) if options.as_json else change_text(found)).rstrip("\n"))
    status = found.exit_status(allow_partial=allow_partial)
    if status == 2 and found.gone:
        lost = f"{counted(len(found.gone), 'pair')} of the first comparison not in the second, first {found.gone[0]}"
        raise TensordiffError(f"{lost}; compare the same again, or accept fewer pairs with --allow-partial")
    return status


def _change_format(path: Path) -> Callable[[Change], Any]:
    if path.suffix.lower() not in _CHANGE_FORMATS:
        raise WriteError(
            f"{printable(path)}: what changed is written as {', '.join(_CHANGE_FORMATS)}; use one of these suffixes"
        )
    return _CHANGE_FORMATS[path.suffix.lower()]
