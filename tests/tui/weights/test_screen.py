"""Two checkpoints in the app: the verdicts and the words of ``tensordiff weights``, whatever way they were opened."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from textual.pilot import Pilot

from tensordiff.dump import open_dump
from tensordiff.session.request import Request
from tensordiff.tui.app import TensordiffApp
from tensordiff.tui.launch import Launch
from tensordiff.tui.permissions import ALL_PERMISSIONS, Permissions
from tensordiff.tui.weights.screen import WeightsScreen
from tensordiff.weights.comparison import WeightsOutcome, compare_weights
from tests.tui.app_host import running, samples
from tests.tui.waiting import settled, until
from tests.weights.making import llama, write_gguf, write_sharded

WIDE = 256
"""Columns that a superblock of GGUF's K types takes."""
NORM = "model.layers.1.input_layernorm.weight"


class Shown:
    """The app with the screen of two checkpoints."""

    def __init__(self, app: TensordiffApp, pilot: Pilot[int]) -> None:
        self.app, self.pilot = app, pilot

    @property
    def screen(self) -> WeightsScreen:
        assert isinstance(self.app.screen, WeightsScreen)
        return self.app.screen

    @property
    def outcome(self) -> WeightsOutcome:
        assert self.screen.outcome is not None
        return self.screen.outcome

    def text(self) -> str:
        """All that is painted."""
        return "\n".join(
            "".join(segment.text for segment in line) for line in self.app.screen._compositor.render_strips()
        )

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await settled(self.app, self.pilot)


@asynccontextmanager
async def shown(
    launch: Launch | Request, size: tuple[int, int] = (160, 40), permissions: Permissions = ALL_PERMISSIONS
) -> AsyncIterator[Shown]:
    app = TensordiffApp(launch, saves_state=False, permissions=permissions)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: isinstance(app.screen, WeightsScreen) and app.screen.outcome is not None)
        await settled(app, pilot)
        yield Shown(app, pilot)


def wide(seed: int) -> dict[str, np.ndarray]:
    """A Llama whose rows are as long as K types want them."""
    random = np.random.default_rng(seed)
    return {
        name: array if array.ndim < 2 else (random.standard_t(6, (array.shape[0], WIDE)) * 0.04).astype(np.float32)
        for name, array in llama(seed).items()
    }


@pytest.fixture
def quantized(tmp_path: Path) -> tuple[Path, Path]:
    """The same weights, in GGUF's Q4_K."""
    weights = wide(3)
    return write_sharded(weights, tmp_path / "hf"), write_gguf(weights, tmp_path / "model.gguf", "Q4_K")


@pytest.fixture
def wrong(tmp_path: Path) -> tuple[Path, Path]:
    """A norm scaled beneath a quantization."""
    weights = wide(3)
    scaled = weights | {NORM: weights[NORM] * 2}
    return write_sharded(weights, tmp_path / "hf"), write_gguf(scaled, tmp_path / "model.gguf", "Q4_K")


async def test_a_checkpoint_that_cannot_be_compared_ends_in_a_sentence(quantized: tuple[Path, Path]) -> None:
    app = TensordiffApp(Request(*quantized, step=1), saves_state=False)
    async with app.run_test() as pilot:
        await until(pilot, lambda: app._exit)
    assert "both sides are checkpoints, not runs; compare their parameters with tensordiff weights" in app.sentence


async def test_a_quantized_checkpoint_agrees_as_weights_says(quantized: tuple[Path, Path]) -> None:
    async with shown(Request(*quantized)) as run:
        assert (run.outcome.verdict, run.outcome.exit_status) == ("agrees", 0)
        text = run.text()
        assert "✓ agrees · ✓ 30 agrees" in text and "✗" not in text
        assert "float32→Q4_K" in text


async def test_the_same_verdicts_and_words_as_the_command(wrong: tuple[Path, Path]) -> None:
    async with shown(Launch(*wrong, lambda: Request(*wrong))) as run:
        reference, candidate = run.screen.sides
        expected = compare_weights(reference, candidate)
        assert expected.verdict == "diverges"
        assert [(row.name, row.verdict, row.sentence) for row in run.screen.list.all] == [
            (row.name, row.verdict, row.sentence) for row in expected.rows
        ]
        await run.press("n")
        assert run.screen.list.current is not None and run.screen.list.current.name in NORM
        text = run.text()
        assert "✗ diverges · ✓ 29 agrees · ✗ 1 diverges" in text and "2 times the reference" in text


async def test_the_start_screen_opens_them_too(quantized: tuple[Path, Path]) -> None:
    app = TensordiffApp(None, saves_state=False)
    async with app.run_test() as pilot:
        app.compare(*quantized)
        await until(pilot, lambda: isinstance(app.screen, WeightsScreen) and app.screen.outcome is not None)
        await pilot.press("q")
        await until(pilot, lambda: len(app.screen_stack) == 2)


async def test_a_dialog_that_was_open_meanwhile_goes(quantized: tuple[Path, Path]) -> None:
    async with running(samples()) as run:
        await run.press("t")
        request = Request(*quantized)
        run.app.show_parameters(run.screen, request, *map(open_dump, quantized))
        await until(run.pilot, lambda: isinstance(run.app.screen, WeightsScreen) and run.app.screen.outcome)
        assert len(run.app.screen_stack) == 2


async def test_only_what_differs_and_only_what_matches(wrong: tuple[Path, Path]) -> None:
    async with shown(Request(*wrong), (80, 24)) as run:
        await run.press("f")
        assert [row.name for row in run.screen.list.items] == [NORM.removeprefix("model.")]
        await run.press("f", "slash", *"!mlp", "enter")
        assert len(run.screen.list.items) == 21
        assert run.screen.list.has_focus
        await run.press("escape")
        assert len(run.screen.list.items) == 30


async def test_what_is_copied_and_exported(wrong: tuple[Path, Path], tmp_path: Path) -> None:
    async with shown(Request(*wrong)) as run:
        await run.press("n", "y")
        assert run.app.clipboard == NORM.removeprefix("model.")
        await run.press("Y")
        assert json.loads(run.app.clipboard)["verdict"] == "diverges"
        await run.press("e")
        await run.press("ctrl+a", "ctrl+k", *str(tmp_path / "out.json"), "enter")
        await until(run.pilot, (tmp_path / "out.json").is_file)
    written = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert (written["schema"], written["verdict"]) == ("tensordiff.weights/1", "diverges")


async def test_a_visitor_writes_no_file(wrong: tuple[Path, Path]) -> None:
    async with shown(Request(*wrong), permissions=Permissions(reruns=False, writes=False)) as run:
        await run.press("e")
        assert isinstance(run.app.screen, WeightsScreen)
        assert any("off under serve" in str(one.message) for one in run.app._notifications)
