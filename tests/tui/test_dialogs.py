"""Every dialog says its keys in the smallest terminal; going to a layer by typing; picking dumps at the start."""

from __future__ import annotations

import pkgutil
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Button, DirectoryTree, Input, OptionList, Static

import tensordiff.tui
from tensordiff.align.rules.rule import Rule
from tensordiff.align.rules.tables import ViewRule
from tensordiff.capture.job import Source
from tensordiff.capture.provenance import Provenance
from tensordiff.capture.settings import Settings
from tensordiff.session.lesson import Lesson
from tensordiff.session.rerun.trust import RerunOffer
from tensordiff.session.session import Session
from tensordiff.session.storage.session_offer import SessionOffer
from tensordiff.session.storage.state import SessionState
from tensordiff.tui import dialogs
from tensordiff.tui.comparison.export_dialog import Export
from tensordiff.tui.comparison.offered_dialog import OfferedDialog
from tensordiff.tui.dialogs import Ask, Choose, Dialog, Form, GoTo, Tick
from tensordiff.tui.jobs.capture_form import CaptureForm
from tensordiff.tui.jobs.consent import Consent
from tensordiff.tui.rules.lesson_screen import LessonScreen
from tensordiff.tui.rules.map_screen import MapScreen
from tensordiff.tui.rules.preview import preview
from tensordiff.tui.rules.rule_editor import RuleEditor
from tensordiff.tui.start import Pick, StartScreen, _wrong
from tensordiff.util.remote import known_remote
from tests.making import SAMPLES
from tests.tui.app_host import CULPRIT, Running, running, samples

MANY = [(str(k), f"choice {k} " + "long " * 20) for k in range(40)]
RULE = Rule("both", r"^model\.", "")
LONG = "a sentence that does not end before it has taken a second line of a terminal, and then a third one " * 2
OFFER = RerunOffer(
    "the candidate /dumps/a", Provenance(Source("hf", "gpt2"), Settings(), doubt=LONG), Settings(prompt=LONG)
)
DIALOGS: dict[type[Any], Callable[[Session], Dialog[Any] | Form[Any]]] = {
    Ask: lambda _: Ask("Note on a layer", "", LONG),
    Choose: lambda _: Choose("Which?", MANY, why=LONG),
    Tick: lambda _: Tick("Columns", MANY, ()),
    GoTo: lambda session: GoTo([pair.name for pair in session.pairs], [pair.index for pair in session.pairs]),
    Pick: lambda _: Pick("Pick the reference: the dump you trust", Path(tensordiff.tui.__file__).parent),
    Export: lambda _: Export("a layer", 0, Path.cwd()),
    CaptureForm: lambda _: CaptureForm("hf:gpt2", Settings()),
    Consent: lambda _: Consent(OFFER),
    OfferedDialog: lambda _: OfferedDialog(SessionOffer(Path("/dumps/a.json"), SessionState())),
    LessonScreen: lambda session: LessonScreen(Lesson((RULE,), session.pairs[:3], 3, 3)),
    MapScreen: lambda session: MapScreen(session, "layers.0.mlp", "layers.0.mlp"),
    RuleEditor: lambda session: RuleEditor("Edit rule", RULE, lambda _: preview(session, session.rules)),
}


def test_the_list_of_dialogs_is_whole() -> None:
    for module in pkgutil.walk_packages(tensordiff.tui.__path__, "tensordiff.tui."):
        import_module(module.name)
    assert {*Dialog.__subclasses__(), *Form.__subclasses__()} == set(DIALOGS)


@pytest.mark.parametrize("kind", DIALOGS, ids=lambda kind: kind.__name__)
async def test_every_dialog_says_its_keys_in_the_smallest_terminal(kind: type[Any]) -> None:
    async with running(samples(), (80, 24)) as run:
        assert run.owner.session is not None
        run.app.push_screen(DIALOGS[kind](run.owner.session))
        await run.until(lambda: isinstance(run.app.screen, kind) and run.app.screen.query(Button))
        await run.pilot.pause()  # not until all threads end: one lists folders as long as their tree is shown
        buttons = list(run.app.screen.query(Button))
        for button in buttons:
            assert run.app.screen.region.contains_region(button.region), f"{button.label} is out of sight"
            assert button.region.height, f"{button.label} has no room"
        told = " ".join(str(button.label) for button in buttons)
        assert "(esc)" in told and ("(ctrl+s)" in told or "(enter)" in told)


async def test_a_view_is_edited_with_the_same_keys() -> None:
    async with running(samples(), (80, 24)) as run:
        session = run.owner.session
        assert session is not None
        run.app.push_screen(RuleEditor("Edit view", ViewRule("norm$"), lambda _: preview(session, session.rules)))
        await run.settle()
        screen = run.app.screen
        assert all(screen.region.contains_region(button.region) for button in screen.query(Button))


def listed(run: Running) -> list[str]:
    options = run.app.screen.query_one(OptionList)
    return [str(options.get_option_at_index(k).prompt) for k in range(options.option_count)]


async def test_a_row_is_found_by_the_number_that_the_table_shows() -> None:
    async with running(samples(), (80, 24)) as run:
        for typed in ("57", "#57"):
            await run.press("g", "l", *typed)
            assert listed(run)[0].split() == ["57", CULPRIT]
            await run.press("enter")
            assert run.name == CULPRIT
        await run.press("l", *"999999")
        assert listed(run) == []
        await run.press("enter")
        assert "no row" in str(run.app.screen.query_one("#wrong", Static).render())


@pytest.mark.parametrize(
    ("typed", "wrong"),
    [("hf:", "does not say what to run"), ("py:x.py", "does not say what to run"), ("/not/here", "no such file")],
)
async def test_a_side_that_cannot_be_meant_is_refused_where_it_is_typed(typed: str, wrong: str) -> None:
    async with running(None) as run:
        await run.press("c")
        run.app.screen.query_one(Input).value = typed
        await run.press("ctrl+s")
        assert isinstance(run.app.screen, Ask) and run.app.screen.heading.startswith("Reference")
        assert wrong in str(run.app.screen.query_one("#wrong", Static).render())
        run.app.screen.query_one(Input).value = str(SAMPLES / "reference")
        await run.press("ctrl+s")
        assert run.app.screen.heading.startswith("Candidate")


async def test_enter_picks_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "one.npy").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    async with running(None) as run:
        assert isinstance(run.app.screen, StartScreen)
        await run.pilot.press("o")
        tree = run.app.screen.query_one(DirectoryTree)
        await run.until(lambda: tree.root.children)
        tree.move_cursor(tree.root.children[0])
        await run.pilot.press("enter")
        await run.until(lambda: isinstance(run.app.screen, Pick) and "candidate" in run.app.screen.heading)


async def test_among_very_many_layers_a_thread_looks_and_enter_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialogs, "_LOOKED_AT_ONCE", 10)
    looked_in, fitting, go_on = [], GoTo.fitting, threading.Event()

    def slow(dialog: GoTo, text: str, among: range, is_wanted: Callable[[], bool] = lambda: True) -> list[int]:
        if len(among) > 10:
            looked_in.append(threading.current_thread())
            go_on.wait()
        return fitting(dialog, text, among, is_wanted)

    monkeypatch.setattr(GoTo, "fitting", slow)
    async with running(samples()) as run:
        await run.pilot.press("l", *"1 act_fn", "enter")
        assert isinstance(run.app.screen, GoTo)
        go_on.set()
        await run.until(lambda: run.app.screen is run.screen)
        await run.settle()
        assert run.name == CULPRIT
    assert looked_in and threading.main_thread() not in looked_in


async def test_where_the_first_layers_suffice_no_thread_looks_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialogs, "_LOOKED_AT_ONCE", 60)
    monkeypatch.setattr(dialogs, "in_thread", lambda *_: pytest.fail("a thread looks for layers"))
    async with running(samples()) as run:
        await run.pilot.press("l")
        assert isinstance(run.app.screen, GoTo) and len(run.app.screen.found) == dialogs._OFFERED
        assert run.app.screen.query_one(OptionList).option_count == dialogs._OFFERED


def test_layers_are_looked_through_only_while_somebody_waits_for_them() -> None:
    names = [f"layers.{k}" for k in range(3 * dialogs._ASKED_AFTER)]
    answers = iter([True, False])
    everywhere, last = range(len(names)), f"layers.{len(names) - 1}"
    assert GoTo(names, everywhere).fitting(last, everywhere) == [len(names) - 1]
    assert GoTo(names, everywhere).fitting(last, everywhere, lambda: next(answers)) == []
    assert list(answers) == []


@pytest.mark.parametrize(
    "text", ["http://u:hush@[::1/x", "s3://A:hush/er@runs/x", "zip://a::s3://u:hush@b", "hf:s3://u:hush@runs/x"]
)
def test_a_url_that_will_not_do_is_said_where_it_is_typed(text: str) -> None:
    said = _wrong(text)
    assert said is not None and "URL" in said and "hush" not in said


def test_a_url_that_is_being_typed_is_not_connected_to() -> None:
    assert _wrong("s3://bucket/half") is None
    assert known_remote("s3://bucket/half") is None
