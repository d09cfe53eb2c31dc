"""One map teaches: the rule that it implies for other layers is offered, with what the values say to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from tensordiff.align.rules.rule import Rule
from tensordiff.session.session import Session
from tensordiff.tui.rules.lesson_screen import LessonScreen
from tests.tui.rules.panel_host import Host, opened, orphan, said
from tests.tui.waiting import settled, until

PREFIX = Rule("candidate", r"^gpt\.cells\.([0-9])", r"layers.\1")


def with_other_blocks(name: str) -> str:
    """All blocks in a container that no preset knows."""
    return name.replace("model.layers.layers.", "gpt.cells.")


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return opened(tmp_path, with_other_blocks)


async def map_one(app: Host, pilot: Pilot[None]) -> None:
    """Map one layer by pointing at it on both sides."""
    await settled(app, pilot)
    app.panel.orphans.focus()
    for side, part in (("reference", "0.self_attn.o_proj-output"), ("candidate", "0.self_attn.o_proj-output")):
        app.panel.orphans.move(orphan(app, side, part))
        await pilot.press("enter")
    await settled(app, pilot)
    await pilot.press("ctrl+l")
    await until(pilot, lambda: isinstance(app.screen, LessonScreen))
    await pilot.pause()


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_one_map_teaches_how_all_blocks_are_called(session: Session, size: tuple[int, int]) -> None:
    app = Host(session)
    async with app.run_test(size=size) as pilot:
        await map_one(app, pilot)
        screen = app.screen
        assert isinstance(screen, LessonScreen) and screen.lesson.rules == (PREFIX,)
        assert "gpt" in said(app, ".rule") and "layers." in said(app, ".rule")
        count, confirmed = len(screen.lesson.pairs), screen.lesson.confirmed
        assert count > 20 and confirmed == count, "the sample is healthy"
        assert f"{count} more pairs; the values confirm {confirmed} of the {count} looked at" in said(app, "#does")
        shown = [button for button in screen.query("Button") if screen.region.contains_region(button.region)]
        assert len(shown) == 2, "both answers are on the screen"
        await pilot.press("ctrl+s")
        await settled(app, pilot)
        assert app.panel.book.rules.rules == (PREFIX,) and len(app.panel.book.rules.maps) == 1
        assert len(app.aligned[-1].alignment.pairs) >= len(session.alignment.pairs) + count


async def test_it_can_be_declined(session: Session) -> None:
    app = Host(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await map_one(app, pilot)
        await pilot.press("escape")
        await settled(app, pilot)
        assert not app.panel.book.rules.rules and len(app.panel.book.rules.maps) == 1


async def test_a_map_that_implies_nothing_asks_nothing(tmp_path: Path) -> None:
    app = Host(opened(tmp_path, lambda name: name.replace("layers.0.self_attn.o_proj", "layers.0.self_attn.merge")))
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(app, pilot)
        app.panel.orphans.focus()
        for side, part in (("reference", "0.self_attn.o_proj-output"), ("candidate", "0.self_attn.merge-output")):
            app.panel.orphans.move(orphan(app, side, part))
            await pilot.press("enter")
        await settled(app, pilot)
        await pilot.press("ctrl+l")
        await settled(app, pilot)
        assert len(app.panel.book.rules.maps) == 1 and not isinstance(app.screen, LessonScreen)
