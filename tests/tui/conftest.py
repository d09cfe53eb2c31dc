"""Patience for a busy machine: Textual's pilot gives up after half a minute, and a notification goes after seconds."""

from __future__ import annotations

import pytest
from textual.notifications import Notification
from textual.pilot import Pilot

from tests.processes import PATIENCE_S


@pytest.fixture(autouse=True)
def patient_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Pilot._wait_for_screen

    async def wait_longer(pilot: Pilot[object], timeout: float = PATIENCE_S) -> bool:
        return await wait(pilot, timeout)

    monkeypatch.setattr(Pilot, "_wait_for_screen", wait_longer)


@pytest.fixture(autouse=True)
def notifications_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Notification, "time_left", float(PATIENCE_S))
