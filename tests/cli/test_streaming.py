"""``--stream`` on the command line: what it prints, keeps and leaves, and how it ends."""

from __future__ import annotations

import json
import shlex
import signal
from pathlib import Path

import pytest

from tensordiff.cli.streaming import parse_keep
from tensordiff.dump import open_dump
from tests import processes
from tests.capture.models import SMALL, script, tiny_model
from tests.cli.command import CAPTURING, COMMAND, Call, assert_one_sentence, capturing, environment
from tests.mounts import on_small_disk
from tests.processes import children, ended, is_there, on_terminal, open_files, run, until

pytest.importorskip("torch")
SLOW = (
    SMALL
    + """
import time
from pathlib import Path
HERE = Path(__file__).parent

def wide():
    net, _, kwargs = good()
    return net, (torch.linspace(-1, 1, 80000).reshape(20000, 4),), kwargs

def slow():
    net, args, kwargs = good()
    def hook(module, given):
        if (HERE / "listed").exists():
            (HERE / "sleeping").touch()
            time.sleep(600)
        (HERE / "listed").touch()
    net.last.register_forward_pre_hook(hook)
    return net, args, kwargs

def slow_bad():
    net, args, kwargs = slow()
    net.blocks[2].act = bad()[0].blocks[2].act
    return net, args, kwargs
"""
)


@pytest.fixture
def source(tmp_path: Path) -> str:
    return f"py:{script(tmp_path, SLOW)}:"


def windows(process: int) -> set[Path]:
    """The folders of the windows whose locks a process holds; others may run beside this test."""
    opened = open_files(process)
    return {path.parent for path in opened if path.name == "lock" and "tensordiff-stream-" in path.parent.name}


def test_what_says_how_to_stream_is_for_streams(call: Call) -> None:
    for option in (["--stop"], ["--window", "1GB"]):
        said = call("compare", "a", "b", *option)
        assert said.status == 2 and f"{option[0]} is for --stream" in said.err


def test_two_dumps_have_nothing_to_stream(call: Call, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    said = call("compare", tmp_path / "a", tmp_path / "b", "--stream")
    assert_one_sentence(said, "both sides are dumps; leave it out")


def test_parameters_are_not_streamed(call: Call, source: str) -> None:
    said = call("compare", source + "good", source + "bad", "--stream", "--weights")
    assert_one_sentence(said, "parameters are not streamed; compare them with tensordiff weights")


def test_layers_are_not_saved_of_a_stream(call: Call, source: str, tmp_path: Path) -> None:
    said = call("verify", source + "good", source + "bad", "-o", tmp_path / "out", "--stream", "--save-layers")
    assert said.status == 2 and "--save-layers is not for --stream" in said.err


def test_what_keep_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_keep("diverging") == ("diverging", Path("tensordiff-kept"))
    assert parse_keep("all:runs/x") == ("all", Path("runs/x"))
    assert parse_keep("runs") == ("diverging", Path("runs"))
    assert parse_keep("./all") == ("diverging", Path("all"))
    (tmp_path / "tensordiff-kept").mkdir()
    assert parse_keep("none") == ("none", Path("tensordiff-kept-2"))


def test_the_json_is_that_of_two_dumps(source: str, tmp_path: Path) -> None:
    command = ("compare", source + "good", source + "bad", "--json")
    with_dumps = capturing(*command)
    kept = tmp_path / "kept"
    streamed = capturing(*command, "--stream", "--keep", str(kept))
    found, expected = json.loads(streamed.out), json.loads(with_dumps.out)
    for whole in (found, expected):
        for side in ("reference", "candidate"):
            del whole[side]["path"]
    assert found == expected
    assert streamed.status == with_dumps.status == 1
    assert f"tensors (760 B) in {kept / 'reference'}" in streamed.err
    assert f"open it with: tensordiff {kept / 'reference'} {kept / 'candidate'}" in streamed.err
    assert "model.blocks.2.act-output" in {entry.name for entry in open_dump(kept / "reference").entries}


def test_verify_streams(source: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = capturing("verify", source + "good", source + "bad", "-o", str(out), "--stream", "--json")
    assert said.status == 1, said.err
    found = json.loads(said.out)
    assert found["culprit"]["name"] == "blocks.2.act" and "--inject-at model.blocks.2.act" in found["left_out"]
    assert (out / "without_injection" / "report.html").is_file() and (out / "summary.md").is_file()
    assert {path.name for path in (out / "kept").iterdir()} == {"reference", "candidate"}
    line = found["left_out"].partition("; inject with: tensordiff ")[2].replace(" -o DIR", "")
    injected = capturing(*line.split(), "-o", str(tmp_path / "injected"))
    assert injected.status == 0, injected.err
    assert open_dump(tmp_path / "injected").facts["injection"]
    assert "with --stream only the culprit's inputs are kept" in found["left_out"]
    assert f"Inject with: `tensordiff {line} -o DIR`" in (out / "summary.md").read_text()


def commands_of(summary: str) -> list[list[str]]:
    """The commands that a summary proposes, by their words, in order."""
    lines = (line for line in summary.partition("What to try next")[2].split("`") if line.startswith("tensordiff "))
    return [shlex.split(line)[1:] for line in lines]


def test_what_a_streamed_verification_proposes_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    good = tiny_model("llama", tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(good)
    model.model.layers[1].mlp.down_proj.weight.data *= 1.3
    model.save_pretrained(tmp_path / "bad")
    monkeypatch.chdir(tmp_path)
    sides = f"hf:{good}", f"hf:{tmp_path / 'bad'}"
    said = capturing("verify", *sides, "--input-ids", "3,14,15,92", "--device", "cpu", "-o", "out", "--stream")
    assert said.status == 1, said.err
    summary = (tmp_path / "out" / "summary.md").read_text()
    assert "--save-layers" not in summary and "out/kept/reference" in summary
    assert "Only what diverges was kept: verify again with `--keep all`" in summary
    proposed = [words for words in commands_of(summary) if words[0] not in ("align", "lint")]
    assert [words[0] for words in proposed[1:]] == ["report", "replay", "capture", "compare"]
    for words in proposed:
        found = capturing(*words)
        assert found.status == (0 if words[0] == "capture" else 1), (words, found.err)
    assert open_dump(tmp_path / "DIR").facts["injection"]


def test_a_verification_that_kept_nothing_says_how_to_keep_it(source: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = capturing("verify", source + "good", source + "bad", "-o", str(out), "--stream", "--keep", "none")
    assert said.status == 1, said.err
    summary = (out / "summary.md").read_text()
    assert "Nothing was kept: verify again with `--keep all`" in summary
    assert "tensordiff replay" not in summary and "--save-layers" not in summary


def test_both_runs_end_at_the_first_culprit(source: str, tmp_path: Path) -> None:
    command = ("compare", source + "good", source + "bad", "--stream", "--stop", "--keep", f"all:{tmp_path / 'kept'}")
    said = capturing(*command, "--json")
    found = json.loads(said.out)
    assert said.status == 1 and found["culprit"]["name"] == "blocks.2.act"
    assert found["stopped"] == {"pairs": len(found["pairs"]), "of": 40} and len(found["pairs"]) < 40
    assert f"stopped at the first culprit: {len(found['pairs'])} of 40 pairs were compared" in said.err


@pytest.mark.parametrize("where", ["window", "kept"])
def test_a_disk_that_becomes_full_is_one_sentence(where: str, source: str, tmp_path: Path) -> None:
    small = tmp_path / where
    small.mkdir()
    command = [*COMMAND, "compare", source + "wide", source + "wide", "--stream", "-q"]
    if where == "window":  # so large a window does not fit into memory
        command += ["--window", "1000TB", "--keep", "none"]
    else:
        command += ["--keep", f"all:{small / 'runs'}"]
    env = environment({"TMPDIR": str(small)} if where == "window" else None)
    said = run(on_small_disk(command, small, "2m"), env=env)
    assert said.returncode == 2, said.stderr
    last = said.stderr.splitlines()[-1]
    assert "no space left on device" in last and ("--window" if where == "window" else "--keep none") in last
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=str)
def test_a_stream_that_is_ended_leaves_nothing(
    number: signal.Signals, status: int, source: str, tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    command = [*COMMAND, "compare", source + "good", source + "slow", "--stream", "--keep", "none"]
    with on_terminal(command, env=environment({"TMPDIR": str(tmp_path / "tmp")})) as (terminal, started):
        terminal.read_until((tmp_path / "sleeping").exists)
        running, opened = children(started.pid), windows(started.pid)
        assert running and len(opened) == 2
        started.send_signal(number)
        assert terminal.read_until_ended(started) == status
    until(lambda: not any(map(is_there, running)))
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not any(folder.exists() for folder in opened)


def test_what_was_found_and_kept_is_told_at_ctrl_c(source: str, tmp_path: Path) -> None:
    kept, said = tmp_path / "kept", tmp_path / "said"
    command = [*CAPTURING, "compare", source + "good", source + "slow_bad", "--stream", "-q", "--keep", str(kept)]
    with said.open("w") as errors, processes.started(command, stdout=errors, stderr=errors) as running:
        until((tmp_path / "sleeping").exists)
        until(lambda: len(list((kept / "candidate").glob("*"))) > 1)  # the first is noted once the second is there
        running.send_signal(signal.SIGINT)
        assert ended(running) == 130
    lines = said.read_text().splitlines()
    assert "of 40 pairs were compared, the first culprit so far is blocks.2.act: " in lines[-5]
    assert lines[-4].startswith("kept ") and lines[-4].endswith(str(kept / "reference"))
    assert lines[-3].startswith("kept ") and lines[-3].endswith(str(kept / "candidate"))
    assert lines[-2:] == [f"open it with: tensordiff {kept / 'reference'} {kept / 'candidate'}", "interrupted"]
    assert len(open_dump(kept / "reference").entries)
