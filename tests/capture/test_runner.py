"""Real children: what they say, how they end, and that none is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tensordiff.capture.events import Done, Event, Failed, Note, Phase
from tensordiff.capture.job import Job, Source
from tensordiff.capture.runner import Run
from tensordiff.capture.settings import Settings
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError
from tests import processes
from tests.capture.models import script
from tests.processes import started, until

pytest.importorskip("torch")
pytestmark = pytest.mark.new_children

FILE = """
import os, signal, sys, time
import torch
from torch import nn

class Odd(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.before, self.what = nn.Linear(2, 2), what

    def forward(self, x):
        x = self.before(x)
        self.what()
        return x

def made(what):
    return nn.Sequential(nn.Linear(2, 2), Odd(what), nn.Linear(2, 2)), (torch.ones(1, 2),)

def noisy():
    print('{"event": "done", "path": "lies", "entries": 9}', flush=True)
    os.write(1, b"straight to stdout")
    os.write(2, b"straight to stderr")
    return made(lambda: print("in forward"))

def raises():
    def what():
        raise ValueError("too \\x1b[31m odd")
    return made(what)

def scratches():
    def what():
        from tensordiff.capture.process.disk_space import scratch_folder
        with scratch_folder() as folder:
            open(os.path.join(folder, "large"), "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
    return made(what)

def killed():
    return made(lambda: os.kill(os.getpid(), signal.SIGKILL))

def leaves():
    return made(lambda: os._exit(7))

def sleeps():
    def what():
        os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600")
        time.sleep(600)
    return made(what)
"""


def job(tmp_path: Path, function: str, settings: Settings | None = None) -> Job:
    file = script(tmp_path, FILE)
    return Job(Source("py", str(file), function), settings or Settings(), str(tmp_path / "dump"))


def listen(run: Run) -> list[Event]:
    return list(run)


def members(group: int) -> list[str]:
    """The processes of a group, by their command; zombies are none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = path.read_text().rsplit(")", 1)
        except OSError:
            continue
        state, _, of_group = rest.split()[:3]
        if int(of_group) == group and state != "Z":
            found.append(name.partition("(")[2])
    return found


def gone(group: int) -> bool:
    until(lambda: not members(group))
    return True


def test_what_a_framework_prints_is_the_log_and_no_event(tmp_path: Path) -> None:
    run = Run(job(tmp_path, "noisy"))
    events = listen(run)
    last = events[-1]
    assert isinstance(last, Done)
    assert (last.path, last.entries) == (str(tmp_path / "dump"), 10)
    assert {type(event) for event in events} >= {Phase, Note}
    assert "straight to stdout" in run.log()
    assert "straight to stderr" in run.log()
    assert "in forward" in run.log()
    assert gone(run.pid)


def test_a_model_that_raises_gives_the_layers_it_reached_and_the_error(tmp_path: Path) -> None:
    run = Run(job(tmp_path, "raises"))
    last = listen(run)[-1]
    assert isinstance(last, Failed)
    assert "the model raised ValueError within model.1: too \\x1b[31m odd" in last.sentence
    assert last.sentence.isprintable()
    assert "in what" in last.detail
    dump = open_dump(Path(str(last.path)))
    assert dump.interrupted
    assert [entry.name for entry in dump.entries][-1] == "model.1.before-output"
    assert "ValueError" in str(dump.facts["error"])
    assert gone(run.pid)


def test_a_death_by_signal_names_it(tmp_path: Path) -> None:
    last = listen(Run(job(tmp_path, "killed")))[-1]
    assert isinstance(last, Failed)
    assert "was ended by SIGKILL while running; the system may have run out of memory" in last.sentence
    assert open_dump(Path(str(last.path))).interrupted


def test_a_child_that_just_leaves_is_said(tmp_path: Path) -> None:
    last = listen(Run(job(tmp_path, "leaves")))[-1]
    assert isinstance(last, Failed)
    assert "ended with status 7 while running" in last.sentence


def test_scratch_files_of_a_killed_child_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    last = listen(Run(job(tmp_path, "scratches")))[-1]
    assert isinstance(last, Failed) and "SIGKILL" in last.sentence
    assert list((tmp_path / "tmp").iterdir()) == []


def test_cancelling_ends_the_child_and_what_it_started(tmp_path: Path) -> None:
    run = Run(job(tmp_path, "sleeps"))
    events = iter(run)
    while not isinstance(event := next(events), Phase) or event.name != "running":
        pass
    until(lambda: "sleep" in members(run.pid) and open_dump(tmp_path / "dump").entries)
    run.cancel()
    last = list(events)[-1]
    assert isinstance(last, Failed)
    assert "cancelled while running" in last.sentence
    dump = open_dump(tmp_path / "dump")
    assert dump.interrupted
    assert dump.entries
    assert gone(run.pid)


def test_the_child_ends_with_its_parent(tmp_path: Path) -> None:
    made = job(tmp_path, "sleeps")
    code = (
        "import sys\nfrom tensordiff.capture.job import Job\nfrom tensordiff.capture.runner import Run\n"
        "run = Run(Job.decode(sys.argv[1]))\nprint(run.pid, flush=True)\nfor event in run: print(event, flush=True)"
    )
    with started([sys.executable, "-c", code, made.encode()], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        group = int(parent.stdout.readline())
        until(lambda: "sleep" in members(group))
        parent.kill()
    assert gone(group)
    assert open_dump(tmp_path / "dump").interrupted


def test_an_interpreter_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"cannot be run .*give --python an interpreter"):
        Run(job(tmp_path, "noisy", Settings(python=str(tmp_path / "nothing"))))


def test_an_interpreter_without_the_framework_says_what_to_install(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    processes.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    last = listen(Run(job(tmp_path, "noisy", Settings(python=str(bare / "bin" / "python")))))[-1]
    assert isinstance(last, Failed)
    assert "has no numpy and no ml_dtypes and no msgspec and no torch; install: " in last.sentence
    assert "-m pip install numpy ml_dtypes msgspec torch" in last.sentence
    assert not (tmp_path / "dump").exists()


def test_the_command_that_makes_an_environment_is_the_parent_s_own(tmp_path: Path) -> None:
    """A child sees the package through a link, and lies elsewhere than where sources look for environments."""
    bare = tmp_path / "bare"
    processes.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    asked = Job(Source("vllm", "model"), Settings(python=str(bare / "bin" / "python")), str(tmp_path / "dump"))
    last = listen(Run(asked))[-1]
    assert isinstance(last, Failed)
    assert "; make its environment with: make engine-vllm, or give another interpreter" in last.sentence


def test_another_interpreter_is_used_with_its_own_packages(tmp_path: Path) -> None:
    run = Run(job(tmp_path, "noisy", Settings(python=sys.executable)))
    done = run.result()
    assert done.entries == 10


def test_a_child_loads_no_compiler_and_no_face(tmp_path: Path) -> None:
    code = (
        "import sys, tensordiff.capture.engines.torch.inject, tensordiff.capture.engines.hf.engine\n"
        "from tensordiff.capture.engines.py.engine import run\nfrom tensordiff.capture.job import Job\n"
        "run(Job.decode(sys.argv[1]), lambda event: None)\n"
        "heavy = ('textual', 'tomlkit', 'platformdirs', 'torch._dynamo')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    operations = job(tmp_path, "noisy", Settings(ops="model.1"))
    ran = processes.run([sys.executable, "-W", "ignore", "-c", code, operations.encode()], check=True)
    assert ran.stdout.splitlines()[-1] == "[]"
    assert open_dump(tmp_path / "dump").entries
