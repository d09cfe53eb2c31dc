"""The command ``bisect``: judged by verdict or by a log; ``test_bisect_person`` has the person."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensordiff.dump.readers.safetensors import _Tensor
from tests.cli.command import CANDIDATE, COMMAND, MAX, REFERENCE, Call, assert_one_sentence, process
from tests.cli.test_hostile_names import HOSTILE, is_harmless, shown
from tests.making import numbers, save, save_npy, truncate, write
from tests.processes import run

SAMPLES = ("bisect", REFERENCE, CANDIDATE)


def dumped(folder: Path, profile: str) -> tuple[str, str]:
    """Two dumps: ``.`` agrees, ``x`` diverges, ``?`` cannot be compared."""
    seen = {".": np.ones(4, np.float32), "x": -np.ones(4, np.float32), "?": np.ones(3, np.float32)}
    ones = {f"layers.{k}": seen["."] for k in range(len(profile))}
    others = {f"layers.{k}": seen[letter] for k, letter in enumerate(profile)}
    return str(save(folder / "r.safetensors", ones)), str(save(folder / "c.safetensors", others))


def test_the_samples() -> None:
    said = process(*SAMPLES, "--auto")
    assert (said.status, said.err) == (1, "")
    assert said.out.startswith("35 places, 35 suspects, roughly 6 steps\nassuming that everything before the first bad")
    assert "\nfirst bad: layers.1.mlp.act_fn\n  rel_l2 8.3e-02\n" in said.out
    assert "not monotone (good after a bad one: layers.1.mlp.up_proj), so a scan may answer otherwise" in said.out
    assert f"tensordiff compare {REFERENCE} {CANDIDATE}" in said.out


def test_the_samples_as_json() -> None:
    said = process(*SAMPLES, "--auto", "--json")
    assert (said.status, said.err) == (1, "")
    found = json.loads(said.out)
    compared = json.loads(process("compare", REFERENCE, CANDIDATE, "--json").out)
    assert found["schema"] == "tensordiff.bisect/1"
    assert {k: v for k, v in found["first_bad"].items() if k != "why"} == {
        k: v for k, v in compared["culprit"].items() if k in found["first_bad"] and k != "why"
    }
    assert set(found["first_bad"]) == {"index", "name", "port", "reference", "candidate", "why"}
    assert found["suspects"] == [{"index": 57, "name": "layers.1.mlp.act_fn", "port": "output"}]
    assert (found["monotone"], found["verdict"]) == (False, "diverges")
    numbers_there = {row["index"]: row["diff"]["rel_l2"] for row in compared["pairs"]}
    for probe in found["probes"] + found["checks"]:
        assert probe["rel_l2"] == numbers_there[probe["index"]]
        assert probe["mark"] == ("bad" if probe["rel_l2"] > 1e-3 else "good")


def test_two_dumps_that_agree(call: Call) -> None:
    said = call("bisect", REFERENCE, MAX, "--auto")
    assert (said.status, said.err) == (0, "")
    assert "\nnothing is bad\n" in said.out
    assert said.out.endswith("\nverdict: agrees\n")
    found = json.loads(call("bisect", REFERENCE, MAX, "--auto", "--json").out)
    assert (found["first_bad"], found["suspects"], found["monotone"]) == (None, [], True)


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return dumped(tmp_path_factory.mktemp("deep"), "." * 7213 + "x" * 2787)


def test_ten_thousand_layers_take_about_fourteen_pairs(
    call: Call, deep: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    real = _Tensor.read

    def noted(tensor: _Tensor) -> Any:
        reads.append(f"{tensor.file.path} {tensor.row}")
        return real(tensor)

    monkeypatch.setattr(_Tensor, "read", noted)
    said = call("bisect", *deep, "--auto", "--json")
    found = json.loads(said.out)
    assert (said.status, found["first_bad"]["name"], found["monotone"]) == (1, "layers.7213", True)
    assert len(found["probes"]) <= 14
    assert len(found["checks"]) <= 4
    assert len(reads) == len(set(reads)) == 2 * (len(found["probes"]) + len(found["checks"]))


def test_tolerances_of_the_user_decide(call: Call) -> None:
    assert call(*SAMPLES, "--auto", "--threshold", "0.5").status == 0
    assert call(*SAMPLES, "--auto", "--only", "layers.0").status == 0


def test_skips_leave_suspects(call: Call, tmp_path: Path) -> None:
    dumps = dumped(tmp_path, "...??xxx")
    said = call("bisect", *dumps, "--auto")
    assert said.status == 1
    assert "skips leave several suspects: layers.3, layers.4, layers.5" in said.out
    found = json.loads(call("bisect", *dumps, "--auto", "--json").out)
    assert found["first_bad"] is None
    assert [place["index"] for place in found["suspects"]] == [3, 4, 5]
    assert {probe["rel_l2"] for probe in found["probes"] if probe["mark"] == "skip"} == {None}


def test_nothing_can_be_judged(call: Call, tmp_path: Path) -> None:
    said = call("bisect", *dumped(tmp_path, "???"), "--auto")
    assert_one_sentence(said, "3 places were skipped and none is known to be bad, first layers.0: shapes [4] and [3]")
    assert said.out.endswith("\nverdict: unknown\n")


def test_files_that_could_not_be_read(call: Call, tmp_path: Path) -> None:
    save(tmp_path / "c" / "a.safetensors", {"a": numbers(64)})
    truncate(save(tmp_path / "c" / "b.safetensors", {"b": numbers(64)}))
    assert_one_sentence(call("bisect", tmp_path / "c", tmp_path / "c", "--auto"), "nothing is bad, but ")


def test_dumps_without_an_order_say_so(call: Call, tmp_path: Path) -> None:
    made = save_npy(tmp_path / "d", {"a": numbers(2), "b": numbers(3)})
    assert "neither dump says in which order" in call("bisect", made, made, "--auto").out


def test_nothing_is_paired(call: Call, tmp_path: Path) -> None:
    one, other = (
        save(tmp_path / "r.safetensors", {"a": numbers(3)}),
        save(tmp_path / "c.safetensors", {"b": numbers(4)}),
    )
    assert_one_sentence(call("bisect", one, other, "--auto"), "nothing could be paired")
    assert_one_sentence(call(*SAMPLES, "--auto", "--only", "nowhere"), "none of the 76 pairs is named like 'nowhere'")


def test_without_a_terminal() -> None:
    done = run([*COMMAND, *SAMPLES], stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "tensordiff: bisect asks a person, and there is no terminal to ask on; judge by verdict with --auto\n"
    )


def test_a_candidate_that_cannot_be_run_again(call: Call) -> None:
    assert_one_sentence(call(*SAMPLES, "--rerun"), "does not say which source made it", "judge with --auto")


def test_a_log_is_written_and_replayed(call: Call, tmp_path: Path) -> None:
    dumps, log = dumped(tmp_path, "......xxxx"), tmp_path / "log"
    assert call("bisect", *dumps, "--auto", "--log", log).status == 1
    assert "\nbad 6 layers.6\n" in log.read_text()
    assert log.read_text().endswith("\n# first bad: 6 layers.6\n")
    said = call("bisect", *dumps, "--replay", log)  # nobody has to be asked
    assert said.status == 1
    assert "first bad: layers.6" in said.out


def test_a_log_is_gone_on_with(call: Call, tmp_path: Path) -> None:
    dumps, log = dumped(tmp_path, "......xxxx"), tmp_path / "log"
    log.write_text("bad 8\n")
    found = json.loads(call("bisect", *dumps, "--auto", "--json", "--replay", log, "--log", log).out)
    assert found["probes"][0] == {
        "index": 8, "name": "layers.8", "port": "output", "rel_l2": 2.0, "verdict": "diverges", "mark": "bad",
    }  # fmt: skip
    assert found["first_bad"]["index"] == 6
    assert "\nbad 8 layers.8\n" in log.read_text()


def test_a_log_is_not_overwritten(call: Call, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("good 1\n")
    assert_one_sentence(call(*SAMPLES, "--auto", "--log", log), f"{log}: is there already", f"--replay {log}")
    assert log.read_text() == "good 1\n"


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        ("fine 1", "line 1: 'fine 1' is not a mark"),
        ("good 0", "line 1: number 0 is not one of the places"),
        ("\0", "is not a mark"),
    ],
)
def test_a_bad_log(call: Call, tmp_path: Path, log: str, sentence: str) -> None:
    (tmp_path / "log").write_text(log)
    assert_one_sentence(call(*SAMPLES, "--auto", "--replay", tmp_path / "log"), f"{tmp_path / 'log'}: ", sentence)


def test_a_log_that_is_not_there_or_cannot_be(call: Call, tmp_path: Path) -> None:
    assert_one_sentence(call(*SAMPLES, "--auto", "--replay", tmp_path / "no"), "cannot be read (No such file")
    assert_one_sentence(call(*SAMPLES, "--auto", "--replay", tmp_path), "cannot be read (Is a directory)")
    assert_one_sentence(call(*SAMPLES, "--auto", "--log", tmp_path / "no" / "log"), "cannot be written")


def test_a_log_without_end(call: Call) -> None:
    assert_one_sentence(call(*SAMPLES, "--auto", "--replay", "/dev/zero"), "is too long to be a log")


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_hostile_names(call: Call, tmp_path: Path, name: str) -> None:
    reference, log = write(tmp_path / "r", {"a": numbers(4), name: numbers(4)}), tmp_path / "log"
    candidate = write(tmp_path / "c", {"a": numbers(4), name: -numbers(4)})
    said = call("bisect", reference, candidate, "--auto", "--log", log)
    assert (said.status, said.err) == (1, "")
    assert is_harmless(said.out)
    assert is_harmless(log.read_text())
    assert f"\nfirst bad: {shown(name)}\n" in said.out
    assert call("bisect", reference, candidate, "--replay", log).status == 1
