"""Patience for a busy machine: Textual's pilot gives up on a screen after half a minute."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from tests.processes import PATIENCE_S


@pytest.fixture(autouse=True)
def patient_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Pilot._wait_for_screen

    async def wait_longer(pilot: Pilot[object], timeout: float = PATIENCE_S) -> bool:
        return await wait(pilot, timeout)

    monkeypatch.setattr(Pilot, "_wait_for_screen", wait_longer)
