"""``c`` with streaming: the rows of two dumps, while a real source runs in a child; cancelled, refused, kept."""

from __future__ import annotations

from typing import Any

import pytest
from textual.widgets import Checkbox, Input

from tensordiff.align.rules.rule import Rule
from tensordiff.dump import open_dump
from tensordiff.report.comparison_json import row_json
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.session.streaming.session import StreamedSession
from tensordiff.tui.jobs.capture_form import CaptureForm
from tensordiff.tui.jobs.job_line import JobLine
from tensordiff.tui.layer.screen import LayerScreen
from tensordiff.tui.rules.panel import RulesPanel
from tensordiff.tui.table.model import DIVERGES
from tensordiff.tui.table.summary import Summary
from tensordiff.util.temporary_folders import is_temporary
from tests.capture.models import run_here
from tests.tui.app_host import Running, running
from tests.tui.jobs.test_reruns import children, ended

pytest.importorskip("torch")
pytestmark = pytest.mark.new_children
SOURCE = """
import time
from pathlib import Path
import torch
from torch import nn

HERE = Path(__file__).parent

class Net(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.first, self.scale, self.middle, self.last = nn.Linear(8, 8), Scale(factor), nn.Linear(8, 8), Gate()
    def forward(self, x):
        return self.last(self.middle(self.scale(self.first(x))))

class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
    def forward(self, x):
        return x * self.factor

class Gate(nn.Module):
    runs = 0
    def forward(self, x):
        Gate.runs += 1
        while Gate.runs > 1 and (HERE / "shut").exists():
            time.sleep(0.01)
        if Gate.runs > 1 and (HERE / "broken").exists():
            raise ValueError("broken by the test")
        return x + 1

def right():
    torch.manual_seed(0)
    return Net(1.0), {"x": torch.ones(2, 8)}

def wrong():
    while (HERE / "slow").exists():
        time.sleep(0.01)
    torch.manual_seed(0)
    return Net(1.5), {"x": torch.ones(2, 8)}
"""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Request:
    """Two captures of a small model, one with a wrong factor."""
    folder = tmp_path_factory.mktemp("sources")
    (folder / "net.py").write_text(SOURCE)
    sides = [run_here(f"py:{folder / 'net.py'}:{function}", folder / function).path for function in ("right", "wrong")]
    return Request(*sides)


async def stream(run: Running, window: str = "") -> None:
    """Fill in the form, and begin."""
    await run.press("c")
    form = run.app.screen
    assert isinstance(form, CaptureForm) and not form.query_one(Checkbox).value
    form.query_one(Checkbox).focus()
    form.query_one("#window", Input).value = window
    await run.pilot.press("space", "ctrl+s")
    await run.until(lambda: not isinstance(run.app.screen, CaptureForm))


def told(run: Running) -> str:
    """The two lines at the top."""
    return str(run.screen.query_one(Summary).render())


def numbers(run: Running) -> list[dict[str, Any]]:
    """All rows, as a report has them."""
    return [row_json(row) for row in run.owner.outcome.rows] if run.owner.outcome else []


async def test_streamed_rows_are_those_of_dumps_and_what_diverges_is_a_dump(dumps: Request) -> None:
    expected = [row_json(row) for row in Session.open(dumps).rows()]
    async with running(dumps, (140, 40)) as run:
        await stream(run)
        await ended(run)
        streamed = run.owner.session
        assert isinstance(streamed, StreamedSession)
        assert numbers(run) == expected
        assert "streamed, " in told(run) and "first at scale" in told(run) and "py:net.py:wrong" in told(run)
        (kept,) = run.owner.kept_dumps
        assert str(kept) in run.said() and is_temporary(kept)
        assert {"model.scale-output", "model.scale-input_0"} <= {entry.name for entry in open_dump(kept).entries}
        assert len(open_dump(kept)) < len(streamed.candidate)
        assert children() == []
        run.table.reveal(run.table.listing.labels.index("scale"))
        await run.press("enter", "4")
        assert isinstance(run.app.screen, LayerScreen)
        assert streamed.sides(run.app.screen.row) is not None
        await run.press("escape", "K")
        assert not is_temporary(kept)
        await run.press("c", "ctrl+s")
        await ended(run)
        assert numbers(run) == expected and "streamed" not in told(run)


async def test_what_was_streamed_is_not_measured_again(dumps: Request) -> None:
    async with running(dumps, (140, 40)) as run:
        await stream(run)
        await ended(run)
        before, book = numbers(run), run.owner.book
        for key in ("left_parenthesis", "i", "ctrl+r"):
            await run.press(key)
            assert run.app.screen is run.screen
            assert "c captures the candidate into a dump" in run.said()
            run.app.clear_notifications()
        await run.press("m")
        panel = run.screen.query_one(RulesPanel)
        panel.change(lambda book: book.added(Rule("candidate", "scale", "x")))
        await run.settle()
        assert run.owner.book is book and panel.book is book
        assert numbers(run) == before


async def test_a_stream_that_is_cancelled_while_it_is_listed_leaves_all_as_it_was(dumps: Request) -> None:
    slow = dumps.candidate.parent / "slow"
    async with running(dumps) as run:
        before = run.owner.session
        slow.touch()
        try:
            await stream(run)
            await run.until(lambda: run.screen.query_one(JobLine).run is not None and children())
            await run.pilot.press("x")
            await ended(run)
        finally:
            slow.unlink()
        assert "cancelled" in run.said() and children() == []
        assert run.owner.session is before and run.owner.why_fixed is None


async def test_ended_after_something_diverged_it_is_the_result(dumps: Request) -> None:
    shut = dumps.candidate.parent / "shut"
    async with running(dumps, (140, 40)) as run:
        shut.touch()
        try:
            await stream(run)
            await run.until(
                lambda: isinstance(run.owner.session, StreamedSession) and DIVERGES in run.owner.listing.verdicts
            )
            assert "streaming" in told(run)
            await run.pilot.press("enter")
            assert run.app.screen is run.screen and "wait for its end" in run.said()
            await run.pilot.press("escape")
            await ended(run)
        finally:
            shut.unlink()
        assert run.verdict == "diverges" and "first at scale" in told(run)
        assert "stream ended by you at" in told(run) and children() == []
        (kept,) = run.owner.kept_dumps
        assert "cancelled while it was streamed" in str(open_dump(kept).facts["error"])


async def test_a_stream_that_fails_in_the_midst_goes_back_to_the_dumps(dumps: Request) -> None:
    (dumps.candidate.parent / "broken").touch()
    async with running(dumps, (140, 40)) as run:
        before = numbers(run)
        await stream(run, "100")
        await ended(run)
        await ended(run)
        assert "broken by the test" in run.said()
        assert run.owner.request.candidate == dumps.candidate and numbers(run) == before
        assert children() == []


async def test_a_window_is_a_size(dumps: Request) -> None:
    async with running(dumps, (80, 24)) as run:
        await run.press("c")
        form = run.app.screen
        form.query_one(Checkbox).value = True
        form.query_one("#window", Input).value = "a lot"
        await run.press("ctrl+s")
        assert run.app.screen is form
        assert "is not a size such as 500MB" in str(form.query_one("#wrong").render())
        assert form.query_one("#accept").region.bottom < 24
        await run.press("escape")
