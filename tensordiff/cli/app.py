"""Handing over to the app, and what is said on the terminal once it has been given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordiff.cli.progress import Line
from tensordiff.errors import TensordiffError
from tensordiff.util.garbage_collector import heap_frozen

if TYPE_CHECKING:
    from tensordiff.tui.launch import Launch


def run_app(launch: Launch | None = None, *, keeps: bool = True) -> int:
    """Run the app until it ends; its status. Raises, the terminal being restored, where nothing could be opened."""
    with Line() as line, heap_frozen():  # nothing imported is garbage; looking for it took a tenth of the start
        if line.is_shown:
            line.draw("tensordiff: opening …")  # loading takes longer than a person waits without a sign
        from tensordiff.session.preferences import preferences_file, read_preferences
        from tensordiff.tui.app import TensordiffApp

        app = TensordiffApp(launch, read_preferences(preferences_file()), keeps=keeps)
    status = app.run()
    if app.sentence:
        raise TensordiffError(app.sentence)
    return status if status is not None else app.return_code or 0
