"""``tensordiff align``: which tensor answers which, what is left over, and what it may be."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from tensordiff.cli.options import DUMP, json_option


class Numbers(click.ParamType[tuple[int, ...]]):
    """Numbers from 1 up, parted by commas."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """What was typed, as numbers."""
        if isinstance(value, tuple):
            return value  # the default
        words = [word.strip() for word in str(value).split(",")]
        if not all(word.isascii() and word.isdigit() and 0 < len(word) < 10 and int(word) for word in words):
            self.fail(f"{value!r:.60} is not a list of numbers such as 1,3", param, ctx)
        return tuple(map(int, words))


class Confidence(click.FloatRange):
    """A number from 0 to 1."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """What was typed, as a number."""
        number = super().convert(value, param, ctx)
        return self.fail("nan is not a confidence", param, ctx) if math.isnan(number) else number


@click.command("align", short_help="Show pairs, orphans and suggestions; write a rules file.")
@click.argument("reference", type=DUMP)
@click.argument("candidate", type=DUMP)
@click.option("--rules", type=DUMP, metavar="FILE", help="Rules (TOML) that make names alike.")
@click.option("--session", type=DUMP, metavar="FILE", help="A session file of the app: its rules.")
@click.option("--auto", is_flag=True, help="Accept what the values prove on every layer it generalizes to.")
@click.option("--accept", type=Numbers(), metavar="N,…", default=(), help="Accept these suggestions, as numbered here.")
@click.option("--accept-above", type=Confidence(0, 1), metavar="X", help="Accept suggestions this confident, 0 to 1.")
@click.option("--suggest/--no-suggest", default=True, help="Look for partners of orphans by value (default: on).")
@click.option("-o", "--output", type=DUMP, metavar="FILE", help="Write the maps that were accepted to a rules file.")
@json_option
def command(reference: Path, candidate: Path, rules: Path | None, session: Path | None, **wishes: Any) -> int:
    """Pair the tensors of two dumps by rules, maps and, for what is left over, by their values.

    Suggestions for orphans come with their evidence: rel_l2 of a right one is at the floor, of a wrong one near 1.
    They are numbered; accept some with --accept 1,3, or all of a confidence from 0 to 1 with --accept-above 0.9.
    With -o, the accepted ones are written as [[map]] entries, one for all layers where the values prove all;
    those that need no person (--auto), if none were chosen. Give that file to compare with --rules.

    Exit status: 0 something was paired, 2 nothing was.
    """
    from tensordiff.cli.aligning import Wish, show_alignment
    from tensordiff.session import Request

    return show_alignment(Request(reference, candidate, rules, session=session), Wish(**wishes))
