"""Reruns from the app, with a real child process: injection, another capture, operations, cancelling."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tensordiff.align.rules.file import parse_rules_text
from tensordiff.align.rules.rule import Rule
from tensordiff.capture.runner import Run
from tensordiff.capture.settings import Settings
from tensordiff.session.request import Request
from tensordiff.tui.dialogs import Choose
from tensordiff.tui.jobs.job_line import JobLine
from tensordiff.tui.rules.panel import RulesPanel
from tensordiff.tui.start import read_recent
from tensordiff.util.temporary_folders import is_temporary
from tests import processes
from tests.capture.models import run_here
from tests.making import numbers, write
from tests.tui.app_host import Running, running

pytest.importorskip("torch")
SOURCE = """
import time
from pathlib import Path
import torch
from torch import nn

with Path(__file__).with_name("loaded").open("a") as file:
    file.write("x")

class Net(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.first, self.scale, self.last = nn.Linear(8, 8), Scale(factor), nn.Linear(8, 8)
    def forward(self, x):
        return self.last(self.scale(self.first(x)))

class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
    def forward(self, x):
        return x * self.factor

def right():
    torch.manual_seed(0)
    return Net(1.0), {"x": torch.ones(2, 8)}

def wrong():
    while Path(__file__).with_name("slow").exists():
        print("waiting", flush=True)
        time.sleep(0.05)
    torch.manual_seed(0)
    return Net(1.5), {"x": torch.ones(2, 8)}
"""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Request:
    """Two captures of a small model, one with a wrong factor."""
    folder = tmp_path_factory.mktemp("sources")
    (folder / "net.py").write_text(SOURCE)
    sides = [run_here(f"py:{folder / 'net.py'}:{function}", folder / function).path for function in ("right", "wrong")]
    return Request(*sides)


async def ended(run: Running) -> None:
    """Until the child is gone and what it made is shown, perhaps on a screen of its own that is being opened."""
    await run.until(lambda: any(line.run is None for line in run.screen.query(JobLine)))
    await run.settle()
    await run.settle()


@pytest.mark.parametrize(
    ("layer", "usual", "why"),
    [("scale", "here", "since this layer diverges"), ("first", "all", "since this one does not diverge")],
)
async def test_where_to_inject_depends_on_what_is_under_the_cursor(
    dumps: Request, layer: str, usual: str, why: str
) -> None:
    async with running(dumps, (140, 40)) as run:
        run.table.reveal(run.table.listing.labels.index(layer))
        await run.press("i")
        asked = run.app.screen
        assert isinstance(asked, Choose)
        assert asked.answer() == usual
        assert why in str(asked.query_one(".hint").render())
        await run.press("escape")


async def test_injection_tells_culprit_from_victim(dumps: Request) -> None:
    async with running(dumps, (140, 40)) as run:
        await run.press("i", "enter")
        await ended(run)
        assert run.screen.reruns.mode() == "injected: rerun"
        errors = dict(zip(run.table.listing.labels, run.table.listing.column("injected"), strict=True))
        assert errors["scale"] == pytest.approx(0.5, rel=1e-3)
        assert errors["last"] < 1e-6
        verdicts = {line.split()[2]: line.split()[0] for line in run.lines() if " scale " in line or " last " in line}
        assert verdicts == {"scale": "►✗", "last": "~"}


@pytest.mark.parametrize("is_aligned", [True, False], ids=["aligned", "being aligned"])
async def test_injection_pairs_by_the_rules_that_the_panel_shows(
    dumps: Request, is_aligned: bool, started: list[Run]
) -> None:
    rule = Rule("candidate", "nothing like it", "x")
    async with running(dumps, (140, 40)) as run:
        await run.press("m")
        panel = run.screen.query_one(RulesPanel)
        panel.change(lambda book: book.added(rule))
        await (run.settle() if is_aligned else run.moment(lambda: run.owner.is_aligning))
        run.screen.reruns.inject_at("all")
        (job,) = started
        assert job.job.settings.inject is not None
        assert parse_rules_text(job.job.settings.inject.rules_text or "", "rules").rules == (rule,)
        await ended(run)
        session = run.owner.session
        assert session is not None and session.comparer.injected is not None and session.rules.rules == (rule,)


def children() -> list[str]:
    """The processes of this one that run sources, whether they work or wait."""
    lines = map(processes.command_line, processes.children(os.getpid()))
    return [line.decode() for line in lines if b"tensordiff.capture.process" in line]


@pytest.mark.new_children
async def test_the_second_run_finds_the_source_loaded(dumps: Request) -> None:
    loaded = dumps.candidate.parent / "loaded"
    before = len(loaded.read_text())
    async with running(dumps, (140, 40)) as run:
        await run.press("i", "enter")
        await ended(run)
        assert run.screen.reruns.mode() == "injected: rerun"
        await run.press("c", "ctrl+s")
        await ended(run)
        assert "captured 8 tensors" in run.said()
        assert len(loaded.read_text()) == before + 1
        assert len(children()) == 1
    assert children() == []


async def test_operations_open_as_a_comparison_of_their_own(dumps: Request, tmp_path: Path) -> None:
    tolerances, rule = tmp_path / "tolerances.toml", Rule("candidate", "nothing like it", "x")
    tolerances.write_text('[[tolerance]]\nmatch = "nowhere"\nrel_l2 = 0.1\n')
    async with running(replace(dumps, tolerances=tolerances), (140, 40)) as run:
        first = run.screen
        first.owner.edit_rules(first.owner.book.added(rule))
        first.judge_by(1e-4)
        await run.settle()
        run.table.reveal(run.table.listing.labels.index("scale"))
        await run.press("o")
        await run.until(lambda: run.screen is not first and run.owner.outcome is not None)
        await run.settle()
        assert any("mul" in name for name in run.names)
        session = run.owner.session
        assert session is not None and session.rules.rules == (rule,)
        limits = session.comparer.limits
        assert limits.threshold == 1e-4 and [table.match for table in limits.rules] == ["nowhere"]
        await run.press("q")
        assert run.screen is first


async def test_a_cancelled_run_is_gone(dumps: Request) -> None:
    slow = dumps.candidate.parent / "slow"
    async with running(dumps) as run:
        slow.touch()
        try:
            await run.press("c", "ctrl+s")
            job = run.screen.query_one(JobLine).run
            assert isinstance(job, Run)
            os.kill(job.pid, 0)
            await run.press("L", "x")
            await ended(run)
        finally:
            slow.unlink()
        assert "cancelled" in run.said()
        with pytest.raises(ProcessLookupError):
            os.kill(job.pid, 0)


async def test_leaving_the_app_ends_the_child(dumps: Request) -> None:
    slow = dumps.candidate.parent / "slow"
    slow.touch()
    try:
        async with running(dumps) as run:
            await run.press("c", "ctrl+s")
            job = run.screen.query_one(JobLine).run
            assert isinstance(job, Run)
            run.app.leave(143)
        with pytest.raises(ProcessLookupError):
            os.kill(job.pid, 0)
    finally:
        slow.unlink()


async def test_a_source_in_place_of_a_dump_is_run_first(dumps: Request) -> None:
    source = f"py:{dumps.candidate.parent / 'net.py'}:wrong"
    async with running(Request(dumps.reference, Path(source)), (140, 40)) as run:
        await run.until(lambda: run.owner.outcome is not None)
        await run.settle()
        assert run.verdict == "diverges"


async def test_a_source_that_does_not_run_ends_with_its_sentence(dumps: Request) -> None:
    source = f"py:{dumps.candidate.parent / 'net.py'}:nothing"
    async with running(Request(dumps.reference, Path(source)), (140, 40)) as run:
        await ended(run)
        await run.until(lambda: run.app.sentence)
    assert run.app.return_value == 2
    assert "nothing" in run.app.sentence


async def test_a_source_is_asked_in_the_app_what_the_command_line_would_ask_it(
    tmp_path: Path, started: list[Run]
) -> None:
    reference = write(tmp_path / "reference", {"a": numbers(2)}, token_ids=[5, 7])
    request = Request(reference, Path("hf:no/such-model"), settings=Settings(steps=3))
    async with running(request) as run:
        await run.until(lambda: bool(started))
        assert started[0].job.settings == Settings(input_ids=(5, 7), steps=3)
        started[0].cancel()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory of the test's own."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path / "tmp"


async def test_what_a_rerun_made_goes_with_the_app_unless_it_is_kept(dumps: Request, temporary: Path) -> None:
    async with running(dumps, (140, 40)) as run:
        await run.press("K")
        assert "there is nothing to keep" in run.said()
        await run.press("i", "enter")
        await ended(run)
        path = run.owner.request.injected
        assert path is not None and is_temporary(path) and path.is_relative_to(temporary)
        assert "deleted when the app ends unless K keeps it" in run.said()
        await run.press("K")
        assert not is_temporary(path) and f"these stay when the app ends:\n{path}" in run.said()


async def test_reruns_are_kept_where_the_request_says(dumps: Request, temporary: Path, tmp_path: Path) -> None:
    async with running(replace(dumps, keep=tmp_path / "kept"), (140, 40)) as run:
        await run.press("c", "ctrl+s")
        await ended(run)
        path = run.owner.request.candidate
        assert path.parent.parent == tmp_path / "kept" and not is_temporary(path)
        assert f"into {path}" in run.said() and "goes when" not in run.said()
    assert path.is_dir()


async def test_a_pair_that_goes_is_no_recent_one(
    dumps: Request, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    source = Path(f"py:{dumps.candidate.parent / 'net.py'}:wrong")
    for keep in (None, tmp_path / "kept"):
        async with running(Request(dumps.reference, source, keep=keep), (140, 40), saves_state=True) as run:
            await run.until(lambda: run.owner.outcome is not None)
            await run.settle()
        expected = [] if keep is None else [(str(dumps.reference), str(keep / "candidate"))]
        assert read_recent() == expected
