"""``tensordiff demo``: the sample dumps, with a planted bug to find."""

from __future__ import annotations

import click


@click.command("demo", short_help="Compare the sample dumps that come with tensordiff.")
def command() -> int:
    """Compare the sample dumps: a tiny Llama against a copy with one planted bug. Finding it is success: status 0."""
    from tensordiff.cli.comparing import Talk, compare
    from tensordiff.samples import sample
    from tensordiff.session import Request

    request = Request(
        sample("reference"),
        sample("candidate"),
        injected=sample("candidate_injected"),
        golden=sample("golden"),
    )
    return 0 if compare(request, Talk()) == 1 else 2
