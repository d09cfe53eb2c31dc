"""``tensordiff compare``: rows as they are measured, then what they come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tensordiff.cli.capture_options import asked_settings, source_options
from tensordiff.cli.options import comparison, json_option, junit_option


@click.command("compare", short_help="Pair two dumps, measure every pair, name the culprit.")
@comparison
@source_options
@json_option
@junit_option
@click.option("--faults", "only_faults", is_flag=True, help="Print only rows that do not agree.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the summary.")
@click.option(
    "--worst", type=click.IntRange(min=0), default=0, metavar="N", help="Show the culprit's N largest errors."
)
def command(reference: Path, candidate: Path, **options: Any) -> int:
    """Pair the tensors of two dumps, measure every pair, and name the first layer that is wrong.

    REFERENCE is the dump you trust, CANDIDATE the one under test. Rows come in execution order.

    \b
    ✓ agrees    the difference is rounding
    ~ drifts    it differs, as what came in explains
    ✗ diverges  inputs agree and the output does not
    ? unknown   it could not be compared; the reason is given
    """
    from tensordiff.cli.comparing import Talk, compare

    talk = Talk(**{name: options.pop(name) for name in Talk._fields})
    return compare(request(reference, candidate, **options), talk)


def request(reference: Path, candidate: Path, **options: Any) -> Any:
    """What the options say, as the session takes it."""
    from tensordiff.compare.limits import Limits
    from tensordiff.compare.plan import Tolerance
    from tensordiff.session import Request

    atol, rtol, threshold = options.pop("atol"), options.pop("rtol"), options.pop("threshold")
    asked = asked_settings(options)
    return Request(reference, candidate, limits=Limits(Tolerance.of(atol, rtol), threshold), settings=asked, **options)
