"""``tensordiff lint``: what is wrong, before any number is believed."""

from __future__ import annotations

from pathlib import Path

import click

from tensordiff.cli.options import DUMP, json_option


@click.command("lint", short_help="Say what is wrong with a dump, or with a pair.")
@click.argument("dump", type=DUMP)
@click.argument("candidate", type=DUMP, required=False)
@click.option("--rules", type=DUMP, metavar="FILE", help="Rules (TOML) that make names alike.")
@json_option
def command(dump: Path, candidate: Path | None, rules: Path | None, as_json: bool) -> int:
    """Read a dump whole and say what is wrong with it; with two dumps, also what is wrong with comparing them.

    Looks for files that cannot be read, an interrupted capture, a missing order, NaN, +inf, outputs and
    inputs that are all zero, blocks that are byte for byte the same, a block's output that is not the next one's input;
    for two dumps also other token ids, an embedding that differs, names that do not pair. compare says the
    same of what it measures, without reading it again.

    Exit status: 0 nothing worse than a note, 1 warnings, 2 errors.
    """
    from tensordiff.cli.linting import lint

    return lint(dump, candidate, rules, as_json=as_json)
