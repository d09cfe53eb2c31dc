"""A screen that opens: it knows the terminal's size, and its widgets are given their styles once."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode

from tensordiff.tui.dialogs import Ask
from tests.tui.app_host import running, samples


async def test_styles_are_found_before_there_are_widgets_and_not_again(monkeypatch: pytest.MonkeyPatch) -> None:
    styled: list[int] = []
    update_nodes = Stylesheet.update_nodes

    def note(stylesheet: Stylesheet, nodes: Iterable[DOMNode], animate: bool = False) -> None:
        nodes = list(nodes)
        if isinstance(nodes[0], Ask):
            styled.append(len(nodes))
        update_nodes(stylesheet, nodes, animate)

    async with running(samples(), size=(80, 24)) as run:
        monkeypatch.setattr(Stylesheet, "update_nodes", note)
        await run.press("t")
        assert isinstance(run.app.screen, Ask)
        assert styled == [1]
        assert {"-narrow", "-short"} <= run.app.screen.classes


async def test_another_size_is_followed() -> None:
    async with running(samples(), size=(80, 24)) as run:
        await run.press("t")
        await run.pilot.resize_terminal(160, 48)
        await run.settle()
        assert {"-wide", "-tall"} <= run.app.screen.classes
        await run.press("escape")
        assert {"-wide", "-tall"} <= run.screen.classes
