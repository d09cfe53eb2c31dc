"""``tensordiff REF CAND`` on a terminal: the app. The command has no name; without a terminal it is ``compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tensordiff.cli.notices import say_if_slow
from tensordiff.cli.options import comparison_options, keep_option, make_request, source_options, two_sides
from tensordiff.cli.progress import Line
from tensordiff.errors import TensordiffError
from tensordiff.tui.launch import Launch
from tensordiff.tui.permissions import ALL_PERMISSIONS, SPELLINGS, Permissions
from tensordiff.util.garbage_collector import heap_frozen


@click.command("open")
@two_sides
@comparison_options
@source_options
@keep_option
@click.option("--served", type=click.Choice([*SPELLINGS]), hidden=True, help="What a visitor of serve may do.")
def command(reference: Path, candidate: Path, served: str | None, **options: Any) -> int:
    """Open two dumps in the app: REFERENCE is the one you trust, CANDIDATE the one under test.

    A side may be a source, which is run first; i, c and o in the app run what made a dump again. Give --python and
    --trust-remote-code here where that needs them: no dump can ask for them.

    The app is about runs. Two checkpoints are compared as tensordiff weights does, and printed.
    """
    if served is None and _may_be_checkpoint(reference) and _may_be_checkpoint(candidate):
        from tensordiff.cli.commands.compare import compare_as_checkpoints

        status = compare_as_checkpoints(make_request(reference, candidate, **options))
        if status is not None:
            return status
    launch = Launch(reference, candidate, lambda: make_request(reference, candidate, **options))
    return run_app(launch, permissions=ALL_PERMISSIONS if served is None else SPELLINGS[served])


def _may_be_checkpoint(path: Path) -> bool:
    """By the look of it: the app's first frame does not wait for dumps to be opened."""
    if path.suffix.lower() in (".gguf", ".bin"):
        return path.is_file()
    return any((path / name).is_file() for name in ("config.json", ".metadata"))


def run_app(
    launch: Launch | None = None, *, saves_state: bool = True, permissions: Permissions = ALL_PERMISSIONS
) -> int:
    """Run the app until it ends; its exit status. Raises, the terminal restored, where nothing could be opened."""
    say_if_slow()
    with Line() as line, heap_frozen():  # nothing imported is garbage; looking for it took a tenth of the start
        if line.is_shown:
            line.draw("tensordiff: opening …")  # loading takes longer than a person waits without a sign
        from tensordiff.session.preferences import preferences_here
        from tensordiff.tui.app import TensordiffApp

        app = TensordiffApp(launch, preferences_here(), saves_state=saves_state, permissions=permissions)
    with app.ending.minded():
        status = app.run()
    if app.sentence:
        raise TensordiffError(app.sentence)
    return status if status is not None else app.return_code or 0
