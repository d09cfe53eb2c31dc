"""``tensordiff doctor``: it tells of this install as it is, and notices one that is broken."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tensordiff.cli import device_checks
from tensordiff.cli.commands import doctor
from tensordiff.compare.measure import dispatch, kernel
from tensordiff.compare.measure.diff import Diff
from tensordiff.dump.dtypes import Array
from tests.cli.command import Call, process


@pytest.fixture(autouse=True)
def no_frameworks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing frameworks to ask for devices takes seconds, and is for the tests that look at that."""
    if "devices" not in request.node.name:
        monkeypatch.setattr(doctor, "device_checks", lambda: iter(()))


def states(call: Call) -> dict[str, tuple[str, str]]:
    found = json.loads(call("doctor", "--json").out)
    assert found["schema"] == doctor.SCHEMA
    return {check["what"]: (check["state"], check["says"]) for check in found["checks"]}


def test_all_is_well_here(call: Call) -> None:
    said = call("doctor")
    assert (said.status, said.err) == (0, "") and said.out.endswith("all is well\n")
    assert kernel.describe() in " ".join(said.out.split())
    assert "layers.1.mlp.act_fn" in said.out


def test_an_engine_is_there_if_its_packages_are(call: Call) -> None:
    pytest.importorskip("onnxruntime")
    found = states(call)
    assert found["onnx:"][0] == "ok" and "onnxruntime 1." in found["onnx:"][1]


def test_an_engine_that_is_not_there_is_no_problem(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "interpreter", lambda kind: "/nowhere/python" if kind == "hf" else sys.executable)
    found = states(call)
    assert found["hf:"][0] == "missing" and "torch" in found["hf:"][1] and "(/nowhere/python)" in found["hf:"][1]
    assert call("doctor").status == 0


def test_devices_are_told_for_each_framework(call: Call) -> None:
    pytest.importorskip("torch")
    found = states(call)
    assert found["torch devices"][0] == "ok" and found["torch devices"][1].startswith("cpu")
    assert found["self-check on cpu"] == ("ok", "20 tensors of a small model, captured and read back")


def test_devices_are_not_well_where_nothing_can_be_captured(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    broken = tmp_path / "self_check.py"
    broken.write_text("def cpu():\n    raise RuntimeError('no kernel image')\n")
    monkeypatch.setattr(device_checks, "_SELF_CHECK", broken)
    said = call("doctor")
    assert said.status == 2 and "no kernel image" in said.out and "1 not as it should be" in said.out


def test_devices_of_a_capture_that_holds_something_else(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    right = device_checks._capture

    def capture(device: str, folder: Path) -> None:
        right(device, folder)
        for shard in (folder / device).glob("*.safetensors"):
            shard.write_bytes(shard.read_bytes()[:-4] + bytes(4))  # the last number of the output

    monkeypatch.setattr(device_checks, "_capture", capture)
    assert states(call)["self-check on cpu"][0] == "problem"


@pytest.mark.parametrize(("python", "states"), [("/nowhere/python", []), ("/bin/false", ["problem"] * 5)])
def test_an_interpreter_whose_devices_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch, python: str, states: list[str]
) -> None:
    monkeypatch.setattr(device_checks, "interpreter", lambda kind: python)
    assert [check.state for check in device_checks.device_checks()] == states


def test_devices_of_vllm_are_told_by_its_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To import it takes many seconds, so it is not."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise RuntimeError('imported')")
    about = tmp_path / "vllm-0.99.0+cpu.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.99.0+cpu\n")
    (about / "top_level.txt").write_text("vllm\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(device_checks, "_FRAMEWORKS", {"vllm": "py"})
    (check,) = device_checks.device_checks()
    assert check.state == "ok" and check.says.startswith("cpu, for which it was built")


@pytest.mark.parametrize(
    ("text", "why"),
    [("[engines]\nvllm = 'here'\n", "should be the absolute path"), ("x = [", "is not valid TOML")],
)
def test_a_configuration_that_names_no_interpreter_is_a_line_of_its_own(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    (tmp_path / "tensordiff").mkdir()
    (tmp_path / "tensordiff" / "tensordiff.toml").write_text(text)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found = states(call)
    assert found["vllm:"][0] == "problem" and why in found["vllm:"][1]
    assert found["sample dumps"][0] == "ok"


def test_a_state_folder_that_cannot_be_made_is_told(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file" / "state"))
    assert call("doctor").status == 2
    assert states(call)["state folder"][0] == "problem"


def test_an_install_without_a_compiler_says_so_and_is_right() -> None:
    said = process("doctor", env={"TENSORDIFF_KERNEL": "/nowhere/kernel.so"})
    told = " ".join(said.out.split())
    assert said.status == 0 and "in numpy, as there is no compiled pass" in told
    assert "numpy's pass measures 8 types as plain arithmetic in float64 does" in told
    assert "sums differ in their last digits" in told and "results are the same" not in told
    assert told.endswith("all is well, but measuring is slow")


@pytest.mark.parametrize("wrong", ["max_abs", "mse"])
@pytest.mark.parametrize("compiled", [None, False])
def test_a_pass_that_measures_wrong_is_noticed(
    call: Call, monkeypatch: pytest.MonkeyPatch, wrong: str, compiled: bool | None
) -> None:
    """Also in an install that has numpy's alone, which was once compared with itself."""
    right = dispatch.measure

    def measure(ref: Array, cand: Array) -> Diff:
        found = right(ref, cand, compiled=compiled)
        return found._replace(**{wrong: getattr(found, wrong) * 1.001})

    monkeypatch.setattr(dispatch, "measure", measure)
    assert call("doctor").status == 2
    assert states(call)["self-check"][0] == "problem"
