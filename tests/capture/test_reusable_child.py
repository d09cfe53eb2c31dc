"""Reusable children: the same bytes as a new one gives, a new one where that is not certain, and none left over."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from tensordiff.capture.child import Child, ReusableChild
from tensordiff.capture.events import Done, Event, Failed, Note, Phase
from tensordiff.capture.job import Job, parse_source
from tensordiff.capture.runner import Run
from tensordiff.capture.settings import Injection, Settings
from tensordiff.dump import open_dump
from tests import processes
from tests.capture.models import Make, run_here, script
from tests.capture.test_runner import gone, members
from tests.processes import ended, started, until

pytest.importorskip("torch")

FILE = """
import os, random, signal, time
from pathlib import Path
import numpy as np
import torch
from torch import nn
import helper_under_test

np.random.seed(3)
random.seed(4)
HERE = Path(__file__).parent

class Noisy(nn.Module):
    def forward(self, x):
        return x + float(np.random.randn()) + random.random()

def lively():
    "All that changes while it runs: statistics, random numbers of three kinds, the folder, the environment."
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), Noisy(), nn.Linear(4, 2))
    scale = 1.0 + float(os.environ.get("SCALE", "0")) + float(Path.cwd() == HERE)
    os.environ["SCALE"] = "1"
    os.chdir(HERE)
    return net, (scale * helper_under_test.FACTOR * torch.arange(12.0).reshape(3, 4),)

KEPT = nn.Sequential(nn.BatchNorm1d(4))

def keeps():
    return KEPT, (torch.arange(12.0).reshape(3, 4),)

class Fragile(nn.Module):
    def forward(self, x):
        if (HERE / "raise").exists():
            raise ValueError("as asked")
        if (HERE / "die").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        if (HERE / "sleep").exists():
            os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600")
            time.sleep(600)
        return x

def fragile():
    print("called", flush=True)
    return nn.Sequential(nn.Linear(4, 4), Fragile()), (torch.ones(2, 4),)
"""


@pytest.fixture
def reusable_child() -> Iterator[ReusableChild]:
    with ReusableChild() as found:
        yield found


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A user's file; add a function's name to it."""
    script(tmp_path, "FACTOR = 1.0\n", "helper_under_test.py")
    return f"py:{script(tmp_path, FILE, 'staying_under_test.py')}:"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Heard:
    """One run that was listened to."""

    def __init__(self, source: str, output: Path, reusable_child: ReusableChild | None, settings: Settings) -> None:
        parsed = parse_source(source)
        assert parsed is not None
        self.path, self.run = output, Run(Job(parsed, settings, str(output)), reusable_child)
        self.events: list[Event] = list(self.run)
        self.last, self.pid = self.events[-1], self.run.pid

    @property
    def bytes(self) -> dict[str, bytes]:
        """All that it wrote: the manifest says no time and not where it lies."""
        assert isinstance(self.last, Done), self.last
        return files(self.path)

    @property
    def notes(self) -> str:
        return "\n".join(event.text for event in self.events if isinstance(event, Note))


def heard(
    source: str, output: Path, reusable_child: ReusableChild | None = None, settings: Settings | None = None
) -> Heard:
    return Heard(source, output, reusable_child, settings or Settings())


def assert_the_same(
    source: str, folder: Path, reusable_child: ReusableChild, asked: list[Settings], *, is_new_elsewhere: bool = True
) -> None:
    """One process answers all of it, each as another that loads the source anew, entry by entry and byte by byte.

    That other is a new process each, or, for what takes seconds to import, this one.
    """
    pids: set[int] = set()
    for number, settings in enumerate(asked):
        here = heard(source, folder / f"here-{number}", reusable_child, settings)
        new = folder / f"new-{asked.index(settings)}"
        if not new.exists():
            Heard(source, new, None, settings) if is_new_elsewhere else run_here(source, new, settings)
        assert "a new process" not in here.notes, here.notes
        pids.add(here.pid)
        ours, theirs = open_dump(here.path).entries, open_dump(new).entries
        assert [entry.name for entry in ours] == [entry.name for entry in theirs]
        assert [entry.read().tobytes() for entry in ours] == [entry.read().tobytes() for entry in theirs]
        assert here.bytes == files(new)
    assert len(pids) == 1


# --- the same bytes


@pytest.mark.new_children
def test_a_function_is_called_anew_and_all_around_it_put_back(
    source: str, tmp_path: Path, reusable_child: ReusableChild
) -> None:
    injected = Settings(inject=Injection(str(tmp_path / "here-0")))
    asked = [Settings(), Settings(), injected, Settings(ops="model.1"), injected, Settings()]
    assert_the_same(source + "lively", tmp_path, reusable_child, asked)


def test_a_model_stays_loaded_is_asked_anew_and_loaded_anew_when_its_weights_were_written(
    tiny: Make, tmp_path: Path, reusable_child: ReusableChild
) -> None:
    transformers = pytest.importorskip("transformers")
    folder, source = tmp_path / "model", f"hf:{tmp_path / 'model'}"
    shutil.copytree(tiny("llama"), folder)
    first, other = Settings(input_ids=(5, 6, 7), steps=3), Settings(input_ids=(9, 8, 7, 6))
    injected = replace(first, inject=Injection(str(tmp_path / "here-0")))
    assert_the_same(source, tmp_path, reusable_child, [first, other, injected, first], is_new_elsewhere=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.model.norm.weight.data += 1
    model.save_pretrained(folder)
    second = heard(source, tmp_path / "second", reusable_child, first)
    assert "model.safetensors: was written since it was loaded; a new process is started" in second.notes
    given = [open_dump(path).entries[-1].read() for path in (tmp_path / "here-0", second.path)]
    assert abs(given[0] - given[1]).max() > 0.01


def test_a_graph_is_read_anew(small: str, tmp_path: Path, reusable_child: ReusableChild) -> None:
    pytest.importorskip("onnxruntime")
    from tests.capture.engines.onnx.graphs import exported_function

    path = exported_function(small + "good", tmp_path / "net.onnx", dynamo=False, input_names=["x"])
    run_here(small + "good", tmp_path / "good")
    plain = Settings(inputs=str(tmp_path / "good"))
    injected = replace(plain, inject=Injection(str(tmp_path / "good")))
    assert_the_same(f"onnx:{path}", tmp_path, reusable_child, [plain, injected, plain])


def test_another_interpreter_is_reusable_too(source: str, tmp_path: Path, reusable_child: ReusableChild) -> None:
    other = tmp_path / "other"
    processes.run([sys.executable, "-m", "venv", "--without-pip", other], check=True)
    packages = next((other / "lib").glob("python*")) / "site-packages" / "these.pth"
    packages.write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    assert_the_same(source + "lively", tmp_path, reusable_child, [Settings(python=str(other / "bin" / "python"))] * 2)


# --- where that is not certain


def test_what_a_function_keeps_of_its_own_makes_a_new_process(
    source: str, tmp_path: Path, reusable_child: ReusableChild
) -> None:
    first, second = (heard(source + "keeps", tmp_path / name, reusable_child) for name in ("first", "second"))
    assert first.bytes == second.bytes
    assert "model.0.running_mean: is not what it was when the process was new; a new process is started" in second.notes
    assert first.pid != second.pid
    assert gone(first.pid)


def test_a_file_that_was_edited_is_loaded_anew(source: str, tmp_path: Path, reusable_child: ReusableChild) -> None:
    """The file itself, then one that it imports."""
    runs = [heard(source + "lively", tmp_path / "0", reusable_child)]
    for name, old, new in (
        ("staying_under_test.py", "scale * ", "2.5 * scale * "), ("helper_under_test.py", "1.0", "2.50"),
    ):  # fmt: skip
        file = tmp_path / name
        told = file.stat()
        file.write_text(file.read_text().replace(old, new))
        os.utime(file, ns=(told.st_atime_ns, told.st_mtime_ns))  # as an unpacked archive would have it
        runs.append(heard(source + "lively", tmp_path / str(len(runs)), reusable_child))
        assert f"{file}: was written since it was loaded; a new process is started" in runs[-1].notes
        before, after = (open_dump(one.path).entries[0].read() for one in runs[-2:])
        assert (2.5 * before == after).all()
        assert gone(runs[-2].pid)


def test_settings_that_decide_on_what_is_loaded_make_a_new_process(
    source: str, tmp_path: Path, reusable_child: ReusableChild
) -> None:
    asked = [Settings(), Settings(layers="0"), Settings(deterministic=True), Settings(seed=1)]
    pids = [heard(source + "lively", tmp_path / str(k), reusable_child, one).pid for k, one in enumerate(asked)]
    assert pids[0] == pids[1]
    assert len(set(pids)) == 3
    assert all(gone(pid) for pid in pids[:3])


# --- how it ends: a process that one test leaves is there for the next


class Fragile(NamedTuple):
    """A function that can be told to fail, and a reusable process for it."""

    source: str
    folder: Path
    reusable_child: ReusableChild

    def heard(self, name: Path) -> Heard:
        return heard(self.source, name, self.reusable_child)

    def started(self, output: Path) -> Run:
        """A run that nobody listens to yet."""
        parsed = parse_source(self.source)
        assert parsed is not None
        return Run(Job(parsed, Settings(), str(output)), self.reusable_child)

    @contextmanager
    def told_to(self, what: str) -> Iterator[None]:
        (self.folder / what).touch()
        try:
            yield
        finally:
            (self.folder / what).unlink()


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fragile]:
    folder = tmp_path_factory.mktemp("fragile")
    script(folder, "FACTOR = 1.0\n", "helper_under_test.py")
    with ReusableChild() as reusable_child:
        yield Fragile(f"py:{script(folder, FILE, 'staying_under_test.py')}:fragile", folder, reusable_child)


def test_the_log_of_a_run_is_its_own(fragile: Fragile, tmp_path: Path) -> None:
    runs = [fragile.heard(tmp_path / str(k)).run for k in range(2)]
    assert [run.log().count("called") for run in runs] == [1, 1]
    assert runs[0].pid == runs[1].pid


def test_options_that_a_function_cannot_honour_are_refused_later_too(fragile: Fragile, tmp_path: Path) -> None:
    assert isinstance(fragile.heard(tmp_path / "first").last, Done)
    last = heard(fragile.source, tmp_path / "second", fragile.reusable_child, Settings(prompt="why")).last
    assert isinstance(last, Failed)
    assert "--prompt is not for py: sources" in last.sentence


def test_closing_ends_the_child_and_none_is_kept_after(source: str, tmp_path: Path) -> None:
    with ReusableChild() as reusable_child:
        first = heard(source + "fragile", tmp_path / "first", reusable_child)
        assert members(first.pid)
    assert gone(first.pid)
    second = heard(source + "fragile", tmp_path / "second", reusable_child)
    assert isinstance(second.last, Done)
    assert gone(second.pid)


def test_a_run_that_is_over_can_be_cancelled_and_the_child_stays(fragile: Fragile, tmp_path: Path) -> None:
    first = fragile.heard(tmp_path / "first")
    with first.run:
        first.run.cancel()
    assert not first.run.is_cancelled
    assert fragile.heard(tmp_path / "second").pid == first.pid


def test_a_model_that_raises_ends_the_child_and_the_next_is_new(fragile: Fragile, tmp_path: Path) -> None:
    first = fragile.heard(tmp_path / "first")
    with fragile.told_to("raise"):
        second = fragile.heard(tmp_path / "second")
    assert isinstance(second.last, Failed)
    assert "the model raised ValueError within model.1: as asked" in second.last.sentence
    assert second.pid == first.pid
    assert gone(first.pid)
    third = fragile.heard(tmp_path / "third")
    assert third.bytes == first.bytes
    assert third.pid != first.pid


def test_a_child_that_dies_at_work_is_one_sentence(fragile: Fragile, tmp_path: Path) -> None:
    fragile.heard(tmp_path / "first")
    with fragile.told_to("die"):
        second = fragile.heard(tmp_path / "second")
    assert isinstance(second.last, Failed)
    assert (
        "the process was ended by SIGKILL while running; the system may have run out of memory" in second.last.sentence
    )
    assert open_dump(tmp_path / "second").interrupted


def test_a_child_that_dies_while_it_waits_is_not_missed(fragile: Fragile, tmp_path: Path) -> None:
    first = fragile.heard(tmp_path / "first")
    os.killpg(first.pid, signal.SIGKILL)
    assert gone(first.pid)
    second = fragile.heard(tmp_path / "second")
    assert second.bytes == first.bytes
    assert second.pid != first.pid


def test_a_child_that_dies_as_it_is_given_a_job_is_not_missed(fragile: Fragile, tmp_path: Path) -> None:
    first = fragile.heard(tmp_path / "first")
    os.killpg(first.pid, signal.SIGSTOP)
    run = fragile.started(tmp_path / "second")
    assert run.pid == first.pid
    os.killpg(first.pid, signal.SIGKILL)
    events = list(run)
    assert events[0] == Note("the process that waited had ended; a new process is started")
    assert isinstance(events[-1], Done)
    assert files(tmp_path / "second") == first.bytes


def test_cancelling_a_later_run_ends_the_child_and_what_it_started(fragile: Fragile, tmp_path: Path) -> None:
    fragile.heard(tmp_path / "first")
    with fragile.told_to("sleep"):
        run = fragile.started(tmp_path / "second")
        events = iter(run)
        while not isinstance(event := next(events), Phase) or event.name != "running":
            pass
        until(lambda: "sleep" in members(run.pid))
        run.cancel()
        last = list(events)[-1]
    assert isinstance(last, Failed)
    assert "cancelled while running" in last.sentence
    assert gone(run.pid)


def test_a_child_that_waits_ends_with_its_parent(source: str, tmp_path: Path) -> None:
    parsed = parse_source(source + "fragile")
    assert parsed is not None
    code = (
        "import sys, time\nfrom tensordiff.capture.job import Job\nfrom tensordiff.capture.runner import Run\n"
        "from tensordiff.capture.child import ReusableChild\nreusable_child = ReusableChild()\n"
        "run = Run(Job.decode(sys.argv[1]), reusable_child)\nrun.result()\nprint(run.pid, flush=True)\ntime.sleep(600)"
    )
    job = Job(parsed, Settings(), str(tmp_path / "dump"))
    with started([sys.executable, "-c", code, job.encode()], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        group = int(parent.stdout.readline())
        assert members(group)
        parent.kill()
    assert gone(group)


def test_a_child_that_nobody_wants_ends_by_itself() -> None:
    told, tell = os.pipe()
    code = "import sys\nfrom tensordiff.capture.process.child_main import child_main\n"
    code += f"sys.exit(child_main('py', {tell}, is_reusable=True, idle_s=0.1))"
    with started([sys.executable, "-c", code], stdin=subprocess.PIPE, pass_fds=(tell,)) as child:
        os.close(tell)
        assert ended(child) == 0
        assert os.read(told, 1) == b""
    os.close(told)


def test_a_kind_that_cannot_stay_is_ended(source: str) -> None:
    parsed = parse_source(source + "fragile")
    assert parsed is not None
    child = Child(Job(parsed, Settings(), ""))
    with ReusableChild() as reusable_child:
        assert not reusable_child.give_back(child)
    child.end(grace_s=0)
    child.close()
