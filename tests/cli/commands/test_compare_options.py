"""What each option of ``compare`` changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.command import CANDIDATE, REFERENCE, Call, Said, assert_one_sentence
from tests.making import SAMPLES, Tensors, nudged, numbers, save, write

ARRAY = numbers(16, 16)


def names(said: Said) -> list[str]:
    return [pair["reference"] for pair in json.loads(said.out)["pairs"]]


def verdicts(said: Said) -> list[str]:
    return [pair["verdict"] for pair in json.loads(said.out)["pairs"]]


@pytest.fixture
def two(tmp_path: Path) -> Any:
    """Make the two dumps of a comparison."""

    def make(reference: Tensors, candidate: Tensors) -> tuple[Path, Path]:
        return save(tmp_path / "r.safetensors", reference), save(tmp_path / "c.safetensors", candidate)

    return make


@pytest.mark.parametrize(("threshold", "status"), [("0.2", 0), ("0.08", 1), ("1e-9", 1)])
def test_threshold_decides_on_rel_l2(call: Call, threshold: str, status: int) -> None:
    assert call("compare", REFERENCE, CANDIDATE, "--threshold", threshold, "-q").status == status


def test_threshold_forgives_what_the_floor_would_not(call: Call, two: Any) -> None:
    made = two({"a": ARRAY}, {"a": nudged(ARRAY, 0.1)})
    assert call("compare", *made, "-q").status == 1
    assert call("compare", *made, "-q", "--threshold", "0.11").status == 0


def test_atol_alone_means_rtol_nothing(call: Call, two: Any) -> None:
    made = two({"a": np.full(4, 100.0)}, {"a": np.full(4, 100.5)})
    assert call("compare", *made, "--atol", "0.6", "-q").status == 0
    said = call("compare", *made, "--atol", "0.4", "-q")
    assert said.status == 1
    assert "4 elements (100%) outside atol 0.4 + rtol 0" in said.out


def test_rtol_alone_means_atol_nothing(call: Call, two: Any) -> None:
    made = two({"a": np.array([100.0, 0.0])}, {"a": np.array([100.5, 1e-9])})
    assert call("compare", *made, "--rtol", "0.01", "-q").status == 1
    assert call("compare", *made, "--rtol", "0.01", "--atol", "1e-8", "-q").status == 0


def test_outside_is_counted_by_the_tolerance_given(call: Call, two: Any) -> None:
    made = two({"a": np.zeros(4)}, {"a": np.array([0.0, 1.0, 2.0, 3.0])})
    [pair] = json.loads(call("compare", *made, "--atol", "1.5", "--json").out)["pairs"]
    assert pair["diff"]["outside"] == 2


def test_the_injected_run_is_counted_by_the_tolerance_given_too(call: Call, two: Any) -> None:
    made = two({"a": np.zeros(4)}, {"a": np.array([0.0, 1.0, 2.0, 3.0])})
    [pair] = json.loads(call("compare", *made, "--injected", made[1], "--atol", "1.5", "--json").out)["pairs"]
    assert pair["injected"]["outside"] == 2


@pytest.mark.parametrize("option", ["--atol", "--rtol", "--threshold"])
@pytest.mark.parametrize("value", ["-1", "nan", "inf", "some"])
def test_what_is_no_size_is_refused(call: Call, option: str, value: str) -> None:
    assert_one_sentence(call("compare", REFERENCE, CANDIDATE, option, value), option, "see tensordiff compare --help")


def test_only_leaves_the_layers_it_matches(call: Call) -> None:
    said = call("compare", REFERENCE, CANDIDATE, "--only", r"layers\.0\.mlp\.down", "--json")
    assert names(said) == [f"model.model.layers.0.mlp.down_proj-{port}" for port in ("input_0", "output")]
    assert said.status == 0


def test_only_matches_the_name_in_the_dump_as_well(call: Call) -> None:
    assert names(call("compare", REFERENCE, CANDIDATE, "--only", "down_proj-input_0$", "--json")) == [
        "model.model.layers.0.mlp.down_proj-input_0",
        "model.model.layers.1.mlp.down_proj-input_0",
    ]


def test_only_that_leaves_nothing_says_so(call: Call) -> None:
    said = call("compare", REFERENCE, CANDIDATE, "--only", "nowhere")
    assert_one_sentence(said, "none of the 76 pairs is named like 'nowhere'")
    assert "found a partner" not in said.out, "the option left nothing, not the names"
    said = call("compare", REFERENCE, CANDIDATE, "--only", "gate_prj")
    assert_one_sentence(said, "the nearest is layers.0.mlp.gate_proj")


def test_only_must_be_a_regular_expression(call: Call) -> None:
    said = call("compare", REFERENCE, CANDIDATE, "--only", "layers.(0")
    assert_one_sentence(said, "--only 'layers.(0' is not a regular expression", "position 7")
    assert said.out == ""


def test_step_leaves_one_step(call: Call, tmp_path: Path) -> None:
    for step, error in ((0, 0.0), (1, 0.5)):
        write(tmp_path / "r" / str(step), {"a": ARRAY}, step=step)
        write(tmp_path / "c" / str(step), {"a": nudged(ARRAY, error)}, step=step)
    assert call("compare", tmp_path / "r", tmp_path / "c", "-q").status == 1
    assert call("compare", tmp_path / "r", tmp_path / "c", "-q", "--step", "0").status == 0
    said = call("compare", tmp_path / "r", tmp_path / "c", "--step", "1", "--json")
    assert [pair["step"] for pair in json.loads(said.out)["pairs"]] == [1]


def test_a_step_that_is_not_there_says_so(call: Call) -> None:
    said = call("compare", REFERENCE, CANDIDATE, "--step", "7")
    assert_one_sentence(said, "none of the 76 pairs is of step 7", "tensordiff inspect lists the names and steps")


def test_rules_make_names_alike(call: Call, two: Any, tmp_path: Path) -> None:
    made = two({"encoder.a": ARRAY}, {"tower.a": ARRAY})
    assert call("compare", *made, "--no-learn").status == 2
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nside = "candidate"\nmatch = "^tower"\nreplace = "encoder"\n')
    said = call("compare", *made, "--rules", rules, "--json")
    assert said.status == 0
    [pair] = json.loads(said.out)["pairs"]
    assert (pair["name"], pair["candidate"], pair["by"]) == ("encoder.a", "tower.a", "rule")


def test_rules_that_are_not_there(call: Call) -> None:
    assert_one_sentence(call("compare", REFERENCE, CANDIDATE, "--rules", "no.toml"), "no.toml")


def test_golden_shows_each_side_s_own_error(call: Call, two: Any, tmp_path: Path) -> None:
    exact = numbers(64, 64, dtype="float64")
    made = two({"a": nudged(exact, 1e-4)}, {"a": nudged(exact, 1e-3, seed=2)})
    golden = save(tmp_path / "g.safetensors", {"a": exact})
    [pair] = json.loads(call("compare", *made, "--golden", golden, "--json").out)["pairs"]
    assert pair["golden_ratio"] == pytest.approx(10, rel=1e-6)


@pytest.mark.parametrize("option", ["--golden", "--injected"])
def test_a_third_dump_of_another_model_is_not_passed_over(call: Call, two: Any, tmp_path: Path, option: str) -> None:
    made = two({"a": ARRAY}, {"a": ARRAY})
    other = save(tmp_path / "other.safetensors", {"b": ARRAY})
    assert_one_sentence(call("compare", *made, option, other), "other.safetensors", "same model")


@pytest.mark.parametrize("option", ["--golden", "--injected"])
def test_a_third_dump_that_is_not_there(call: Call, option: str) -> None:
    assert_one_sentence(call("compare", REFERENCE, CANDIDATE, option, "nowhere"), "nowhere: no such file or folder")


def test_injected_tells_victims_from_culprits(call: Call) -> None:
    injected = SAMPLES / "candidate_injected"
    said = call("compare", REFERENCE, CANDIDATE, "--injected", injected, "--only", "down_proj$|act_fn$", "--json")
    found = {p["reference"]: p["verdict"] for p in json.loads(said.out)["pairs"]}
    assert found["model.model.layers.1.mlp.act_fn-output"] == "diverges"
    assert found["model.model.layers.1.mlp.down_proj-input_0"] == "drifts"
    assert found["model.model.layers.1.mlp.down_proj-output"] == "drifts"


def test_a_threshold_beats_what_injection_would_forgive(call: Call, two: Any) -> None:
    reference, candidate = two({"a": ARRAY}, {"a": nudged(ARRAY, 0.1)})
    assert call("compare", reference, candidate, "--injected", reference, "-q").status == 2
    assert call("compare", reference, candidate, "--injected", reference, "-q", "--threshold", "0.01").status == 1


def test_the_culprits_largest_errors(call: Call) -> None:
    said = call("compare", REFERENCE, CANDIDATE, "-q", "--worst", 3)
    lines = said.out.splitlines()
    start = lines.index("  largest errors: |Δ|, place, reference, candidate")
    assert lines[start + 1].startswith("    0.0460884 at [0, 8, 67]: ") and len(lines[start + 1 :]) == 3
    worst = json.loads(call("compare", REFERENCE, CANDIDATE, "--worst", 2, "--json").out)["culprit"]["worst"]
    assert worst[0]["index"] == [0, 8, 67] and len(worst) == 2
    assert abs(worst[0]["candidate"] - worst[0]["reference"]) == worst[0]["error"]
