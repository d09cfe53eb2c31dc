"""A tiny app around the layer screen, settled: every thread done and everything painted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from textual.app import App
from textual.pilot import Pilot

from tensordiff.compare.row import Row
from tensordiff.dump.dtypes import Array
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.tui.layer.pane import Pane
from tensordiff.tui.layer.screen import LayerScreen
from tests.making import SAMPLES, save
from tests.tui.waiting import settled, until

T = TypeVar("T")
P = TypeVar("P", bound="Pane[object]")
REFERENCE, CANDIDATE = SAMPLES / "reference", SAMPLES / "candidate"
CULPRIT = "layers.1.mlp.act_fn"


class Host(App[None]):
    """Shows one layer, and notes how it was left and what was asked."""

    def __init__(self, session: Session, name: str, rows: Sequence[Row] | None = None) -> None:
        super().__init__()
        self.session = session
        self.rows = list(session.rows() if rows is None else rows)
        self.at = next(k for k, row in enumerate(self.rows) if row.pair.name == name and not row.is_input)
        self.left: int | None = None
        self.asked: list[tuple[str, Row]] = []

    def on_mount(self) -> None:
        """Show it."""
        outcome = self.session.outcome(self.rows)
        self.push_screen(LayerScreen(self.session, self.rows, self.at, outcome), self._note)

    def _note(self, at: int | None) -> None:
        self.left = at

    def on_layer_screen_asked(self, message: LayerScreen.Asked) -> None:
        """Note it."""
        self.asked.append((message.what, message.row))


class Shown(NamedTuple):
    """The screen, and what tests do with it."""

    app: Host
    pilot: Pilot[None]

    @property
    def screen(self) -> LayerScreen:
        found = self.app.screen
        assert isinstance(found, LayerScreen)
        return found

    @property
    def text(self) -> str:
        """What the view shows."""
        return self.screen.pane.text()

    @property
    def facts(self) -> str:
        return self.screen.facts.text()

    async def settle(self) -> None:
        """Until no thread works, no message waits, and the view that is shown has its answer or says why not."""
        await settled(self.app, self.pilot)
        await until(self.pilot, lambda: not isinstance(self.app.screen, LayerScreen) or is_answered(self.screen.pane))
        await settled(self.app, self.pilot)

    async def press(self, *keys: str) -> str:
        await self.pilot.press(*keys)
        await self.settle()
        return self.text if isinstance(self.app.screen, LayerScreen) else ""

    async def show(self, view: str) -> str:
        self.screen.action_show(view)
        await self.settle()
        return self.text

    def said(self) -> str:
        return "\n".join(str(one.message) for one in self.app._notifications)


def is_answered(pane: Pane[object]) -> bool:
    """Whether a view shows the answer to its present question; one without room yet has not asked."""
    has_failed = pane.answer is None and pane.sentence.startswith("this view failed")
    return has_failed or (pane.is_whole and pane.asked == (pane.subject, pane.question()))


@asynccontextmanager
async def showing(
    session: Session, name: str = CULPRIT, size: tuple[int, int] = (120, 40), rows: Sequence[Row] | None = None
) -> AsyncIterator[Shown]:
    """The layer screen on one row."""
    app = Host(session, name, rows)
    async with app.run_test(size=size) as pilot:
        shown = Shown(app, pilot)
        await shown.settle()
        yield shown


def samples(**options: Path) -> Session:
    return Session.open(Request(REFERENCE, CANDIDATE, **options))  # type: ignore[arg-type]


def of(folder: Path, reference: Mapping[str, Array], candidate: Mapping[str, Array]) -> Session:
    """Two dumps with these tensors."""
    return Session.open(Request(save(folder / "a.safetensors", reference), save(folder / "b.safetensors", candidate)))


def wide(row: Row) -> tuple[Array, Array]:
    """Both sides of a row in float64, by numpy alone."""
    assert row.shape is not None
    ref, cand = (
        entry.read().astype(np.float64).reshape(row.shape) for entry in (row.pair.reference, row.pair.candidate)
    )
    return ref, cand
