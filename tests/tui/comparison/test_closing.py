"""Closing a comparison frees it: the screen, the session, its dumps and files, however it was used.

Held by weak references: what of the memory goes back to the system, and when, is for the allocator to say.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path
from weakref import ref

import pytest

from tensordiff.tui.comparison.screen import ComparisonScreen
from tensordiff.util import mappings
from tests.making import numbers, save
from tests.tui.app_host import CANDIDATE, REFERENCE, Running, running

USES = {
    "looked at": (),
    "used": ("n", "enter", "escape", "m", "space", "m", "s", "f", "+", "b", "escape", "question_mark", "question_mark"),
}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The app collects ten times a second, so that the tests need not wait for it."""
    monkeypatch.setattr("tensordiff.tui.app.IDLE_COLLECTION_S", 0.1)


async def open_one(run: Running, reference: Path = REFERENCE, candidate: Path = CANDIDATE) -> None:
    """Open a comparison on top of what is shown."""
    above = len(run.app.screen_stack)
    run.app.call_later(run.app.compare, reference, candidate)
    await run.until(lambda: len(run.app.screen_stack) > above and isinstance(run.app.screen, ComparisonScreen))


def held(run: Running) -> list[ref[object]]:
    """What a comparison holds that is large."""
    owner = run.owner
    assert owner.session is not None
    session = owner.session
    painted = run.table._styles_cache  # the lines of a widget as they were painted last
    parts = (run.screen, run.table, owner, session, session.dumps, owner.listing, painted)
    return [ref(part) for part in parts]


async def close(run: Running, parts: Sequence[ref[object]]) -> None:
    """Leave the screen, and wait for the collection of the app itself; nothing here helps it along."""
    assert isinstance(run.app.screen, ComparisonScreen)
    await run.pilot.press("q")
    await run.until(lambda: not any(part() is not None for part in parts))


@pytest.mark.parametrize("keys", USES.values(), ids=USES)
async def test_a_comparison_that_is_closed_is_freed(keys: Sequence[str]) -> None:
    async with running(None) as run:
        await open_one(run)
        await run.settle()
        await run.press(*keys)
        assert gc.get_freeze_count()  # out of the collector's reach: this is what held it
        await close(run, held(run))


async def test_one_that_is_closed_while_it_measures_is_freed() -> None:
    async with running(None) as run:
        await open_one(run)
        await run.until(lambda: run.owner.session is not None)
        await close(run, held(run))


async def test_files_are_closed_with_the_comparison(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    folder.mkdir()
    large = {f"layers.{k}": numbers(1 << 14) for k in range(4)}  # smaller files are read, not mapped
    one, other = (save(folder / f"{side}.safetensors", large) for side in ("reference", "candidate"))

    def mapped() -> int:
        files = (mapping() for mapping in mappings._mappings.copy())
        return sum(file is not None and str(folder) in file.path for file in files)

    async with running(None) as run:
        for _ in range(3):
            await open_one(run, one, other)
            await run.settle()
            assert mapped() == 2
            await close(run, held(run))
            assert mapped() == 0


async def test_the_one_below_stays_whole() -> None:
    async with running(None) as run:
        await open_one(run)
        await run.settle()
        below = held(run)
        # In a task of its own: Textual leaves in whichever task painted the list of screens below, here in the test's.
        await asyncio.create_task(_look_at_another(run))
        assert all(part() is not None for part in below) and run.verdict == "diverges"
        await asyncio.create_task(run.press("n"))
        assert run.name
        await close(run, below)


async def _look_at_another(run: Running) -> None:
    await open_one(run, CANDIDATE, REFERENCE)
    await run.settle()
    above = held(run)
    await run.pilot.press("q")
    await run.until(lambda: not any(part() is not None for part in above))
