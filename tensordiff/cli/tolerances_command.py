"""``tensordiff tolerances``: what would pass, for ``compare --tolerances`` to enforce."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from tensordiff.cli.options import DUMP, json_option


class Size(click.FloatRange):
    """A number within bounds. NaN is none, and lies within all of them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """What was typed, as a number."""
        size = super().convert(value, param, ctx)
        return self.fail("nan is not a size", param, ctx) if math.isnan(size) else size


@click.command("tolerances", short_help="Say what tolerances would pass; write them for compare to enforce.")
@click.argument("dumps", type=DUMP, nargs=-1, required=True, metavar="REFERENCE CANDIDATE [REFERENCE CANDIDATE]...")
@click.option("--rules", type=DUMP, metavar="FILE", help="Rules (TOML) that make names alike.")
@click.option(
    "--margin", type=Size(0, 100), default=0.25, show_default=True, metavar="X", help="How much worse still passes."
)
@click.option("--per-layer", is_flag=True, help="One tolerance a layer, instead of one for all layers of a kind.")
@click.option("-o", "--output", type=DUMP, metavar="FILE", help="Write them to a file.")
@json_option
def command(
    dumps: tuple[Path, ...], rules: Path | None, margin: float, per_layer: bool, output: Path | None, as_json: bool
) -> int:
    """Measure runs that agree, and say which tolerances they would pass with a margin, in two digits rounded up.

    Several pairs of dumps of one model (other prompts, other machines) make tolerances that all of them pass. A file
    that is there keeps what it says and its comments; tables with the same match get new numbers. Enforce it with
    compare --tolerances FILE: exit status 1 where a run is worse.

    Nothing comes of runs that tell nothing: no pairs, NaN, a layer that diverges, an error that lint finds.

    Exit status: 0 tolerances were found, 2 they were not.
    """
    from tensordiff.cli.tolerating import Wish, tolerate

    if len(dumps) % 2:
        raise click.UsageError(
            f"dumps come in pairs, a reference and its candidate; there are {len(dumps)}", click.get_current_context()
        )
    both = tuple(zip(dumps[::2], dumps[1::2], strict=True))
    return tolerate(both, rules, Wish(margin, per_layer, output, as_json))
