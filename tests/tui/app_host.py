"""The app in a terminal that is not there, settled: everything opened, measured and painted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from textual.pilot import Pilot
from textual.screen import Screen

from tensordiff.session.request import Request
from tensordiff.session.storage.preferences import Preferences
from tensordiff.tui.app import TensordiffApp
from tensordiff.tui.comparison.screen import ComparisonScreen
from tensordiff.tui.comparison.session_owner import SessionOwner
from tensordiff.tui.permissions import ALL_PERMISSIONS, Permissions
from tensordiff.tui.table.table import LayerTable
from tests.making import SAMPLES
from tests.processes import PATIENCE_S
from tests.tui.waiting import settled, until

CASES = Path(__file__).parents[3] / "shared" / "cases"
REFERENCE, CANDIDATE = SAMPLES / "reference", SAMPLES / "candidate"
INJECTED, GOLDEN = SAMPLES / "candidate_injected", SAMPLES / "golden"
CULPRIT = "layers.1.mlp.act_fn"


class Running(NamedTuple):
    """The app, and what tests do with it."""

    app: TensordiffApp
    pilot: Pilot[int]

    @property
    def screen(self) -> ComparisonScreen:
        found = next(screen for screen in reversed(self.app.screen_stack) if isinstance(screen, ComparisonScreen))
        assert isinstance(found, ComparisonScreen)
        return found

    @property
    def owner(self) -> SessionOwner:
        return self.screen.owner

    @property
    def table(self) -> LayerTable:
        return self.screen.table

    async def settle(self) -> None:
        """Until everything is opened, measured and painted; a child that runs a source is not waited for."""
        for _ in range(2):
            await settled(self.app, self.pilot, ignoring=("watch", "run"))
            await self.until(lambda: self.app._exit or all(map(_is_measured, self.app.screen_stack)))

    async def until(self, is_so: Callable[[], object]) -> None:
        await until(self.pilot, is_so)

    async def moment(self, is_so: Callable[[], object]) -> None:
        """Until something is so, however shortly: looked at between any two things that the app does."""
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                await asyncio.sleep(0)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.settle()

    @property
    def name(self) -> str:
        """The layer under the cursor."""
        return "" if self.screen.pane.pair is None else self.screen.pane.pair.name

    @property
    def names(self) -> list[str]:
        """The layers shown, from top to bottom."""
        rows = (self.table.line(k).row for k in range(len(self.table.lines)))
        return [self.table.listing.labels[at] for at in rows]

    @property
    def verdict(self) -> str:
        """Of the whole."""
        return "" if self.owner.outcome is None else str(self.owner.outcome.verdict)

    def lines(self) -> list[str]:
        """The table as it is painted."""
        return [self.table.render_line(y).text for y in range(self.table.size.height)]

    def said(self) -> str:
        """All notifications."""
        return "\n".join(str(one.message) for one in self.app._notifications)


def _is_measured(screen: Screen[Any]) -> bool:
    """Whether a screen shows all it is about to show; one without dumps yet waits for a source."""
    if not isinstance(screen, ComparisonScreen):
        return True
    owner = screen.owner
    return not owner.is_aligning and (owner.session is None or owner.outcome is not None)


@asynccontextmanager
async def running(
    request: Request | None,
    size: tuple[int, int] = (120, 40),
    settings: Preferences | None = None,
    *,
    saves_state: bool = False,
    permissions: Permissions = ALL_PERMISSIONS,
) -> AsyncIterator[Running]:
    """The app on two dumps."""
    app = TensordiffApp(request, settings, saves_state=saves_state, permissions=permissions)
    async with app.run_test(size=size) as pilot:
        run = Running(app, pilot)
        await run.settle()
        yield run


def samples(**options: Path) -> Request:
    return Request(REFERENCE, CANDIDATE, **options)  # type: ignore[arg-type]
