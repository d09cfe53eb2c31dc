"""When the app looks for garbage: not while keys come, which would wait for it."""

from __future__ import annotations

import gc

import pytest

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
