"""When the app looks for garbage: not while keys come, which would wait for it."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest

from tensordiff.tui.threads import in_thread
from tests.tui.app_host import running, samples


async def test_garbage_is_not_collected_while_keys_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensordiff.tui.app.IDLE_COLLECTION_S", 1e6)
    collected: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        collected.extend([info["generation"]] * (phase == "stop"))

    async with running(samples()) as run:
        gc.callbacks.append(note)
        try:
            for typed, is_collected in ((True, False), (False, True)):
                if typed:
                    await run.press("down")
                gc.collect(0)
                collected.clear()
                run.app.collect_garbage()
                assert (2 in collected) == is_collected
            for _ in range(31):  # at last all the same
                await run.pilot.press("down")
                gc.collect(0)
                collected.clear()
                run.app.collect_garbage()
            assert 2 in collected
        finally:
            gc.callbacks.remove(note)


class Large:
    """What a thread works with."""


async def test_what_a_thread_worked_with_is_not_held_by_its_worker() -> None:
    async with running(samples()) as run:
        gc.disable()
        try:
            large = Large()
            held = weakref.ref(large)
            in_thread(run.app.screen, "test", partial(id, large))
            del large
            await run.app.workers.wait_for_complete([one for one in run.app.workers if one.group == "test"])
            assert held() is None
        finally:
            gc.enable()


async def test_much_garbage_is_collected_although_keys_come(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(samples()) as run:
        monkeypatch.setattr("tensordiff.util.garbage_collector._MOST_UNCOLLECTED", -1)
        await run.press("down")
        knot: list[object] = [Large()]
        knot.append(knot)
        held = weakref.ref(knot[0])
        del knot
        run.app.collect_garbage()
        assert held() is None
