"""``tensordiff REF CAND`` on a terminal: the app. It has no name of its own; without a terminal it is ``compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tensordiff.cli.capture_options import source_options
from tensordiff.cli.options import comparison


@click.command("open")
@comparison
@source_options
def command(reference: Path, candidate: Path, **options: Any) -> int:
    """Open two dumps in the app: REFERENCE is the one you trust, CANDIDATE the one under test."""
    from tensordiff.cli.app import run_app
    from tensordiff.cli.commands.compare import request
    from tensordiff.tui.launch import Launch

    return run_app(Launch(reference, candidate, lambda: request(reference, candidate, **options)))
