"""``tensordiff verify``: both sides captured, compared without and with injection, and all of it written down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tensordiff.cli.capture_options import source_options
from tensordiff.cli.options import DUMP, how_compared, json_option, junit_option


@click.command("verify", short_help="Capture both sides, compare without and with injection, write reports.")
@click.argument("reference", type=DUMP, required=False)
@click.argument("candidate", type=DUMP, required=False)
@click.option("-o", "--output", type=DUMP, required=True, metavar="DIR", help="The folder to write.")
@click.option("--save-layers", is_flag=True, help="Keep the tensors too.")
@click.option("--suite", type=DUMP, metavar="FILE", help="Verify every model of a suite (TOML) instead of one pair.")
@click.option("--fresh", is_flag=True, help="With --suite: verify again what is done already.")
@how_compared
@source_options
@junit_option
@json_option
def command(reference: Path | None, candidate: Path | None, **options: Any) -> int:
    """Verify a candidate against a reference; each is a dump or a source (hf:PATH, max:PATH, py:FILE.py:FUNCTION).

    Sources are captured, the candidate a second time with the reference's inputs injected. Of dumps nothing is run: the
    second scenario takes --injected, or the dump beside the candidate whose name ends in _injected, or is left out.

    \b
    DIR/
      without_injection/  with_injection/    each with
        reference_layers/  candidate_layers/   with --save-layers
        module_names_reference.txt  module_names_candidate.txt
        mse_plot.png  layer_verification_report.txt  report.html  report.json
      summary.md                             both side by side: culprits, victims, what to try next

    Exit status: as compare; of a suite the worst of its models.
    """
    from tensordiff.cli.compare_command import request
    from tensordiff.cli.verify_suite import verify_suite
    from tensordiff.cli.verifying import Sides, Wish, verify

    wish = Wish(**{name: options.pop(name) for name in Wish._fields})
    suite, fresh = options.pop("suite"), options.pop("fresh")
    if suite is not None:
        if reference is not None:
            raise click.UsageError("give a suite or two sides, not both", click.get_current_context())
        return verify_suite(suite, request(Path(), Path(), **options), wish, fresh=fresh)
    if reference is None or candidate is None:
        raise click.UsageError("Missing argument 'REFERENCE CANDIDATE'", click.get_current_context())
    asked = request(reference, candidate, **options)
    return verify(asked, Sides(asked.settings, asked.settings), wish)
