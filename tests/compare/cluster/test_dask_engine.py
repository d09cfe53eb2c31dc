"""Dask's own cluster: answers to the byte, workers that are lost, Ctrl-C, and clusters that are not there."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import distributed
import pytest

from tensordiff.compare.cluster import dask_engine
from tensordiff.compare.cluster.dask_engine import DaskEngine
from tensordiff.errors import ClusterError
from tests import processes
from tests.cli.command import CANDIDATE, COMMAND, REFERENCE, Call, process
from tests.cli.conftest import call as call
from tests.making import SAMPLES, numbers, write
from tests.test_cases import CASES

BLOCK_DASK = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "distributed":
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
from tensordiff.cli.main import run
sys.argv = ["tensordiff", *sys.argv[1:]]
run()
"""


BLOCK_TENSORDIFF = """
import runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tensordiff":
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Refuse())
module = sys.argv[1]
sys.argv = sys.argv[1:]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


INTERRUPTED_AT_START = """
import asyncio, os, signal, sys
import distributed
async def start(nanny):
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(3600)
distributed.Nanny.start = start
signal.signal(signal.SIGINT, signal.default_int_handler)
from tensordiff.cli.main import run
sys.argv = ["tensordiff", *sys.argv[1:]]
run()
"""


@pytest.mark.parametrize(
    "address",
    ["", "local", "local:0", "local:x", "localhost", "tcp://host", "tcp://:8786", "http://host:1", "tcp://a:b"],
)
def test_an_address_that_is_none(call: Call, address: str) -> None:
    said = call("compare", "nowhere", "no_dump", "--cluster", address)  # known before a dump is looked for
    assert said.status == 2
    assert "neither tcp://HOST:PORT of a Dask scheduler nor local:N" in said.err
    assert "Traceback" not in said.err


def test_a_password_in_an_address_is_not_repeated(call: Call) -> None:
    said = call("compare", REFERENCE, CANDIDATE, "--cluster", "tcp://user:hush@127.0.0.1:8786")
    assert (said.status, "hush" in said.err) == (2, False)
    assert "without a user or a password" in said.err


def test_certificates_that_nothing_names(call: Call) -> None:
    said = call("compare", REFERENCE, CANDIDATE, "--cluster", "tls://127.0.0.1:1")
    assert said.status == 2
    assert "needs the certificates that Dask's own configuration names" in said.err
    assert len(said.err.strip().splitlines()) == 1


def test_workers_that_lack_tensordiff_are_named_and_live_on(tmp_path: Path) -> None:
    with part_of_cluster(tmp_path, "scheduler"), part_of_cluster(tmp_path, "worker", BLOCK_TENSORDIFF) as worker:
        with distributed.Client(scheduler_file=_address(tmp_path), set_as_default=False) as client:
            client.wait_for_workers(1, timeout=processes.PATIENCE_S)
            found = client.scheduler.address
        with pytest.raises(ClusterError, match=r"1 of its 1 workers lack tensordiff \(tcp://.*\); install the same"):
            DaskEngine(found)
        assert worker.poll() is None


def test_workers_that_do_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("Nanny failed to start.")  # as Dask does where a worker is killed meanwhile

    monkeypatch.setattr(distributed, "LocalCluster", fail)
    with pytest.raises(ClusterError, match=r"local:2: its workers could not be started \(RuntimeError: Nanny failed"):
        DaskEngine("local:2")


def test_ctrl_c_while_workers_start() -> None:
    command = [sys.executable, "-c", INTERRUPTED_AT_START, "compare", str(REFERENCE), str(CANDIDATE), "-q"]
    done = subprocess.run([*command, "--cluster", "local:2"], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_no_scheduler_answers() -> None:
    said = process("compare", REFERENCE, CANDIDATE, "--json", "--cluster", "tcp://127.0.0.1:1")
    assert (said.status, said.out) == (2, "")
    assert "tcp://127.0.0.1:1: no scheduler answers there" in said.err
    assert len(said.err.strip().splitlines()) == 1


def test_without_dask_it_says_what_to_install() -> None:
    done = processes.run([sys.executable, "-c", BLOCK_DASK, "compare", REFERENCE, CANDIDATE, "--cluster", "local:2"])
    assert done.returncode == 2
    assert "pip install 'tensordiff[cluster]'" in done.stderr


# Ends its own worker the first time, as the system does where memory ends.
_KILLED = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from tensordiff.compare.cluster import engine as engines
from tensordiff.compare.cluster.dask_engine import DaskEngine
from tensordiff.session.request import Request
from tensordiff.session.session import Session

def measure_or_die(data, asked_by, flag=sys.argv[3]):
    import os, signal
    from pathlib import Path
    from tensordiff.compare.cluster.worker import measure_packed
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return measure_packed(data, asked_by)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    engines.measure_packed = measure_or_die
    session = Session.open(Request(Path(sys.argv[1]), Path(sys.argv[2])))
    here = [repr(row.diff) for row in session.rows()]
    there = [repr(row.diff) for row in replace(session.comparer, cluster="local:2").rows(session.pairs)]
    print(os.path.exists(sys.argv[3]), here == there, len(there))
"""


def test_the_pairs_of_a_killed_worker_are_measured_again(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(_KILLED)
    done = processes.run([sys.executable, script, REFERENCE, CANDIDATE, tmp_path / "flag"])
    assert done.stdout.split() == ["True", "True", "76"], done.stderr
    assert done.stderr == ""


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str], subprocess.Popen[str]]]:
    """The address, the scheduler and the one worker of a cluster, as somebody else would have started it."""
    with part_of_cluster(folder, "scheduler") as scheduler, part_of_cluster(folder, "worker") as worker:
        with distributed.Client(scheduler_file=_address(folder), set_as_default=False) as client:
            client.wait_for_workers(1, timeout=processes.PATIENCE_S)
            found = client.scheduler.address
        yield found, scheduler, worker


def _address(folder: Path) -> str:
    """The file that names a scheduler, once it is there."""
    address = folder / "scheduler.json"
    processes.until(lambda: address.exists() and address.read_text().rstrip().endswith("}"))
    return str(address)


def part_of_cluster(
    folder: Path, what: str, code: str | None = None
) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """A scheduler, or a worker of the one in the same folder; run by some code, if that is given."""
    run = ["-m"] if code is None else ["-c", code]
    start = [sys.executable, *run, f"distributed.cli.dask_{what}", "--no-dashboard"]
    more = {"scheduler": ("--host", "127.0.0.1", "--port", "0"), "worker": ("--nthreads", "1", "--no-nanny")}
    at = ("--scheduler-file", str(folder / "scheduler.json"))
    return processes.started([*start, *at, *more[what]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_a_scheduler_that_is_killed_in_the_midst_is_one_sentence(tmp_path: Path) -> None:
    # More lines than a pipe holds: it cannot have ended before the scheduler does.
    tensors = {f"layers.{k}.mlp-output": numbers(4, 4, seed=k) for k in range(3000)}
    sides = [str(write(tmp_path / side, tensors)) for side in ("ref", "cand")]
    with cluster(tmp_path) as (address, scheduler, _):
        command = [*COMMAND, "compare", *sides, "--cluster", address]
        with processes.started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            assert any(line.startswith("✓") for line in running.stdout)
            scheduler.kill()
            processes.ended(scheduler)
            said, errors = running.communicate(timeout=processes.PATIENCE_S)
    assert running.returncode == 2
    assert "its scheduler was lost before all pairs were measured" in errors
    assert len(errors.strip().splitlines()) == 1, errors
    assert "verdict: agrees" not in said


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_engine, "_CHECK_EVERY_S", 0.1)
    monkeypatch.setattr(dask_engine, "_WORKERS_COME_BACK_S", 1.0)


@pytest.mark.usefixtures("impatient")
def test_a_cluster_that_lost_all_its_workers_ends_with_a_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster(tmp_path) as (address, _, worker), contextlib.closing(DaskEngine(address)) as engine:
        ticket = engine.submit(time.sleep, processes.PATIENCE_S)
        worker.kill()
        with pytest.raises(ClusterError, match="all its workers were lost before all pairs were measured, and none"):
            ticket.result()
    assert [f"--cluster {address}: all its workers are lost; waiting 1 s for others to start"] == caplog.messages


@pytest.mark.usefixtures("impatient")
def test_a_result_is_lost_with_the_worker_that_holds_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with cluster(tmp_path) as (address, _, worker), contextlib.closing(DaskEngine(address)) as engine:
        ticket = engine.submit(abs, -3)
        processes.until(ticket._future.done)
        worker.kill()
        processes.ended(worker)
        with pytest.raises(ClusterError, match="all its workers were lost before all pairs were measured, and none"):
            ticket.result()
    assert caplog.messages


def test_a_worker_that_starts_in_time_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dask_engine, "_CHECK_EVERY_S", 0.1)
    monkeypatch.setattr(dask_engine, "_WORKERS_COME_BACK_S", processes.PATIENCE_S)
    with cluster(tmp_path) as (address, _, worker), contextlib.closing(DaskEngine(address)) as engine:
        worker.kill()
        processes.until(lambda: not engine._threads())
        ticket = engine.submit(abs, -3)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ticket.result)
            processes.until(lambda: caplog.messages)
            with part_of_cluster(tmp_path, "worker"):
                assert waiting.result(processes.PATIENCE_S) == 3


def test_ctrl_c_while_workers_are_waited_for(tmp_path: Path) -> None:
    # More lines than a pipe holds: it cannot have ended before its worker does.
    tensors = {f"layers.{k}.mlp-output": numbers(4, 4, seed=k) for k in range(3000)}
    sides = [str(write(tmp_path / side, tensors)) for side in ("ref", "cand")]
    said = tmp_path / "said"
    with cluster(tmp_path) as (address, _, worker), said.open("w") as errors:
        command = [*COMMAND, "compare", *sides, "--cluster", address]
        with processes.started(command, stdout=subprocess.PIPE, stderr=errors, text=True) as running:
            assert running.stdout is not None
            assert any(line.startswith("✓") for line in running.stdout)
            worker.kill()
            processes.ended(worker)
            reader = ThreadPoolExecutor(1)
            reader.submit(running.stdout.read)
            processes.until(lambda: "all its workers are lost" in said.read_text())
            running.send_signal(signal.SIGINT)
            assert processes.ended(running) == 130
            reader.shutdown()
    assert said.read_text().splitlines()[1:] == ["interrupted"]


def test_ctrl_c_ends_the_workers(tmp_path: Path) -> None:
    # More lines than a pipe holds: it cannot have ended before the signal comes.
    tensors = {f"layers.{k}.mlp-output": numbers(4, 4, seed=k) for k in range(3000)}
    sides = [str(write(tmp_path / side, tensors)) for side in ("ref", "cand")]
    command = [*COMMAND, "compare", *sides, "--cluster", "local:2"]
    with processes.started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert any(line.startswith("✓") for line in running.stdout)
        workers = processes.children(running.pid)
        running.send_signal(signal.SIGINT)
        status, said = processes.ended(running), running.stderr.read()
    assert status == 130
    assert "Traceback" not in said
    processes.until(lambda: not any(map(processes.is_there, workers)))


COMPARED = [
    (REFERENCE, CANDIDATE), (REFERENCE, str(SAMPLES / "max")),
    (REFERENCE, CANDIDATE, "--golden", str(SAMPLES / "golden"), "--injected", str(SAMPLES / "candidate_injected")),
    (str(CASES / "llama_bf16" / "torch"), str(CASES / "llama_bf16" / "max")),
    (str(CASES / "qwen3" / "torch"), str(CASES / "qwen3" / "max")),
]  # fmt: skip


@pytest.mark.parametrize("sides", [COMPARED[0], *(pytest.param(s, marks=pytest.mark.slow) for s in COMPARED[1:])])
def test_the_same_bytes_as_on_one_machine(sides: tuple[str, ...]) -> None:
    if not Path(sides[0]).exists():
        pytest.skip("the cases are not beside this checkout")
    here, there = (process("compare", *sides, "--json", *more) for more in ((), ("--cluster", "local:2")))
    assert here == there


def test_another_cluster_on_this_machine_is_no_news() -> None:
    with socket.socket() as other:
        with contextlib.suppress(OSError):  # somebody else has Dask's usual port
            other.bind(("127.0.0.1", 8787))
            other.listen()
        assert process("compare", REFERENCE, CANDIDATE, "-q", "--cluster", "local:1").err == ""


@pytest.mark.slow
def test_reports_and_searches_are_the_same(tmp_path: Path) -> None:
    for more, name in (((), "here"), (("--cluster", "local:2"), "there")):
        assert process("report", REFERENCE, CANDIDATE, "-o", str(tmp_path / f"{name}.json"), *more).status in (0, 1)
    assert (tmp_path / "here.json").read_bytes() == (tmp_path / "there.json").read_bytes()
    here, there = (
        process("bisect", REFERENCE, CANDIDATE, "--auto", "--json", *more) for more in ((), ("--cluster", "local:2"))
    )
    assert here == there
