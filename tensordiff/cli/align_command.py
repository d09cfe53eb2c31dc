"""``tensordiff align``: which tensor answers which, what is left over, and what it may be."""

from __future__ import annotations

from pathlib import Path

import click

from tensordiff.cli.options import DUMP, json_option


@click.command("align", short_help="Show pairs, orphans and suggestions; write a rules file.")
@click.argument("reference", type=DUMP)
@click.argument("candidate", type=DUMP)
@click.option("--rules", type=DUMP, metavar="FILE", help="Rules (TOML) that make names alike.")
@click.option("--auto", is_flag=True, help="Accept what the values prove on every layer it generalizes to.")
@click.option("--suggest/--no-suggest", default=True, help="Look for partners of orphans by value (default: on).")
@click.option("-o", "--output", type=DUMP, metavar="FILE", help="Write the maps that were accepted to a rules file.")
@json_option
def command(
    reference: Path, candidate: Path, rules: Path | None, auto: bool, suggest: bool, output: Path | None, as_json: bool
) -> int:
    """Pair the tensors of two dumps by rules, maps and, for what is left over, by their values.

    Suggestions for orphans come with their evidence: rel_l2 of a right one is at the floor, of a wrong one near 1.
    With -o, those that the values prove on every layer are written as [[map]] entries, one for all layers;
    give that file to compare with --rules.

    Exit status: 0 something was paired, 2 nothing was.
    """
    from tensordiff.cli.aligning import Wish, show_alignment

    return show_alignment(reference, candidate, rules, Wish(auto, suggest, output, as_json))
