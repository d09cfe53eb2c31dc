"""``tensordiff bisect``: binary search for the first bad place, judged by a person or by verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tensordiff.cli.capture_options import source_options
from tensordiff.cli.options import DUMP, comparison, json_option


@click.command("bisect", short_help="Search for the first bad place with few answers: yours, or verdicts.")
@comparison
@source_options
@click.option("--auto", is_flag=True, help="Judge by verdict, reading only the pairs that are probed.")
@click.option("--rerun", is_flag=True, help="Judge by running the candidate again, all before a layer made right.")
@click.option("--log", type=DUMP, metavar="FILE", help="Write every mark to a new file as it is given.")
@click.option("--replay", type=DUMP, metavar="FILE", help="Begin with the marks of a log.")
@json_option
def command(reference: Path, candidate: Path, as_json: bool, rerun: bool, **options: Any) -> int:
    """Search the outputs of two dumps for the first bad one, as git bisect searches commits.

    Use it where each answer is dear or a person must judge; compare measures everything and needs no assumption.
    This one assumes that everything before the first bad place is good, and everything after it bad. With
    --auto it looks at the neighbours of its answer and at a few samples, and says where that does not hold.

    With --rerun each question is a run of the candidate in which everything before the layer is the reference's:
    if the model's output heals, the fault lies before it. The candidate must be a source, or a dump that capture made.

    \b
    g, good   this is right            u, undo  take the last mark back
    b, bad    this is wrong            l, log   show the marks so far
    s, skip   this cannot be judged    q, quit  stop; go on later with --replay

    Exit status: 0 nothing is bad, 1 something is, 2 could not tell, 130 interrupted.
    """
    from tensordiff.cli.bisecting import Wish, bisect
    from tensordiff.cli.compare_command import request

    wish = Wish(options.pop("auto"), options.pop("log"), options.pop("replay"), as_json, rerun)
    return bisect(request(reference, candidate, **options), wish)
