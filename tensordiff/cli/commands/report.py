"""``tensordiff report``: what a comparison found, for someone who was not there; or what changed between two.

Comparing and writing reports, as many as were asked for; and telling what changed between two of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import click

from tensordiff.cli.capture_options import source_options
from tensordiff.cli.options import DUMP, comparison, json_option, junit_option
from tensordiff.cli.progress import COMPILING, Progress
from tensordiff.cli.sources import opened
from tensordiff.cli.streams import echo, say
from tensordiff.cli.summary import why_unknown
from tensordiff.compare.row import Row
from tensordiff.errors import AlignError, WriteError, printable
from tensordiff.report.change import Change, change, change_json, change_markdown, change_text, read_comparison
from tensordiff.report.formats import render_for, write_model
from tensordiff.report.json import dumps
from tensordiff.report.junit import write_junit
from tensordiff.report.labels import label
from tensordiff.report.model import build_report
from tensordiff.search.outcome import Outcome
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.util.atomic_write import write_file


@click.command("report")
@comparison
@source_options
@click.option(
    "-o", "--output", "outputs", type=DUMP, multiple=True, metavar="FILE",
    help="Write by suffix: .md .html .json .txt .csv .png; may be given several times.",
)  # fmt: skip
@click.option("--select", metavar="REGEX", help="Report only pairs named like this, each looked at closely.")
@click.option("--title", metavar="TEXT", help="What stands above it.")
@click.option("--stamp", is_flag=True, help="Say when it was written; without it the same input makes the same bytes.")
@junit_option
@json_option
def command(reference: Path, candidate: Path, **options: Any) -> int:
    """Compare two dumps and write what was found; without -o, as text on stdout.

    Given two files that compare --json or report -o FILE.json wrote, say what got better and what got worse between
    them; with -o as .md, .json or .txt.

    Exit status: as compare; for two such files 0 nothing is worse, 1 something is, 2 could not tell.
    """
    from tensordiff.cli.commands.compare import request

    wish = Wish(**{name: options.pop(name) for name in Wish._fields})
    if all(path.suffix == ".json" and path.is_file() for path in (reference, candidate)):
        return report_change(reference, candidate, wish)
    return report(request(reference, candidate, **options), wish)


class Wish(NamedTuple):
    """What to write."""

    outputs: tuple[Path, ...] = ()
    select: str | None = None
    title: str | None = None
    stamp: bool = False
    junit: Path | None = None
    as_json: bool = False


def report(request: Request, wish: Wish) -> int:
    """Compare and write; the exit status. Raises, all being written, where it could not be told."""
    for path in wish.outputs:
        render_for(path)  # a suffix nobody knows is said before the work, not after it
    session = opened(request)
    outcome = measured(session)
    rows = None if wish.select is None else _selected(outcome, wish.select)
    stamp = f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}" if wish.stamp else None
    model = build_report(session, outcome, rows, wish.title, stamp)
    for path in wish.outputs:
        write_model(model, path)
    write_junit(wish.junit, outcome, model.title)
    if wish.as_json:
        echo(str(render_for("report.json")(model)).rstrip("\n"))
    elif wish.outputs:
        echo(model.sentence)
        say(f"written: {', '.join(printable(path) for path in wish.outputs)}")
    else:
        echo(str(render_for("report.txt")(model)).rstrip("\n"))
    if outcome.verdict == "unknown":
        raise why_unknown(session, outcome)
    return outcome.exit_status


def measured(session: Session) -> Outcome:
    """Every pair, with progress."""
    with Progress("measuring", len(session.pairs), COMPILING) as progress:
        return session.outcome(progress.over(session.rows()))


def _selected(outcome: Outcome, select: str) -> list[Row]:
    try:
        pattern = re.compile(select)
    except re.error as error:
        raise AlignError(f"--select {select!r} is not a regular expression: {error}") from error
    found = [row for row in outcome.rows if pattern.search(label(row.pair))]
    if not found:
        raise AlignError(f"--select {select!r}: no pair is named like that; see tensordiff align for the names")
    return found


_TOLD: dict[str, Callable[[Change], str]] = {
    ".md": change_markdown,
    ".txt": change_text,
    ".json": lambda found: dumps(change_json(found)) + "\n",
}


def report_change(before: Path, after: Path, wish: Wish) -> int:
    """What changed between two comparisons; the exit status."""
    tellers = [(path, _teller(path)) for path in wish.outputs]
    found = change(read_comparison(before), read_comparison(after))
    for path, told in tellers:
        write_file(path, told(found), make_folders=True)
    echo((dumps(change_json(found)) if wish.as_json else change_text(found)).rstrip("\n"))
    return found.exit_status


def _teller(path: Path) -> Callable[[Change], Any]:
    if path.suffix.lower() not in _TOLD:
        raise WriteError(f"{printable(path)}: what changed is told as {', '.join(_TOLD)}; use one of these suffixes")
    return _TOLD[path.suffix.lower()]
