"""The app in a terminal that is not there, settled: everything opened, measured and painted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from textual.pilot import Pilot
from textual.worker import WorkerCancelled, WorkerFailed

from tensordiff.session.preferences import Preferences
from tensordiff.session.request import Request
from tensordiff.tui.app import TensordiffApp
from tensordiff.tui.comparison.screen import DiffScreen
from tensordiff.tui.table.table import LayerTable
from tests.making import SAMPLES
from tests.processes import PATIENCE_S

CASES = Path(__file__).parents[3] / "shared" / "cases"
REFERENCE, CANDIDATE = SAMPLES / "reference", SAMPLES / "candidate"
INJECTED, GOLDEN = SAMPLES / "candidate_injected", SAMPLES / "golden"
CULPRIT = "layers.1.mlp.act_fn"
_ASK_AGAIN_S = 0.1


class Running(NamedTuple):
    """The app, and what tests do with it."""

    app: TensordiffApp
    pilot: Pilot[int]

    @property
    def screen(self) -> DiffScreen:
        found = next(screen for screen in reversed(self.app.screen_stack) if isinstance(screen, DiffScreen))
        assert isinstance(found, DiffScreen)
        return found

    @property
    def table(self) -> LayerTable:
        return self.screen.table

    async def settle(self) -> None:
        """Until no thread works and no message waits."""
        for _ in range(3):
            working = [worker for worker in self.app.workers if worker.group not in ("watch", "run")]
            with suppress(WorkerFailed, WorkerCancelled):  # the app tells of it; so do the tests
                if working:  # an empty list would mean all of them
                    await self.app.workers.wait_for_complete(working)
            await self.pilot.pause()

    async def until(self, is_so: Callable[[], object]) -> None:
        """Until something is so: asked again whenever a thread has ended and what it said was heard."""
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                working = [worker._task for worker in self.app.workers if worker._task and not worker.is_finished]
                if working:  # with an end: a run goes on for as long as its child
                    await asyncio.wait(working, timeout=_ASK_AGAIN_S, return_when=asyncio.FIRST_COMPLETED)
                await self.pilot.pause(0.01)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.settle()

    @property
    def name(self) -> str:
        """The layer under the cursor."""
        return "" if self.screen.pair is None else self.screen.pair.name

    @property
    def names(self) -> list[str]:
        """The layers shown, from top to bottom."""
        rows = (self.table.line(k).row for k in range(len(self.table.lines)))
        return [self.table.listing.labels[at] for at in rows]

    @property
    def verdict(self) -> str:
        """Of the whole."""
        return "" if self.screen.outcome is None else str(self.screen.outcome.verdict)

    def lines(self) -> list[str]:
        """The table as it is painted."""
        return [self.table.render_line(y).text for y in range(self.table.size.height)]

    def said(self) -> str:
        """All notifications."""
        return "\n".join(str(one.message) for one in self.app._notifications)


@asynccontextmanager
async def running(
    request: Request | None,
    size: tuple[int, int] = (120, 40),
    settings: Preferences | None = None,
    *,
    keeps: bool = False,
) -> AsyncIterator[Running]:
    """The app on two dumps."""
    app = TensordiffApp(request, settings, keeps=keeps)
    async with app.run_test(size=size) as pilot:
        run = Running(app, pilot)
        await run.settle()
        yield run


def samples(**options: Path) -> Request:
    return Request(REFERENCE, CANDIDATE, **options)  # type: ignore[arg-type]
