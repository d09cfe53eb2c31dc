"""Waiting for an app under test: on what happens, not on the clock, and never for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from textual.app import App
from textual.pilot import Pilot

from tests.processes import PATIENCE_S

_LOOK_AGAIN_S = 0.005


async def settled(app: App[Any], pilot: Pilot[Any], *, ignoring: Collection[str] = ()) -> None:
    """Until no thread works, one that another replaced included, and no message waits."""
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(3):
            await pilot.pause()
            while not all(worker.is_finished or worker.group in ignoring for worker in app.workers):
                await asyncio.sleep(_LOOK_AGAIN_S)
        await pilot.pause()


async def until(pilot: Pilot[Any], is_so: Callable[[], object]) -> None:
    """Until something is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await pilot.pause(_LOOK_AGAIN_S)
