"""Comparisons opened, used and closed in the app: whatever was done with one, nothing of it stays.

A case is one visit: a comparison is opened on top of the start screen, keys are pressed at random, and it is closed. By
weak references it must be gone then, and its files closed. Over all cases of a process the memory must settle.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import ref

import numpy as np
from textual.pilot import Pilot

from tensordiff.dump.native.writer import DumpWriter
from tensordiff.tui.app import TensordiffApp
from tensordiff.tui.comparison.screen import ComparisonScreen
from torture.part import Check
from torture.processes import descriptors, memory_mb

_SIZES = (20, 500, 5_000, 20_000)
"""Pairs of a dump."""
_KEYS = (
    "n", "N", "j", "k", "down", "up", "pagedown", "end", "home", "s", "f", "m", "space", "u", "plus", "minus", "t",
    "question_mark", "g", "z", "tab", "right", "left", "enter", "escape", "p",
)  # fmt: skip
_PATIENCE_S = 90.0
_WARM_CASES = 6
"""After these, imports and caches are filled, and what is free of the heap serves the next ones."""
_MOST_GROWTH_MB = 120.0


@contextmanager
def opened(folder: Path) -> Iterator[Check]:
    """Write dumps of several sizes; what was seen in earlier cases is kept to compare with."""
    pairs = {size: _dumps(folder / str(size), size) for size in _SIZES}
    memory: list[float] = []

    def check(rng: random.Random) -> list[str]:
        files = descriptors(os.getpid())
        found = asyncio.run(_visit(rng, *pairs[rng.choice(_SIZES)]))
        after = descriptors(os.getpid())
        if after > files:
            found.append(f"{after - files} more files are open than before")
        memory.append(memory_mb(os.getpid()))
        warm = max(memory[:_WARM_CASES])
        if len(memory) > _WARM_CASES and memory[-1] > warm + _MOST_GROWTH_MB:
            found.append(f"memory grew from {warm:.0f} to {memory[-1]:.0f} MB in {len(memory)} cases")
        return found

    yield check


def _dumps(folder: Path, pairs: int) -> tuple[Path, Path]:
    rng = np.random.default_rng(pairs)
    sides = folder / "reference", folder / "candidate"
    arrays = [rng.standard_normal((4, 8)).astype("f4") for _ in range(pairs)]
    for side, error in zip(sides, (0.0, 1e-2), strict=True):
        with DumpWriter(side, {}, durable=False) as writer:
            for k, array in enumerate(arrays):
                writer.add(f"layers.{k // 4}.mlp.{'abcd'[k % 4]}", array * np.float32(1 + error * (k % 97 == 50)))
    return sides


async def _visit(rng: random.Random, reference: Path, candidate: Path) -> list[str]:
    app = TensordiffApp(None, saves_state=False)
    async with app.run_test(size=(rng.randint(60, 200), rng.randint(15, 60))) as pilot:
        for _ in range(rng.randint(1, 3)):
            parts = await asyncio.create_task(_use(rng, app, pilot, reference, candidate))
            if parts is None:
                return ["a key ended the app, or it did not come back to the start"]
            if not await _waited(pilot, lambda parts=parts: not any(part() is not None for part in parts)):
                held = [type(part()).__name__ for part in parts if part() is not None]
                return [f"closed, and still held after {_PATIENCE_S:.0f} s: {', '.join(held)}"]
    return []


async def _use(
    rng: random.Random, app: TensordiffApp, pilot: Pilot[int], reference: Path, candidate: Path
) -> list[ref[object]] | None:
    """Open, press keys, close; weak references to what must be gone.

    In a task of its own, for Textual leaves in a task what it painted there.
    """
    app.call_later(app.compare, reference, candidate)
    if not await _waited(pilot, lambda: isinstance(app.screen, ComparisonScreen)):
        return None
    screen = app.screen
    assert isinstance(screen, ComparisonScreen)  # noqa: S101 - waited for
    if rng.random() < 0.8:  # else it is used, or closed, while it opens
        await _waited(pilot, lambda: screen.owner.outcome is not None)
    await pilot.press(*rng.choices(_KEYS, k=rng.randint(0, 12)))
    parts = [screen, screen.owner, screen.owner.listing, *([screen.owner.session] if screen.owner.session else [])]
    references: list[ref[object]] = [ref(part) for part in parts]
    del parts
    for _ in range(20):
        if len(app.screen_stack) <= 2:
            return references
        await pilot.press("escape", "escape")
        if isinstance(app.screen, ComparisonScreen) or len(app.screen_stack) > 3:
            await pilot.press("q")
        await pilot.pause(0.05)
    return None


async def _waited(pilot: Pilot[int], is_so: object) -> bool:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while not is_so():  # type: ignore[operator]
                await pilot.pause(0.02)
    except TimeoutError:
        return False
    return True
