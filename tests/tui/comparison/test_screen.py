"""Bisect, rules, injection, export, reload, the session file, failures: what changes more than the view."""

from __future__ import annotations

import json
import shutil
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Button, Input, RadioButton, RadioSet, Static

from tensordiff.align.rules.file import read_rules_file
from tensordiff.align.rules.rule import Rule
from tensordiff.dump.native.writer import DumpWriter
from tensordiff.session.request import Request
from tensordiff.session.storage.preferences import Preferences
from tensordiff.session.storage.state import session_path
from tensordiff.tui.comparison import bisect_bar
from tensordiff.tui.comparison.bisect_bar import BisectBar
from tensordiff.tui.comparison.export_dialog import Export
from tensordiff.tui.dialogs import Ask, Choose
from tensordiff.tui.jobs.job_line import JobLine
from tensordiff.tui.key_help import KeyHelpScreen
from tensordiff.tui.keys import KEYS
from tensordiff.tui.layer.screen import LayerScreen
from tensordiff.tui.rules.panel import RulesPanel
from tensordiff.tui.start import StartScreen
from tensordiff.tui.table.summary import Summary
from tensordiff.tui.threads import in_thread
from tests.making import numbers, write
from tests.tui.app_host import CANDIDATE, CASES, CULPRIT, INJECTED, REFERENCE, Running, running, samples


@pytest.fixture
def copied(tmp_path: Path) -> Request:
    """The samples where they may be changed, with nothing beside them."""
    for path in (REFERENCE, CANDIDATE):
        shutil.copytree(path, tmp_path / path.name)
    return Request(tmp_path / "reference", tmp_path / "candidate")


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is read from or written to the user's own folders."""
    folder = tmp_path_factory.mktemp("home")
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(folder))
    return folder


# --- bisect --------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [5_000, 0], ids=["at once", "in a thread"])
async def test_bisect_by_hand(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(bisect_bar, "_AT_ONCE", at_once)
    async with running(samples()) as run:
        await run.press("b")
        bar = run.screen.query_one(BisectBar)
        assert bar.has_focus
        assert bar.bisect and bar.bisect.probe is not None
        first = bar.bisect.probe
        assert len(run.table.suspects) == len(bar.bisect.points)
        await run.press("g")
        assert bar.bisect.marks[0] == ("good", first)
        assert first not in bar.bisect.suspects
        assert len(run.table.suspects) == len(bar.bisect.suspects) < len(bar.bisect.points)
        await run.press("b", "s", "u", "u", "u")
        assert len(run.table.suspects) == len(bar.bisect.points)
        await run.press("r")
        assert not bar.has_class("-shown")
        assert run.table.has_focus
        assert not run.table.suspects


@pytest.mark.parametrize("at_once", [5_000, 0], ids=["at once", "in a thread"])
async def test_a_search_of_other_pairs_is_ended_and_said(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(bisect_bar, "_AT_ONCE", at_once)
    async with running(samples()) as run:
        run.screen.search_again("good 3 somebody.else\n")
        await run.settle()
        bar = run.screen.query_one(BisectBar)
        assert bar.bisect is None and not bar.is_busy and not bar.has_class("-shown")
        assert "the search is ended: line 1: number 3 is" in run.said()


async def test_bisect_by_itself_states_its_answer_and_evidence() -> None:
    async with running(samples()) as run:
        await run.press("b", "a")
        told = str(run.screen.query_one(BisectBar).render())
        assert f"First bad: #57 {CULPRIT}: rel_l2 8.3e-02" in told
        assert "answers; assuming that everything before" in told
        assert run.name == CULPRIT
        assert list(run.table.suspects) == [57]
        await run.press("l")
        assert "bad 57" in str(run.screen.query_one(BisectBar).render())
        await run.press("enter")
        assert isinstance(run.app.screen, LayerScreen)


async def test_a_contradiction_is_told_not_raised() -> None:
    async with running(samples()) as run:
        await run.press("b", "a", "g")
        assert "undo" in run.said()


async def test_escape_goes_from_the_bar_to_the_table_and_then_ends_the_search() -> None:
    async with running(samples()) as run:
        await run.press("b", "escape")
        assert run.table.has_focus
        assert run.screen.query_one(BisectBar).bisect is not None
        await run.press("escape")
        assert run.screen.query_one(BisectBar).bisect is None


# --- layers, rules, injection --------------------------------------------------------------------


async def test_enter_opens_the_layer_and_the_cursor_follows() -> None:
    async with running(samples()) as run:
        run.screen.action_culprit(1)
        await run.press("enter")
        assert isinstance(run.app.screen, LayerScreen)
        run.app.screen.dismiss(59)
        await run.settle()
        assert run.name == "layers.1.mlp.up_proj"


async def test_the_rules_panel_realigns_and_the_cursor_stays() -> None:
    if not CASES.is_dir():
        pytest.skip("the cases are not beside this checkout")
    async with running(Request(CASES / "llama" / "torch", CASES / "llama" / "max"), (160, 48)) as run:
        await run.press("m")
        panel = run.screen.query_one(RulesPanel)
        assert panel.rules.has_focus
        at = next(k for k, name in enumerate(run.names) if name == "layers.1.mlp")
        run.table.move(at)
        before = len(run.table.listing)
        pair = run.screen.pane.pair
        session = run.owner.session
        assert session is not None and pair is not None
        panel.change(lambda book: book.added(Rule("both", "nothing like it", "x")))
        await run.settle()
        assert run.owner.session is not session
        assert run.name == "layers.1.mlp"
        assert len(run.table.listing) == before == run.table.listing.measured
        await run.press("escape")
        assert run.table.has_focus


async def test_the_panel_and_the_table_each_say_what_is_under_their_cursor() -> None:
    async with running(samples(), (160, 48)) as run:
        run.screen.action_culprit(1)
        await run.press("m")
        panel = run.screen.query_one(RulesPanel).query_one("#line-about", Static)
        assert panel.size.height == 3 and "preset hf" in str(panel.render())
        assert "diverges" in str(run.screen.pane.query_one("#about", Static).render())


RULE = Rule("candidate", r"\bup_proj$", "renamed")
"""Leaves layers without a partner, so that it shows whether it is in force."""


async def edited(run: Running) -> RulesPanel:
    """The rules panel, with a rule more than any file has."""
    if not run.screen.query(RulesPanel):
        await run.press("m")
    panel = run.screen.query_one(RulesPanel)
    panel.change(lambda book: book.added(RULE))
    return panel


@pytest.mark.parametrize("is_panel_open", [False, True])
async def test_a_tolerance_outlives_an_edit_of_the_rules(is_panel_open: bool) -> None:
    async with running(samples()) as run:
        if is_panel_open:
            await run.press("m")
        run.screen.judge_by(1e3)
        await run.settle()
        assert run.verdict == "agrees"
        await edited(run)
        await run.settle()
        session = run.owner.session
        assert session is not None and session.rules.rules == (RULE,)
        assert (session.comparer.limits.threshold, session.request.limits.threshold) == (1e3, 1e3)
        assert run.verdict == "agrees"


async def test_a_tolerance_given_while_rules_are_being_aligned_counts() -> None:
    async with running(samples()) as run:
        await edited(run)
        run.screen.judge_by(1e3)
        await run.settle()
        session = run.owner.session
        assert session is not None and session.rules.rules == (RULE,)
        assert run.screen.query_one(RulesPanel).session.comparer.limits.threshold == 1e3
        assert run.verdict == "agrees"


async def test_a_search_goes_on_by_the_tolerance_that_is_given() -> None:
    async with running(samples()) as run:
        await run.press("b")
        run.screen.judge_by(1e3)
        await run.settle()
        oracle = run.screen.query_one(BisectBar).oracle
        assert oracle is not None and oracle.comparer.limits.threshold == 1e3
        assert {row.verdict.name for row in oracle.rows.values()} <= {"agrees"}


@pytest.mark.parametrize("is_aligned", [True, False], ids=["aligned", "being aligned"])
async def test_rules_that_were_written_are_those_of_the_screen(tmp_path: Path, is_aligned: bool) -> None:
    async with running(replace(samples(), learn=False)) as run:
        before = len(run.table.listing)
        panel = await edited(run)
        if is_aligned:
            await run.settle()
        await run.press("w")
        run.app.screen.query_one(Input).value = str(tmp_path / "rules.toml")
        await run.press("enter")
        for _ in range(2):
            session = run.owner.session
            assert session is not None and session.request == run.owner.request
            assert session.request.rules == tmp_path / "rules.toml"
            assert session.rules == session.saved_rules == read_rules_file(tmp_path / "rules.toml") == panel.book.rules
            assert len(run.table.listing) < before and run.verdict == "diverges"
            await run.press("ctrl+r")


async def test_rules_written_at_once_after_an_edit_are_aligned_by(tmp_path: Path) -> None:
    request = replace(samples(), rules=tmp_path / "rules.toml", learn=False)
    (tmp_path / "rules.toml").touch()
    async with running(request) as run:
        before = len(run.table.listing)
        await run.press("m")
        panel = run.screen.query_one(RulesPanel)
        panel.change(lambda book: book.added(RULE))
        panel.rules.action_write()
        await run.settle()
        session = run.owner.session
        assert session is not None and session.rules == session.saved_rules == panel.book.rules
        assert session.rules.rules == (RULE,) and len(run.table.listing) < before


async def test_an_injected_dump_beside_the_candidate_is_shown_and_taken_when_told() -> None:
    async with running(samples()) as run:
        assert "injected" not in [placed.column.id for placed in run.table.placed]
        await run.press("i")
        assert isinstance(run.app.screen, Choose) and run.app.screen.why.startswith(str(INJECTED))
        injected = [run.owner.request.injected]
        for keys in (("escape",), ("i", "end", "enter"), ("i", "enter")):
            await run.press(*keys)
            injected.append(run.owner.request.injected)
        assert injected == [None, None, None, INJECTED]
        assert "injected" in [placed.column.id for placed in run.table.placed]
        assert "candidate_injected" in run.screen.reruns.mode()
        await run.press("i")
        assert "injected" not in [placed.column.id for placed in run.table.placed]
        await run.press("i")
        at = run.table.listing.labels.index("layers.1.mlp.down_proj")
        assert run.table.listing.column("injected")[at] < 1e-6 < run.table.listing.column("rel_l2")[at]


@pytest.mark.parametrize("key", ["i", "c", "o", "ctrl+o"])
async def test_what_cannot_be_run_says_why(key: str, tmp_path: Path) -> None:
    reference, candidate = (write(tmp_path / name, {"a": numbers(2)}) for name in "rc")
    async with running(Request(reference, candidate)) as run:
        await run.press(key)
        assert "does not say which source made it" in run.said()


async def test_greyed_keys_say_why() -> None:
    async with running(samples()) as run:
        assert run.screen.active_bindings["x"].enabled is False
        await run.press("x")
        assert "nothing is running" in run.said()


# --- export --------------------------------------------------------------------------------------


async def export(run: Running, path: Path, scope: int, form: int) -> None:
    await run.press("e")
    dialog = run.app.screen
    assert isinstance(dialog, Export)
    list(dialog.query_one("#scope", RadioSet).query(RadioButton))[scope].value = True
    list(dialog.query_one("#format", RadioSet).query(RadioButton))[form].value = True
    await run.settle()
    field = dialog.query_one(Input)
    field.value = str(path.with_suffix(Path(field.value).suffix))
    await run.press("ctrl+s")


async def test_export_of_all_the_marked_and_the_selected(tmp_path: Path) -> None:
    async with running(samples()) as run:
        run.screen.action_culprit(1)
        run.table.action_mark()
        run.table.action_mark()
        run.screen.action_culprit(-1)
        await run.settle()
        for scope, count in enumerate((76, 2, 1)):
            await export(run, tmp_path / f"r{scope}", scope, 3)
            assert len(json.loads((tmp_path / f"r{scope}.json").read_text())["pairs"]) == count
            assert str(tmp_path / f"r{scope}.json") in run.said()


async def test_export_shows_its_keys_also_where_it_asks_before_overwriting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (there := tmp_path / "candidate-vs-reference.md").write_text("mine")
    async with running(samples(), (80, 24)) as run:
        await run.press("e", "ctrl+s")
        dialog = run.app.screen
        assert isinstance(dialog, Export)
        assert dialog.query_one(Input).value == "~/candidate-vs-reference.md"
        assert "accept again to overwrite it" in str(dialog.query_one("#wrong", Static).render())
        frame = dialog.query_one(Vertical).content_region
        assert all(frame.contains_region(button.region) for button in dialog.query(Button))
        assert there.read_text() == "mine"
        await run.press("ctrl+s")
        await run.settle()
        assert CULPRIT in there.read_text("utf-8")


@pytest.mark.parametrize("suffix", [".md", ".txt", ".csv"])
async def test_export_formats(tmp_path: Path, suffix: str) -> None:
    async with running(samples()) as run:
        await export(run, tmp_path / "r", 0, (".md", ".html", ".txt", ".json", ".csv", ".png").index(suffix))
        assert CULPRIT in (tmp_path / f"r{suffix}").read_text()


async def test_a_report_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with running(samples()) as run:
        await export(run, tmp_path / "file" / "r", 0, 0)
        assert "cannot be written" in run.said()


async def test_a_report_is_named_after_the_pair_and_not_written_over_another_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    there = tmp_path / "candidate-vs-reference.md"
    there.write_text("mine")
    async with running(samples()) as run:
        await run.press("e", "ctrl+s")
        assert isinstance(dialog := run.app.screen, Export)
        assert dialog.query_one(Input).value == str(there)
        assert there.read_text() == "mine"
        await run.press("ctrl+s")
        await run.settle()
        assert CULPRIT in there.read_text("utf-8")


async def test_notes_are_in_a_report(tmp_path: Path) -> None:
    async with running(samples()) as run:
        run.screen.action_culprit(1)
        await run.press("quotation_mark", *"seen", "enter")
        await export(run, tmp_path / "r", 0, 0)
        assert "- `layers.1.mlp.act_fn`: seen" in (tmp_path / "r.md").read_text("utf-8")


# --- the end -------------------------------------------------------------------------------------


async def test_at_the_end_of_a_demo_it_says_where_the_samples_are() -> None:
    async with running(samples(), saves_state=False) as run:
        run.app.leave(0)
    assert [line.split()[0] for line in run.app.farewell()] == ["reference", "candidate", "open"]


async def test_at_the_end_it_says_where_everything_is(copied: Request) -> None:
    async with running(copied, saves_state=True) as run:
        run.table.action_mark()
        await run.settle()
        run.app.leave(0)
    lines = run.app.farewell()
    assert [line.split()[0] for line in lines] == ["reference", "candidate", "session", "open"]
    assert lines[-1] == f"open again tensordiff {copied.reference} {copied.candidate}"


async def test_rules_are_focused_and_not_hidden_by_their_number() -> None:
    async with running(samples()) as run:
        for _ in range(2):
            await run.press("3")
            assert run.screen.side.is_shown and run.screen.side.has_keys


async def test_rules_that_were_asked_for_before_the_dumps_are_open_appear_with_them() -> None:
    async with running(samples(), (80, 24)) as run:
        run.screen.side.open(None, run.owner.book, None)
        await run.settle()
        assert not run.screen.query(RulesPanel)
        run.screen._show_in_panel()
        await run.settle()
        assert run.screen.query(RulesPanel) and run.screen.side.has_keys


async def test_the_table_s_number_uncovers_it_where_the_rules_cover_it() -> None:
    async with running(samples(), (80, 24)) as run:
        await run.press("3")
        assert not run.table.region
        await run.press("1")
        assert run.table.region and run.table.has_focus and not run.screen.side.is_shown


# --- the disk ------------------------------------------------------------------------------------


async def test_a_changed_dump_is_noticed_and_read_again(copied: Request) -> None:
    async with running(copied) as run:
        shutil.rmtree(copied.candidate)
        shutil.copytree(REFERENCE, copied.candidate)
        run.owner.look_at_disk()
        await run.app.workers.wait_for_complete()
        await run.settle()
        assert "ctrl+r" in run.said()
        assert run.verdict == "diverges"
        await run.press("ctrl+r")
        assert run.verdict == "agrees"


async def test_a_dump_still_being_written_is_followed(tmp_path: Path) -> None:
    reference = write(tmp_path / "r", {"a": numbers(4), "b": numbers(4), "c": numbers(4)})
    async with AsyncExitStack() as stack:
        writer = DumpWriter(tmp_path / "c", {})
        with writer:
            writer.add("a", numbers(4))
            writer.add("b", numbers(4))
            run = await stack.enter_async_context(running(Request(reference, tmp_path / "c")))
            assert len(run.table.listing) == 2
            assert "still being written" in str(run.screen.query_one(Summary).render())
            writer.add("c", numbers(4))
        run.owner.look_at_disk()
        await run.app.workers.wait_for_complete()
        await run.settle()
        assert len(run.table.listing) == 3
        assert "still being written" not in str(run.screen.query_one(Summary).render())


# --- coming back ---------------------------------------------------------------------------------


async def test_marks_columns_notes_and_search_come_back(copied: Request) -> None:
    async with running(copied, saves_state=True) as run:
        run.screen.action_culprit(1)
        await run.press("quotation_mark", *"why", "enter", "space")
        run.screen.pane._take_columns(("layer", "rel_l2"))
        run.table.sort_by("rel_l2")
        await run.press("b", "g", "escape")
    assert [path for path in copied.candidate.parent.iterdir() if path.is_file()] == []
    assert session_path(copied.reference, copied.candidate).is_file()
    async with running(copied, saves_state=True) as run:
        assert len(run.table.marks) == 1
        assert [placed.column.id for placed in run.table.placed] == ["layer", "rel_l2"]
        assert run.owner.keeper.state.notes == {CULPRIT: "why"}
        assert run.table.how.by == "rel_l2"
        bar = run.screen.query_one(BisectBar)
        assert bar.bisect and [mark for mark, _ in bar.bisect.marks] == ["good"]


async def test_looking_leaves_no_file(copied: Request) -> None:
    async with running(copied, saves_state=True) as run:
        await run.press("j", "j", "n")
    assert [path for path in copied.candidate.parent.iterdir() if path.is_file()] == []
    assert not session_path(copied.reference, copied.candidate).exists()


async def test_a_damaged_session_file_is_put_aside_and_told(copied: Request) -> None:
    async with running(copied, saves_state=True) as run:
        await run.press("space")
    session_path(copied.reference, copied.candidate).write_text("{")
    async with running(copied, saves_state=True) as run:
        assert "put aside" in run.said()
        assert not run.table.marks


# --- starting, failing, ending -------------------------------------------------------------------


async def test_what_cannot_be_opened_ends_with_its_sentence(tmp_path: Path) -> None:
    async with running(Request(tmp_path / "nothing", CANDIDATE)) as run:
        pass
    assert run.app.return_value == 2
    assert "nothing: no such file or folder" in run.app.sentence


async def test_the_start_screen_lists_recent_pairs_and_survives_a_bad_one(copied: Request) -> None:
    async with running(copied, saves_state=True):
        pass
    async with running(None, saves_state=True) as run:
        assert isinstance(run.app.screen, StartScreen)
        await run.press("enter")
        assert run.owner.request.candidate == copied.candidate
        await run.press("q")
        assert isinstance(run.app.screen, StartScreen)
        shutil.rmtree(copied.candidate)
        await run.press("enter")
        assert isinstance(run.app.screen, StartScreen)
        assert "candidate" in run.said()
        await run.press("delete")
        assert run.app.screen.recent == []


async def test_a_failing_worker_is_a_notification() -> None:
    async with running(samples()) as run:

        def fail() -> None:
            raise RuntimeError("planted")

        in_thread(run.table, "tree", fail)
        await run.settle()
        assert "planted" in run.said()
        assert run.app.is_running


async def test_user_s_keys_and_theme() -> None:
    settings = Preferences(theme="light", keys={"table.next": "ctrl+n"}, columns=("layer", "mse"))
    async with running(samples(), settings=settings) as run:
        assert run.app.theme == "textual-light"
        assert [placed.column.id for placed in run.table.placed] == ["layer", "mse"]
        await run.press("n")
        assert run.name != CULPRIT
        await run.press("ctrl+n")
        assert run.name == CULPRIT
        await run.press("T")
        assert run.app.theme == "textual-dark"


async def test_palette_and_help() -> None:
    async with running(samples()) as run:
        await run.press("colon", *"next culprit", "enter")
        assert run.name == CULPRIT
        await run.press("question_mark")
        page = run.app.screen
        assert isinstance(page, KeyHelpScreen)
        keys = {one.sentence: one.keys for one in page.helps}
        assert keys["Open the layer"] == "⏎" and "The operations inside this layer" in keys
        assert {one.sentence for one in page.helps} <= {key.help for key in KEYS}, "Textual's own are not listed"
        assert [part for part, _ in groupby(one.part for one in page.helps)] == ["Table", "Comparison", "Everywhere"]
        await run.press("escape")
        assert run.app.screen is run.screen


async def test_help_is_scrolled_by_key_on_a_small_terminal() -> None:
    async with running(samples(), size=(80, 24)) as run:
        await run.press("question_mark")
        scrolled = run.app.screen.query_one(VerticalScroll)
        assert scrolled.max_scroll_y > 0
        await run.press("j")
        assert scrolled.scroll_y == 1
        await run.press("G")
        assert scrolled.scroll_y == scrolled.max_scroll_y
        await run.press("question_mark")
        assert run.app.screen is run.screen


async def test_the_same_notification_is_shown_once_and_never_over_a_dialog() -> None:
    async with running(samples(), size=(80, 24)) as run:
        await run.press("o", "o", "c")
        assert run.said().count("cannot be run again") == 1
        await run.press("t")
        assert isinstance(run.app.screen, Ask)
        assert not run.said()


async def test_q_quits() -> None:
    async with running(samples()) as run:
        await run.pilot.press("q")
        await run.pilot.pause()
    assert run.app.return_value == 0


async def test_zoom_gives_the_table_the_whole_screen() -> None:
    async with running(samples()) as run:
        before = run.table.size.height
        await run.press("z")
        assert run.table.size.height > before
        await run.press("escape")
        assert run.table.size.height == before


async def test_the_job_line_hides_when_all_is_measured() -> None:
    async with running(samples()) as run:
        assert not run.screen.query_one(JobLine).has_class("-shown")
