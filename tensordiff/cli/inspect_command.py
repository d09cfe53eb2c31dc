"""``tensordiff inspect``: what is in a dump."""

from __future__ import annotations

from pathlib import Path

import click

from tensordiff.cli.options import DUMP, json_option


@click.command("inspect", short_help="Show what is in a dump.")
@click.argument("dump", type=DUMP)
@json_option
@click.option("--stats", is_flag=True, help="Read every tensor: minimum, maximum, mean, RMS, NaN and infinities.")
@click.option("--only", metavar="REGEX", help="Only entries whose name matches.")
@click.option("--step", type=click.IntRange(min=0), metavar="N", help="Only this step of the run.")
def command(dump: Path, as_json: bool, stats: bool, only: str | None, step: int | None) -> int:
    """List a dump's entries in order, with shape, dtype and size. Reads headers only, unless --stats is given."""
    from tensordiff.cli.inspecting import inspect
    from tensordiff.cli.sources import dump_of

    return inspect(dump_of(dump), as_json=as_json, stats=stats, only=only, step=step)
