"""``tensordiff replay``: one layer alone, on the inputs of a dump."""

from __future__ import annotations

from pathlib import Path

import click

from tensordiff.cli.options import DUMP, json_option


@click.command("replay", short_help="Run one layer alone on the inputs of a dump; write a repro of it.")
@click.argument("dump", type=DUMP)
@click.argument("layer")
@click.option("--source", metavar="SOURCE", help="Take the layer from here; from what made the dump unless given.")
@click.option("-o", "--output", type=DUMP, metavar="DIR", help="Write a bundle that runs with torch alone.")
@click.option("--step", type=click.IntRange(min=0), default=0, metavar="N", help="The step to replay (default 0).")
@click.option("--call", type=click.IntRange(min=1), default=1, metavar="N", help="The call to replay (default 1).")
@click.option("--python", metavar="PATH", help="Run in another interpreter.")
@json_option
def command(dump: Path, layer: str, as_json: bool, **options: object) -> int:
    """Rebuild one layer with its weights, call it as the dump says it was called, and compare what it gives.

    With --source it is the layer of another model that is run on the dump's inputs: right inputs, so whatever is
    wrong is its own. With -o a folder is written with the inputs, the outputs that the dump has, the weights and a
    repro.py that needs torch alone and prints the same error.

    Exit status: as compare: 0 agrees, 1 diverges, 2 could not tell.
    """
    from tensordiff.cli.replaying import Wish, replay

    return replay(dump, layer, Wish(**options), as_json=as_json)  # type: ignore[arg-type]
