"""The app, where a file becomes shorter while it is open: rows and notifications, and the app goes on."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tensordiff.compare import comparer
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.measure.dispatch import MeasureInput, measure_many
from tensordiff.session.request import Request
from tensordiff.tui.threads import in_thread
from tests.making import numbers, save
from tests.tui.app_host import running

TENSORS = {f"layers.{k}.mlp-output": numbers(200, 200, seed=k) for k in range(6)}


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    return Request(*(save(tmp_path / f"{name}.safetensors", TENSORS) for name in "rc"))


async def test_while_it_is_measured(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_first(inputs: Iterable[MeasureInput], **options: Any) -> list[Diff]:
        held = list(inputs)
        os.truncate(request_.candidate, 8192)
        return measure_many(held, **options)

    monkeypatch.setattr(comparer, "measure_many", cut_first)
    async with running(request_) as run:
        assert run.verdict == "unknown"
        assert run.owner.outcome is not None
        assert all("became shorter" in row.verdict.why for row in run.owner.outcome.rows)


async def test_while_something_else_looks_at_it(request_: Request) -> None:
    async with running(request_) as run:
        assert run.verdict == "agrees"
        session = run.owner.session
        assert session is not None
        array = session.candidate.entries[3].read()
        os.truncate(request_.candidate, 8192)
        in_thread(run.table, "tree", lambda: array.sum())
        await run.settle()
        assert "c.safetensors: became shorter while it was read: 8,192 of" in run.said()
        await run.press("enter")  # the layer, which is read again
        assert run.app.is_running
