"""The first frame: what it may load, that it stands where the comparison will, and what becomes of keys typed early."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from textual import events

from tensordiff.errors import TensordiffError
from tensordiff.session.request import Request
from tensordiff.session.storage.preferences import Preferences
from tensordiff.tui.app import TensordiffApp
from tensordiff.tui.comparison.opening_screen import OpeningScreen
from tensordiff.tui.comparison.screen import ComparisonScreen
from tensordiff.tui.key_help import KeyHelpScreen
from tensordiff.tui.key_line import KeyLine
from tensordiff.tui.launch import Launch
from tensordiff.tui.table.filter_bar import FilterBar
from tensordiff.tui.table.frames import PlotFrame, SummaryFrame, TableFrame
from tests import processes
from tests.processes import PATIENCE_S
from tests.tui.app_host import CANDIDATE, REFERENCE, Running, samples

_SCRIPT = """
import sys
from pathlib import Path
from tensordiff.cli import main
from tensordiff.cli.commands import open
from tensordiff.tui.app import TensordiffApp
from tensordiff.tui.comparison.opening_screen import OpeningScreen
from tensordiff.tui.launch import Launch
OpeningScreen(Launch(Path("a"), Path("b"), None))
heavy = ("numpy", "plotext", "markdown_it", "tomlkit")
ours = ("tensordiff.session.session", "tensordiff.dump", "tensordiff.align", "tensordiff.compare.comparer")
print(*(name for name in sys.modules if name.partition(".")[0] in heavy or name in ours))
"""


def test_the_first_frame_loads_nothing_that_compares() -> None:
    done = processes.run([sys.executable, "-c", _SCRIPT], check=True)
    assert done.stdout == "\n"


class Held:
    """A request that is not made before somebody says so."""

    def __init__(self) -> None:
        self.may_go = threading.Event()

    def __call__(self) -> Request:
        assert self.may_go.wait(PATIENCE_S)
        return samples()


@asynccontextmanager
async def opening(size: tuple[int, int] = (120, 40), **settings: object) -> AsyncIterator[tuple[Running, Held]]:
    """The app, kept from going on."""
    held = Held()
    app = TensordiffApp(Launch(REFERENCE, CANDIDATE, held), Preferences(**settings), saves_state=False)  # type: ignore[arg-type]
    async with app.run_test(size=size) as pilot:
        try:
            await pilot.pause()
            yield Running(app, pilot), held
        finally:
            held.may_go.set()


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.01)


async def arrived(run: Running, held: Held) -> None:
    held.may_go.set()
    await until(lambda: isinstance(run.app.screen, ComparisonScreen))
    await run.settle()


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (160, 48)])
async def test_the_frame_stands_where_the_comparison_will(size: tuple[int, int]) -> None:
    async with opening(size, columns=("index", "rel_l2", "verdict")) as (run, held):
        screen = run.app.screen
        assert isinstance(screen, OpeningScreen)
        parts = (TableFrame, SummaryFrame, PlotFrame, KeyLine)
        before = [screen.query_one(part).region for part in parts]
        keys = [one.display for one in screen.query_one(KeyLine).shown()]
        headings = screen.query_one(TableFrame).render_line(0).text
        assert "rel_l2" in headings and "verdict" in headings and "cosine" not in headings
        assert str(REFERENCE) in str(screen.query_one(SummaryFrame).render())
        assert "no error to plot" in str(screen.query_one(PlotFrame).render())
        await arrived(run, held)
        assert [run.screen.query_one(part).region for part in parts] == before
        assert [one.display for one in run.screen.query_one(KeyLine).shown()] == keys
        assert run.verdict == "diverges"


async def test_keys_typed_early_wait_for_the_comparison() -> None:
    async with opening() as (run, held):
        await run.pilot.press("slash", "m", "l", "p", "enter", "question_mark")
        assert isinstance(run.app.screen, OpeningScreen)
        await arrived(run, held)
        await until(lambda: isinstance(run.app.screen, KeyHelpScreen))  # the last of them
        await run.settle()
        assert run.screen.query_one(FilterBar).text == "mlp"
        assert run.names and all("mlp" in name for name in run.names)


async def test_early_keys_are_replayed_as_text_in_order_before_later_ones() -> None:
    async with opening() as (run, held):
        await run.pilot.press("slash", "q", "underscore", "p")
        held.may_go.set()
        await until(lambda: isinstance(run.app.screen, ComparisonScreen))
        for key in "roj":  # as a terminal sends them, without waiting for any
            run.app.post_message(events.Key(key, key))
        await until(lambda: run.screen.query_one(FilterBar).text.endswith("j"))
        await run.settle()
        assert run.screen.query_one(FilterBar).text == "q_proj"


async def test_keys_that_come_with_the_comparison_are_not_lost() -> None:
    async with opening() as (run, held):
        await run.pilot.press("slash")
        screen = run.app.screen
        assert isinstance(screen, OpeningScreen)
        screen.post_message(OpeningScreen.Loaded(samples(), screen.typed))
        for key in "mlp":  # behind the message, or on their way to the frame when it arrives
            run.app.post_message(events.Key(key, key))
        await until(lambda: isinstance(run.app.screen, ComparisonScreen))
        await run.settle()
        await until(lambda: run.screen.query_one(FilterBar).text == "mlp")
        held.may_go.set()


async def test_leaving_waits_for_nothing() -> None:
    async with opening() as (run, _):
        await run.pilot.press("q")
        assert run.app._exit and run.app.return_value == 0


async def test_going_back_from_what_waits_waits_too() -> None:
    async with opening() as (run, held):
        await run.pilot.press("n", "q")
        assert not run.app._exit
        held.may_go.set()
        await until(lambda: run.app._exit)
        assert run.app.return_value == 0


async def test_what_cannot_be_asked_for_is_a_sentence() -> None:
    def refused() -> Request:
        raise TensordiffError("nobody wants that; ask for something else")

    app = TensordiffApp(Launch(REFERENCE, CANDIDATE, refused), saves_state=False)
    async with app.run_test():
        await until(lambda: app._exit)
    assert (app.return_value, app.sentence) == (2, "nobody wants that; ask for something else")


async def test_a_defect_while_loading_is_said() -> None:
    app = TensordiffApp(Launch(REFERENCE, CANDIDATE, lambda: 1 / 0), saves_state=False)  # type: ignore[arg-type, return-value]
    async with app.run_test():
        await until(lambda: app._exit)
    assert app.return_value == 2
    assert "a defect of tensordiff (ZeroDivisionError" in app.sentence


async def test_a_page_that_lost_the_focus_meanwhile_has_it_again() -> None:
    async with opening() as (run, held):
        run.app.post_message(events.AppBlur())
        await arrived(run, held)
        labels = {one.label: one.bound.enabled for one in run.screen.query_one(KeyLine).shown()}
        assert labels["export"] and labels["bisect"]
        run.app.post_message(events.AppFocus())
        await run.settle()
        assert run.screen.focused is run.table
        await run.press("down")
        assert run.table.cursor == 1
