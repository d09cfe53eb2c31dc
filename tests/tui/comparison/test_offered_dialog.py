"""A session file beside the candidate: shown whole, and in force only after a yes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import Button, Static

from tensordiff.align.rules.file import parse_rules_text
from tensordiff.session.request import Request
from tensordiff.session.storage.state import SUFFIX, SessionState, read_state, session_path, write_state
from tensordiff.tui.comparison.offered_dialog import OfferedDialog
from tests.tui.app_host import CANDIDATE, REFERENCE, Running, running

RULES = parse_rules_text('[[tolerance]]\nmatch = "[red].[/red]|"\nrel_l2 = 1e9\n', "rules")
LOOSE = SessionState(rules=RULES, notes={"a": "[b]bold[/b] \x1b[2J"}, marks=("x",), filter="act_fn")


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    """Two dumps that diverge, as a colleague sent them: with a session that lets everything pass."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for path in (REFERENCE, CANDIDATE):
        shutil.copytree(path, tmp_path / "sent" / path.name)
    write_state(beside(tmp_path), LOOSE)
    return Request(tmp_path / "sent" / "reference", tmp_path / "sent" / "candidate")


def beside(folder: Path) -> Path:
    return folder / "sent" / f"candidate.vs.reference{SUFFIX}"


def shown(run: Running) -> str:
    """The dialog's text; it is there."""
    assert isinstance(run.app.screen, OfferedDialog)
    return "\n".join(str(one.render()) for one in run.app.screen.query(Static))


async def test_it_is_shown_whole_and_not_in_force(sent: Request, tmp_path: Path) -> None:
    async with running(sent, saves_state=True) as run:
        text = shown(run)
        for part in (str(beside(tmp_path)), "[red].[/red]|", "1e9", "[b]bold[/b] \\x1b[2J", "filter: act_fn"):
            assert part in text.replace("1000000000.0", "1e9")
        assert run.verdict == "diverges" and not run.table.marks


@pytest.mark.parametrize("keys", [("escape",), ("tab", "tab", "enter")], ids=["escape", "the button"])
async def test_a_no_leaves_it_and_is_remembered(sent: Request, tmp_path: Path, keys: tuple[str, ...]) -> None:
    before = beside(tmp_path).read_bytes()
    for is_first in (True, False):
        async with running(sent, saves_state=True) as run:
            if is_first:
                await run.press(*keys)
                assert "--session" in run.said()
            assert not isinstance(run.app.screen, OfferedDialog)
            assert run.verdict == "diverges" and run.owner.rules.tolerances == ()
    assert beside(tmp_path).read_bytes() == before
    write_state(beside(tmp_path), replace(LOOSE, filter="other"))
    async with running(sent, saves_state=True) as run:
        shown(run)


async def test_keys_that_mean_something_elsewhere_do_not_take_it(sent: Request) -> None:
    async with running(sent, saves_state=True) as run:
        await run.press("enter", "space", "n", "y", "i", "b", "j", "down", "end")
        assert isinstance(run.app.screen, OfferedDialog)
        assert run.verdict == "diverges"


@pytest.mark.parametrize("keys", [("ctrl+s",), ("tab", "enter")], ids=["ctrl+s", "the button"])
async def test_a_yes_takes_it_for_good(sent: Request, tmp_path: Path, keys: tuple[str, ...]) -> None:
    async with running(sent, saves_state=True) as run:
        await run.press(*keys)
        assert run.verdict == "agrees" and run.owner.rules == RULES
        assert run.table.marks == {"x"} and all("act_fn" in name for name in run.names)
    assert read_state(session_path(sent.reference, sent.candidate)).rules == RULES
    beside(tmp_path).unlink()
    async with running(sent, saves_state=True) as run:
        assert not isinstance(run.app.screen, OfferedDialog)
        assert run.verdict == "agrees" and run.owner.rules == RULES


async def test_one_that_is_named_is_taken_without_a_question(sent: Request, tmp_path: Path) -> None:
    write_state(beside(tmp_path), replace(LOOSE, filter=""))
    async with running(replace(sent, session=beside(tmp_path)), saves_state=True) as run:
        assert not isinstance(run.app.screen, OfferedDialog)
        assert run.verdict == "agrees"
        await run.press("space")
    assert read_state(beside(tmp_path)).marks != LOOSE.marks
    assert not session_path(sent.reference, sent.candidate).exists()


async def test_one_that_is_damaged_is_told_and_left(sent: Request, tmp_path: Path) -> None:
    beside(tmp_path).write_text("{")
    async with running(sent, saves_state=True) as run:
        assert "left as it is" in run.said() and not isinstance(run.app.screen, OfferedDialog)
    assert beside(tmp_path).read_text() == "{"


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (160, 48)])
async def test_the_buttons_are_on_the_screen_however_long_it_is(
    sent: Request, size: tuple[int, int], tmp_path: Path
) -> None:
    write_state(beside(tmp_path), replace(LOOSE, notes={f"layer {k}": "x" * 200 for k in range(300)}))
    async with running(sent, size, saves_state=True) as run:
        shown(run)
        for button in run.app.screen.query(Button):
            assert run.app.screen.region.contains_region(button.region)
