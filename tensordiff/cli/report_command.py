"""``tensordiff report``: what a comparison found, for someone who was not there; or what changed between two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tensordiff.cli.capture_options import source_options
from tensordiff.cli.options import DUMP, comparison, json_option, junit_option


@click.command("report", short_help="Write what was found as a file for others; or what changed since last time.")
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
    from tensordiff.cli.compare_command import request
    from tensordiff.cli.reporting import Wish, report, report_change

    wish = Wish(**{name: options.pop(name) for name in Wish._fields})
    if all(path.suffix == ".json" and path.is_file() for path in (reference, candidate)):
        return report_change(reference, candidate, wish)
    return report(request(reference, candidate, **options), wish)
