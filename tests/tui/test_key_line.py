"""The line of keys: what it shows, greys, does when clicked, and that it follows what can be done."""

from __future__ import annotations

from pathlib import Path

from textual import events

from tensordiff.session.request import Request
from tensordiff.tui.key_line import KeyLine
from tests.making import numbers, write
from tests.tui.app_host import Running, running, samples


def line(run: Running) -> KeyLine:
    return run.app.screen.query_one(KeyLine)


def enabled(run: Running) -> dict[str, bool]:
    return {one.label: one.bound.enabled for one in line(run).shown()}


def place(run: Running, label: str) -> tuple[int, int]:
    return next(one.begin for one in line(run).shown() if one.label == label) + 1, 0


def nothing_paired(folder: Path) -> Request:
    """Two dumps with no name, shape or value in common: there is nothing to search."""
    return Request(write(folder / "a", {"a-output": numbers(3)}), write(folder / "b", {"b-output": numbers(5, seed=1)}))


async def test_it_shows_the_keys_of_the_focused_part() -> None:
    async with running(samples(), (160, 40)) as run:
        text = line(run).render_line(0).text
        assert text.startswith(" ⏎ open  n next fault  s sort ") and len(text) == 160
        await run.press("b")
        assert "good" in enabled(run) and "sort" not in enabled(run)


async def test_it_greys_what_cannot_be_done(tmp_path: Path) -> None:
    async with running(nothing_paired(tmp_path), (160, 40)) as run:
        assert enabled(run)["filter"] and not enabled(run)["bisect"]
        dims = {segment.text.strip(): bool(segment.style and segment.style.dim) for segment in line(run).render_line(0)}
        assert dims["bisect"] and not dims["filter"]


async def test_cancel_is_shown_only_while_something_runs_and_says_so_when_pressed() -> None:
    async with running(samples(), (200, 40)) as run:
        assert "cancel" not in enabled(run)
        await run.press("x")
        assert run.said() == "nothing is running"


async def test_a_click_does_it() -> None:
    async with running(samples(), (160, 40)) as run:
        await run.pilot.click(KeyLine, offset=place(run, "sort"))
        await run.settle()
        assert run.table.how.by == "layer"


async def test_a_click_on_a_greyed_one_does_nothing(tmp_path: Path) -> None:
    async with running(nothing_paired(tmp_path), (160, 40)) as run:
        before = run.said()
        await run.pilot.click(KeyLine, offset=place(run, "bisect"))
        await run.settle()
        assert run.said() == before


async def test_pointing_tells_what_a_key_does() -> None:
    async with running(samples(), (160, 40)) as run:
        await run.pilot.hover(KeyLine, offset=place(run, "sort"))
        assert line(run).tooltip == "Sort by the next column"
        lit = [segment.text.strip() for segment in line(run).render_line(0) if _background(segment) != _plain(run)]
        assert lit == ["s", "sort"]
        line(run).post_message(events.Leave(line(run)))
        await run.pilot.pause()
        assert line(run).tooltip is None


def _background(segment: object) -> object:
    return getattr(getattr(segment, "style", None), "bgcolor", None)


def _plain(run: Running) -> object:
    return line(run).rich_style.bgcolor


async def test_the_wheel_shows_keys_that_there_is_no_room_for() -> None:
    async with running(samples(), (80, 24)) as run:
        text = line(run).render_line(0).text
        assert "bisect" not in text and text.endswith(" ?  ^p  q ") and len(text) == 80
        await _turn(run, events.MouseScrollDown)
        assert line(run).render_line(0).text.split() == ["b", "bisect", "?", "^p", "q"]
        await _turn(run, events.MouseScrollUp)
        assert line(run).render_line(0).text.startswith(" ⏎ open ")


async def test_where_there_is_room_for_all_the_wheel_changes_nothing() -> None:
    async with running(samples(), (160, 40)) as run:
        before = line(run).render_line(0).text
        await _turn(run, events.MouseScrollDown)
        assert line(run).render_line(0).text == before and before.rstrip().endswith("q back")


async def test_a_key_that_stays_by_itself_can_be_clicked() -> None:
    async with running(samples(), (80, 24)) as run:
        await run.pilot.click(KeyLine, offset=(74, 0))
        await run.settle()
        assert type(run.app.screen).__name__ == "CommandPalette"


async def _turn(run: Running, kind: type[events.MouseScrollDown] | type[events.MouseScrollUp]) -> None:
    """Turn the wheel as far as it goes."""
    for _ in range(20):
        line(run).post_message(kind(line(run), 1, 0, 0, 0, 0, False, False, False))
    await run.pilot.pause()


async def test_without_the_focus_the_keys_stay_and_go_on_to_tell_the_truth() -> None:
    async with running(samples(), (160, 40)) as run:
        run.app.post_message(events.AppBlur())
        await run.settle()
        assert run.screen.focused is None and "sort" in enabled(run) and enabled(run)["export"]
        outcome, run.owner.outcome = run.owner.outcome, None
        run.screen.refresh_bindings()
        await run.until(lambda: not enabled(run)["export"])
        assert "sort" in enabled(run)
        run.owner.outcome = outcome
        run.app.post_message(events.AppFocus())
        await run.settle()
        assert "sort" in enabled(run)
