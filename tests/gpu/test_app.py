"""The app's reruns with a candidate on a GPU: injection, another capture, operations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensordiff.session.request import Request
from tests.capture.models import run_here, script
from tests.gpu.programs import NET
from tests.tui.app_host import Running, running
from tests.tui.jobs.test_reruns import ended


@pytest.fixture
def dumps(tmp_path: Path) -> Request:
    source = f"py:{script(tmp_path, NET)}:"
    sides = [run_here(f"{source}{function}", tmp_path / function).path for function in ("right", "wrong")]
    return Request(*sides)


async def test_injection_and_another_capture(dumps: Request) -> None:
    async with running(dumps, (140, 40)) as run:
        await run.press("i", "enter")
        await ended(run)
        assert run.screen.reruns.mode() == "injected: rerun"
        errors = dict(zip(run.table.listing.labels, run.table.listing.column("injected"), strict=True))
        assert errors["scale"] == pytest.approx(0.5, rel=1e-3) and errors["last"] < 1e-5
        await run.press("c", "ctrl+s")
        await ended(run)
        assert "captured 8 tensors" in run.said()


async def test_operations(dumps: Request) -> None:
    async with running(dumps, (140, 40)) as run:
        first = run.screen
        run.table.reveal(run.table.listing.labels.index("scale"))
        await run.press("o")
        await run.until(lambda: _is_there(run, first))
        assert any("mul" in name for name in run.names)


def _is_there(run: Running, first: object) -> bool:
    return run.screen is not first and run.owner.outcome is not None
