"""Pictures of the app that somebody has looked at. A change to one is a change to what people see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from textual.pilot import Pilot

from tensordiff.session.request import Request
from tensordiff.session.storage.preferences import Preferences
from tensordiff.tui.app import TensordiffApp
from tensordiff.tui.comparison.screen import ComparisonScreen
from tests.tui.app_host import GOLDEN, INJECTED, Running, samples

Before = Callable[[Pilot[Any]], Awaitable[None]]
SMALL, LARGE = (80, 24), (160, 48)


def app(request: Request | None = None, **settings: Any) -> TensordiffApp:
    return TensordiffApp(
        request or samples(injected=INJECTED, golden=GOLDEN), Preferences(**settings), saves_state=False
    )


def settled(do: Callable[[Running], Awaitable[None]] | None = None) -> Before:
    """Until all is measured; then what the picture is of; without notifications, which come and go."""

    async def before(pilot: Pilot[Any]) -> None:
        assert isinstance(pilot.app, TensordiffApp)
        run = Running(pilot.app, pilot)
        await run.settle()
        if do is not None:
            await do(run)
        await run.settle()
        pilot.app.clear_notifications()
        for screen in pilot.app.screen_stack:
            if isinstance(screen, ComparisonScreen):
                screen.pane.draw_plot()
        await run.settle()

    return before


async def at_culprit(run: Running) -> None:
    run.screen.action_culprit(1)


async def searching(run: Running) -> None:
    await run.press("b", "a")


async def folded(run: Running) -> None:
    await run.press("w")


async def faults(run: Running) -> None:
    await run.press("f")
    run.table.sort_by("rel_l2")


async def exporting(run: Running) -> None:
    await run.press("e")


async def palette(run: Running) -> None:
    await run.press("ctrl+p", *"inject")


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
def test_culprit(snap_compare: Any, size: tuple[int, int]) -> None:
    assert snap_compare(app(), terminal_size=size, run_before=settled(at_culprit))


def test_light(snap_compare: Any) -> None:
    assert snap_compare(app(theme="light"), terminal_size=(120, 36), run_before=settled(at_culprit))


def test_bisect(snap_compare: Any) -> None:
    assert snap_compare(app(), terminal_size=(120, 36), run_before=settled(searching))


def test_tree(snap_compare: Any) -> None:
    assert snap_compare(app(), terminal_size=SMALL, run_before=settled(folded))


def test_faults(snap_compare: Any) -> None:
    assert snap_compare(app(), terminal_size=SMALL, run_before=settled(faults))


def test_export(snap_compare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathlib.Path.cwd", lambda: GOLDEN.__class__("/here"))
    assert snap_compare(app(), terminal_size=SMALL, run_before=settled(exporting))


def test_no_color(snap_compare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(app(), terminal_size=SMALL, run_before=settled(at_culprit))
