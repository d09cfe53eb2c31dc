"""In the app too nothing is run that a stranger's dump names before it was shown and a yes was typed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from textual.containers import VerticalScroll
from textual.widgets import Input, Static

from tensordiff.capture.child import Child
from tensordiff.capture.runner import Run
from tensordiff.capture.settings import Settings
from tensordiff.session.request import Request
from tensordiff.tui.jobs.capture_form import CaptureForm
from tensordiff.tui.jobs.consent import Consent
from tensordiff.tui.jobs.job_line import JobLine
from tests.strangers import Stranger, changed, signed
from tests.tui.app_host import Running, running
from tests.tui.jobs.test_reruns import ended

pytest.importorskip("torch")
ASKS = pytest.mark.parametrize("keys", [("i", "enter"), ("c", "ctrl+s"), ("o",)], ids=["i", "c", "o"])


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    return Stranger(tmp_path)


def request(stranger: Stranger, settings: Settings | None = None) -> Request:
    return Request(stranger.reference, stranger.candidate, settings=settings or Settings())


def shown(run: Running) -> str:
    """All that the question shows."""
    assert isinstance(run.app.screen, Consent)
    return "\n".join(str(one.render()) for one in run.app.screen.query(Static))


def is_asking(run: Running) -> bool:
    return isinstance(run.app.screen, Consent)


def is_running(run: Running) -> bool:
    return run.screen.query_one(JobLine).run is not None


@ASKS
async def test_a_stranger_s_code_is_shown_and_not_run(
    stranger: Stranger, keys: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Child, "__init__", lambda *_, **__: pytest.fail("a child was started"))
    side = "good" if keys == ("o",) else "bad"  # of operations the reference's come first
    async with running(request(stranger), (140, 40)) as run:
        await run.press(*keys)
        assert f"py:{stranger.file}:{side}" in shown(run)
        assert "interpreter" in shown(run) and "remote code" in shown(run)
        await run.press("enter", *"no", "enter")
        assert is_asking(run) and "type yes" in shown(run)
        await run.press("escape")
        assert not is_asking(run) and not is_running(run)
    assert not stranger.was_run


@ASKS
async def test_a_typed_yes_runs_it_and_is_asked_for_once(stranger: Stranger, keys: tuple[str, ...]) -> None:
    async with running(request(stranger), (140, 40)) as run:
        screen = run.screen
        await run.press(*keys)
        while is_asking(run):  # of operations both sides are asked for before either is run
            assert not stranger.was_run
            await run.press(*"yes", "enter")
        await run.until(lambda: screen.query_one(JobLine).run is None)
        await ended(run)
        assert stranger.was_run
        if keys == ("i", "enter"):
            run.screen.reruns.inject_at("all")
            assert not is_asking(run) and is_running(run)
            await ended(run)


@ASKS
async def test_what_this_user_captured_is_run_without_a_question(stranger: Stranger, keys: tuple[str, ...]) -> None:
    for dump, function in ((stranger.reference, "good"), (stranger.candidate, "bad")):
        signed(dump, f"py:{stranger.file}:{function}")
    async with running(request(stranger), (140, 40)) as run:
        screen = run.screen
        await run.press(*keys)
        assert not is_asking(run)
        await run.until(lambda: screen.query_one(JobLine).run is None)
        await ended(run)
    assert stranger.was_run


async def test_a_changed_dump_is_asked_about_again(stranger: Stranger) -> None:
    async with running(request(stranger), (140, 40)) as run:
        await run.press("c", "ctrl+s", *"yes", "enter")
        await ended(run)
        changed(stranger.candidate, source=f"py:{stranger.file}:glue")
        stranger.forget()
        run.screen.open(replace(request(stranger)))
        await run.settle()
        await run.press("c", "ctrl+s")
        assert f"py:{stranger.file}:glue" in shown(run)
    assert not stranger.was_run


async def test_code_within_a_dump_is_refused_and_it_is_told(stranger: Stranger) -> None:
    inside = stranger.candidate / "evil.py"
    inside.write_text(stranger.file.read_text())
    changed(stranger.candidate, source=f"py:{inside}:bad")
    async with running(request(stranger), (140, 40)) as run:
        for key in "ico":
            await run.press(key)
            assert run.app.screen is run.screen
        assert "nothing in a dump is run" in run.said()
    assert not stranger.was_run


async def test_the_interpreter_is_the_command_line_s(stranger: Stranger, tmp_path: Path, started: list[Run]) -> None:
    evil = stranger.interpreter()
    signed(stranger.candidate, f"py:{stranger.file}:bad", python=str(evil))
    async with running(request(stranger), (140, 40)) as run:
        await run.press("i", "enter")
        assert [job.job.settings.python for job in started] == [None]
        assert "which is never taken from a dump" in run.said()
        await ended(run)
    said = Settings(python=str(tmp_path / "no such interpreter"), trust_remote_code=True)
    async with running(request(stranger, said), (140, 40)) as run:
        await run.press("i", "enter")
        assert "no such interpreter: cannot be run" in run.said()


async def test_what_a_stranger_wrote_is_no_escape_sequence_and_no_markup(stranger: Stranger) -> None:
    nasty = "a\x1b[2J[red]b[/"
    changed(
        stranger.candidate, settings={"prompt": nasty, "prompt_file": "/x\x1b]0;y\x07[/]"}, source="hf:m\x1b[31m[b]"
    )
    async with running(request(stranger), (140, 40)) as run:
        await run.press("c")
        form = run.app.screen
        assert isinstance(form, CaptureForm)
        assert form.query_one("#prompt", Input).value == r"a\x1b[2J[red]b[/"
        answer = form.answer()
        assert answer is not None and answer.settings.prompt == nasty, "what nobody changed stays as it was"
        await run.press("ctrl+s")
        said = shown(run)
        assert "\x1b" not in said and "\x07" not in said
        assert r"hf:m\x1b[31m[b]" in said and r"/x\x1b]0;y\x07[/] (prompt_file)" in said
        await run.press("escape")


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_all_of_it_can_be_read_however_much_a_manifest_names(stranger: Stranger, size: tuple[int, int]) -> None:
    long = "a very long prompt that goes on, " * 200 + "END"
    async with running(request(stranger, Settings(prompt=long)), size) as run:
        await run.press("i", "enter")
        assert is_asking(run)
        screen = run.app.screen
        title = screen.query_one(".title", Static)
        assert title.size.width * title.size.height >= len(str(title.render()))  # wrapped, not cut
        facts = list(screen.query(".fact"))
        box = screen.query_one(VerticalScroll)
        await run.press(*["pagedown"] * 80)
        assert box.scroll_offset.y == box.max_scroll_y
        assert facts[-1].region.bottom <= box.region.bottom and box.region.bottom < screen.size.height
        field = screen.query_one(Input)
        assert field.has_focus and field.region.bottom <= screen.size.height
        buttons = screen.query_one("#cancel")
        assert buttons.region.bottom <= screen.size.height and buttons.region.height
