"""``tensordiff demo``: opens the sample dumps, which have a planted bug to find."""

from __future__ import annotations

from typing import Any

import click

from tensordiff.cli import streams


@click.command("demo")
def command() -> int:
    """Open the sample dumps in the app: a tiny Llama against a copy with one planted bug.

    Without a terminal they are compared, and finding the bug is success: status 0.
    """
    from tensordiff.session.samples import sample

    if streams.has_screen():
        from tensordiff.cli.commands.open import run_app
        from tensordiff.tui.launch import Launch

        return run_app(Launch(sample("reference"), sample("candidate"), _samples), saves_state=False)
    from tensordiff.cli.commands.compare import CompareOptions, compare

    return 0 if compare(_samples(), CompareOptions()) == 1 else 2


def _samples() -> Any:
    """The request for the sample dumps; imported late, because ``--help`` must be quick."""
    from tensordiff.session.request import Request
    from tensordiff.session.samples import sample

    injected, golden = sample("candidate_injected"), sample("golden")
    return Request(sample("reference"), sample("candidate"), injected=injected, golden=golden)
