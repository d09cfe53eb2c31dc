"""The app as a visitor of serve has it: nothing is run, nothing is written, and every key says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input

from tensordiff.align.rules.rule import Rule
from tensordiff.session.request import Request
from tensordiff.session.storage.state import SessionState, read_state, write_state
from tensordiff.tui.comparison.export_dialog import Export, ExportChoice
from tensordiff.tui.dialogs import Choose
from tensordiff.tui.jobs.job_line import JobLine
from tensordiff.tui.permissions import NO_RERUNS, NO_WRITES, SPELLINGS, Permissions
from tensordiff.tui.rules.panel import RulesPanel
from tests.making import numbers, write
from tests.tui.app_host import INJECTED, running, samples

LOOKS, WRITES, RUNS = SPELLINGS.values()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from or written to the user's own folders."""
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DOWNLOAD_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def test_each_has_a_spelling() -> None:
    assert [may.spelled for may in (LOOKS, WRITES, RUNS)] == ["looks", "writes", "runs"]
    assert not LOOKS.writes and not LOOKS.reruns and WRITES.writes and not WRITES.reruns and all(RUNS)


@pytest.mark.parametrize("may", [LOOKS, WRITES])
@pytest.mark.parametrize("key", ["i", "c", "o", "ctrl+o"])
async def test_no_key_runs_a_model(key: str, may: Permissions, tmp_path: Path) -> None:
    values = {"a": numbers(2), "a.input": numbers(2)}
    sides = (write(tmp_path / name, values, source="py:evil.py:run", settings={}) for name in "rc")
    async with running(Request(*sides), permissions=may) as run:
        await run.press(key)
        assert NO_RERUNS in run.said()
        assert run.screen.query_one(JobLine).run is None and run.app.screen is run.screen


async def test_not_from_the_layer_and_not_by_name_either(tmp_path: Path) -> None:
    async with running(samples(), permissions=LOOKS) as run:
        run.screen.reruns.inject_at("all")
        await run.settle()
        assert NO_RERUNS in run.said()
        run.app.clear_notifications()
        await run.press("enter", "o")
        assert NO_RERUNS in run.said()


async def test_a_source_is_not_opened() -> None:
    async with running(Request(Path("py:evil.py:run"), Path("hf:gpt2")), permissions=LOOKS) as run:
        pass
    assert run.app.return_value == 2 and NO_RERUNS in run.app.sentence


async def test_the_start_screen_captures_nothing() -> None:
    async with running(None, permissions=LOOKS) as run:
        before = run.app.screen
        await run.press("c")
        assert run.app.screen is before and NO_RERUNS in run.said()


async def test_a_dump_beside_the_candidate_may_be_looked_at_but_no_rerun_is_offered() -> None:
    async with running(samples(), permissions=LOOKS) as run:
        await run.press("i")
        assert isinstance(run.app.screen, Choose)
        assert [name for name, _ in run.app.screen.choices] == ["take", "leave"]
        await run.press("enter")
        assert run.owner.request.injected == INJECTED


@pytest.mark.parametrize("path", ["/etc/report.md", "../report.md", "~/report.md"])
async def test_a_report_has_a_name_and_no_path(path: str) -> None:
    async with running(samples(), permissions=LOOKS) as run:
        await run.press("e")
        dialog = run.app.screen
        assert isinstance(dialog, Export)
        assert dialog.query_one(Input).value == "candidate-vs-reference.md"
        dialog.query_one(Input).value = path
        assert dialog.answer() == ExportChoice("all", Path("report.md"))
        await run.press("ctrl+s")
        assert NO_WRITES in run.said()  # on a terminal there is no browser that could take it
    assert list(Path.cwd().iterdir()) == [] and not Path("../report.md").exists()


async def test_rules_are_not_written_not_even_to_their_file(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("")
    async with running(samples(rules=rules), permissions=LOOKS) as run:
        await run.press("m")
        run.screen.query_one(RulesPanel).change(lambda book: book.added(Rule("both", "zz", "")))
        await run.settle()
        await run.press("w")
        assert NO_WRITES in run.said()
    assert rules.read_text() == ""


@pytest.mark.parametrize("may", [LOOKS, WRITES])
async def test_a_named_session_is_written_only_where_allowed(may: Permissions, tmp_path: Path) -> None:
    named = tmp_path / "session.json"
    write_state(named, SessionState(filter="mlp"))
    async with running(samples(session=named), saves_state=True, permissions=may) as run:
        assert all("mlp" in name for name in run.names)
        await run.press("space")
        assert (NO_WRITES in run.said()) is not may.writes
    assert bool(read_state(named).marks) is may.writes


async def test_a_damaged_session_that_was_named_is_left(tmp_path: Path) -> None:
    named = tmp_path / "session.json"
    named.write_text("{")
    async with running(samples(session=named), saves_state=True, permissions=LOOKS) as run:
        assert "left as it is" in run.said()
    assert named.read_text() == "{" and not list(tmp_path.glob("*.aside"))
