"""``tensordiff REF CAND`` on a terminal: the app. The command has no name; without a terminal it is ``compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tensordiff.cli.options import comparison_options, make_request, source_options, two_sides
from tensordiff.cli.progress import Line
from tensordiff.errors import TensordiffError
from tensordiff.tui.launch import Launch
from tensordiff.util.garbage_collector import heap_frozen


@click.command("open")
@two_sides
@comparison_options
@source_options
def command(reference: Path, candidate: Path, **options: Any) -> int:
    """Open two dumps in the app: REFERENCE is the one you trust, CANDIDATE the one under test."""
    return run_app(Launch(reference, candidate, lambda: make_request(reference, candidate, **options)))


def run_app(launch: Launch | None = None, *, saves_state: bool = True) -> int:
    """Run the app until it ends; its exit status. Raises, the terminal restored, where nothing could be opened."""
    with Line() as line, heap_frozen():  # nothing imported is garbage; looking for it took a tenth of the start
        if line.is_shown:
            line.draw("tensordiff: opening …")  # loading takes longer than a person waits without a sign
        from tensordiff.session.preferences import preferences_file, read_preferences
        from tensordiff.tui.app import TensordiffApp

        app = TensordiffApp(launch, read_preferences(preferences_file()), saves_state=saves_state)
    status = app.run()
    if app.sentence:
        raise TensordiffError(app.sentence)
    return status if status is not None else app.return_code or 0
