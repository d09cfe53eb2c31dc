"""Handing over to the app, and what is said on the terminal once it has been given back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tensordiff.cli.progress import Line
from tensordiff.errors import TensordiffError

if TYPE_CHECKING:
    from tensordiff.session import Request


def run_app(make_request: Callable[[], Request] | None = None, *, keeps: bool = True) -> int:
    """Run the app until it ends; its status. Raises, the terminal being restored, where nothing could be opened."""
    with Line() as line:
        if line.is_shown:
            line.draw("tensordiff: opening …")  # loading takes longer than a person waits without a sign
        from tensordiff.settings import read_settings, settings_file
        from tensordiff.tui.app import TensordiffApp

        request = make_request() if make_request else None
        app = TensordiffApp(request, read_settings(settings_file()), keeps=keeps)
    status = app.run()
    if app.sentence:
        raise TensordiffError(app.sentence)
    return status if status is not None else app.return_code or 0
