"""What commands capture without being told where to goes at the end; ``--keep DIR`` says where it stays."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tensordiff.dump import open_dump
from tests.capture.models import SMALL, run_here, script
from tests.cli.command import CAPTURING, capturing, environment
from tests.processes import on_terminal, until

pytest.importorskip("torch")
SLOW = (
    SMALL
    + """
import time
from pathlib import Path
HERE = Path(__file__).parent

def slow():
    (HERE / "sleeping").touch()
    time.sleep(600)

def fails():
    net, args, kwargs = good()
    net.blocks[3] = nn.Linear(5, 5)
    return net, args, kwargs
"""
)


@pytest.fixture
def temporary(tmp_path: Path) -> dict[str, str]:
    """The variables of a process whose temporary directory is empty."""
    (tmp_path / "tmp").mkdir()
    return {"TMPDIR": str(tmp_path / "tmp")}


@pytest.fixture
def source(tmp_path: Path) -> str:
    return f"py:{script(tmp_path, SLOW)}:"


def left(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "tmp").iterdir())


def test_what_was_captured_goes_when_the_command_ends(source: str, temporary: dict[str, str], tmp_path: Path) -> None:
    said = capturing("compare", source + "good", source + "bad", "-q", env=temporary)
    assert said.status == 1
    assert said.err.count("deleted when this ends, --keep DIR keeps it") == 2
    assert left(tmp_path) == []


@pytest.mark.parametrize("command", ["compare", "report", "align", "bisect"])
def test_keep_says_where_it_stays(command: str, source: str, temporary: dict[str, str], tmp_path: Path) -> None:
    more = ("--auto",) if command == "bisect" else ()
    kept = tmp_path / "kept"
    said = capturing(command, source + "good", source + "bad", "--keep", str(kept), *more, env=temporary)
    assert said.status == (0 if command == "align" else 1), said.err
    assert f"tensors, in {kept / 'reference'}\n" in said.err
    assert [len(open_dump(kept / side)) for side in ("reference", "candidate")] == [40, 40]
    assert left(tmp_path) == []


def test_inspect_keeps_too(source: str, temporary: dict[str, str], tmp_path: Path) -> None:
    assert capturing("inspect", source + "good", env=temporary).status == 0
    assert left(tmp_path) == []
    assert capturing("inspect", source + "good", "--keep", str(tmp_path / "kept"), env=temporary).status == 0
    assert len(open_dump(tmp_path / "kept" / "py")) == 40


def test_nothing_that_is_kept_already_is_written_over(source: str, temporary: dict[str, str], tmp_path: Path) -> None:
    kept = run_here(source + "good", tmp_path / "kept" / "reference").path
    before = (kept / "manifest.json").read_bytes()
    said = capturing("compare", source + "bad", source + "bad", "--keep", str(tmp_path / "kept"), env=temporary)
    assert said.status == 2 and "holds a dump already" in said.err
    assert (kept / "manifest.json").read_bytes() == before


def test_a_run_that_failed_stays_for_the_sentence_says_where_it_lies(
    source: str, temporary: dict[str, str], tmp_path: Path
) -> None:
    said = capturing("compare", source + "good", source + "fails", env=temporary)
    assert said.status == 2
    (folder,) = (tmp_path / "tmp").iterdir()
    assert f"the layers it reached lie in {folder / 'candidate'}" in said.err
    assert open_dump(folder / "candidate").interrupted


def test_a_report_offers_no_repro_of_what_goes(source: str, temporary: dict[str, str], tmp_path: Path) -> None:
    command = ("report", source + "good", source + "bad", "--json")
    (detail,) = json.loads(capturing(*command, env=temporary).out)["report"]["close"]
    assert detail["repro"] is None
    kept = tmp_path / "kept"
    (detail,) = json.loads(capturing(*command, "--keep", str(kept), env=temporary).out)["report"]["close"]
    assert detail["repro"].startswith("tensordiff replay ") and f" {kept / 'reference'} " in detail["repro"]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)], ids=str
)
def test_a_command_that_is_ended_leaves_nothing(
    number: signal.Signals, status: int, source: str, temporary: dict[str, str], tmp_path: Path
) -> None:
    command = [*CAPTURING, "compare", source + "good", source + "slow"]
    with on_terminal(command, env=environment(temporary)) as (terminal, started):
        until((tmp_path / "sleeping").exists)
        assert left(tmp_path) != []
        started.send_signal(number)
        assert terminal.read_until_ended(started) == status
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)], ids=str
)
def test_the_app_that_is_ended_leaves_nothing(
    number: signal.Signals, status: int, source: str, temporary: dict[str, str], tmp_path: Path
) -> None:
    env = environment({**temporary, "TERM": "xterm-256color"})
    with on_terminal([*CAPTURING, source + "good", source + "slow"], 120, 40, env=env) as (terminal, started):
        terminal.read_until((tmp_path / "sleeping").exists)
        assert left(tmp_path) != []
        started.send_signal(number)
        assert terminal.read_until_ended(started) == status
    assert left(tmp_path) == []


def test_a_search_by_reruns_leaves_nothing(source: str, temporary: dict[str, str], tmp_path: Path) -> None:
    sides = [str(run_here(source + name, tmp_path / name).path) for name in ("good", "bad")]
    said = capturing("bisect", *sides, "--rerun", "--only", r"blocks\.2(\.act)?$|^model$", env=temporary)
    assert said.status == 1, said.err
    assert left(tmp_path) == []
