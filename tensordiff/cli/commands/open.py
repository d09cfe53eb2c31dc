"""``tensordiff REF CAND`` on a terminal: opens the app.

The command has no name; without a terminal it is ``compare``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensordiff.cli.options import comparison_options, keep_option, make_request, source_options, two_sides
from tensordiff.cli.progress import Line
from tensordiff.cli.streams import say, say_if_slow
from tensordiff.errors import TensordiffError
from tensordiff.tui.launch import Launch
from tensordiff.tui.permissions import ALL_PERMISSIONS, SPELLINGS, Permissions
from tensordiff.util.garbage_collector import heap_frozen

if TYPE_CHECKING:
    from tensordiff.session.request import Request


@click.command("open")
@two_sides
@comparison_options
@source_options
@keep_option
@click.option("--served", type=click.Choice([*SPELLINGS]), hidden=True, help="What a visitor of serve may do.")
@click.option("--temporary", is_flag=True, hidden=True, help="Whoever opened this deletes the dumps.")
def command(reference: Path, candidate: Path, served: str | None, temporary: bool, **options: Any) -> int:
    """Open two dumps in the app: REFERENCE is the one you trust, CANDIDATE the one under test.

    A side may be a source, which is run first; i, c and o in the app run what made a dump again. Give --python and
    --trust-remote-code here where that needs them: no dump can ask for them.

    Two checkpoints have no execution order: the app lists their parameters, as tensordiff weights does.
    """

    def checked() -> Request:
        from tensordiff.session.source_checks import check_sources
        from tensordiff.session.sources import Sources

        request = make_request(reference, candidate, **options)
        if served is None:  # the app decides what a visitor may run
            check_sources(Sources.of(request), reruns=True)
        return request

    launch = Launch(reference, candidate, checked)
    permissions = ALL_PERMISSIONS if served is None else SPELLINGS[served]
    status = run_app(launch, permissions=permissions, says_farewell=not temporary)
    if temporary:
        say("the dumps are deleted when the program that opened them ends; tensordiff.compare(…, keep=DIR) keeps them")
    return status


def run_app(
    launch: Launch | None = None,
    *,
    saves_state: bool = True,
    permissions: Permissions = ALL_PERMISSIONS,
    says_farewell: bool = True,
) -> int:
    """Run the app until it ends; returns its exit status.

    Raises, with the terminal restored, if nothing could be opened.
    """
    say_if_slow()
    with Line() as line, heap_frozen():  # nothing imported is garbage; looking for it took a tenth of the start
        if line.is_shown:
            line.draw("tensordiff: opening …")  # loading takes longer than a person waits without any output
        from tensordiff.session.storage.preferences import preferences_here
        from tensordiff.tui.app import TensordiffApp

        app = TensordiffApp(launch, preferences_here(), saves_state=saves_state, permissions=permissions)
    with app.ending.minded():
        status = app.run()
    if app.sentence:
        raise TensordiffError(app.sentence)
    if says_farewell and permissions == ALL_PERMISSIONS:  # a visitor of serve has no terminal to read it in
        for told in app.farewell():
            say(told)
    return status if status is not None else app.return_code or 0
