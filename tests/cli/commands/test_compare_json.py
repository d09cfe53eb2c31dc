"""``compare --json``: one strict object, with all that the contract promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.command import CANDIDATE, REFERENCE, Call, process
from tests.making import SAMPLES, numbers, save, write

NUMBER = (int, float)
DUMP = {"path": str, "format": str, "entries": int, "source": (str, type(None))}
DIFF: dict[str, Any] = {
    "max_abs": NUMBER, "max_abs_index": list, "max_rel": NUMBER, "max_rel_index": list, "mean_abs": NUMBER,
    "mse": NUMBER, "rms": NUMBER, "rel_l2": NUMBER, "cosine_distance": NUMBER, "outside": int, "elements": int,
    "nan": list, "inf": list,
}  # fmt: skip
PAIR: dict[str, Any] = {
    "index": int, "name": str, "port": str, "step": int, "call": int, "reference": str, "candidate": str, "by": str,
    "views": list, "dtype": list, "shape": list, "diff": dict, "injected": (dict, type(None)),
    "golden_ratio": (*NUMBER, type(None)), "hint": (dict, type(None)), "verdict": str, "why": str,
}  # fmt: skip
CULPRIT: dict[str, Any] = {
    "index": int, "name": str, "port": str, "reference": str, "candidate": str, "why": str, "hint": (dict, type(None)),
}  # fmt: skip
STATISTICS = dict.fromkeys(("min", "max", "mean", "median"), NUMBER)


def strictly(text: str) -> Any:
    """Parse as any strict parser would: ``NaN`` and ``Infinity`` are no JSON."""

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def has(value: dict[str, Any], promised: dict[str, Any]) -> None:
    for key, kind in promised.items():
        assert isinstance(value[key], kind), (key, value[key])
        assert not isinstance(value[key], bool)


@pytest.fixture(scope="module")
def whole() -> Any:
    said = process(
        "compare", REFERENCE, CANDIDATE, "--json",
        "--injected", str(SAMPLES / "candidate_injected"), "--golden", str(SAMPLES / "golden"),
    )  # fmt: skip
    assert said.status == 1
    assert said.err == ""
    assert said.out.count("\n") == 1
    return strictly(said.out)


def test_top_level(whole: Any) -> None:
    assert whole["schema"] == "tensordiff.compare/1"
    assert whole["verdict"] == "diverges"
    has(whole["reference"], DUMP)
    has(whole["candidate"], DUMP)
    assert whole["reference"]["format"] == "torch-hook"
    assert whole["candidate"]["entries"] == 76


def test_alignment(whole: Any) -> None:
    assert whole["alignment"] == {
        "pairs": 76, "coverage": 1.0, "coverage_bytes": 1.0, "order": "same",
        "orphans": {"reference": [], "candidate": []}, "left_out": [], "learned": [], "namesakes": [],
        "unanswered_output": None,
    }  # fmt: skip
    compared = {"compared": 35, "of": 35, "share": 1.0, "share_of_bytes": 1.0}
    assert whole["coverage"] == {"reference": compared, "candidate": compared, "minimum": 0.5, "in_part": []}
    assert whole["doubts"] == []


def test_every_pair_has_every_key(whole: Any) -> None:
    assert [pair["index"] for pair in whole["pairs"]] == list(range(76))
    for pair in whole["pairs"]:
        has(pair, PAIR)
        has(pair["diff"], DIFF)
        has(pair["injected"], DIFF)
        assert pair["by"] in ("name", "rule", "map", "fused", "value", "learned")
        assert pair["verdict"] in ("agrees", "drifts", "diverges", "unknown")
        assert len(pair["dtype"]) == 2
        assert len(pair["diff"]["max_abs_index"]) == len(pair["shape"])
        assert pair["diff"]["elements"] == np.prod(pair["shape"])


def test_the_culprit(whole: Any) -> None:
    has(whole["culprit"], CULPRIT)
    assert whole["culprit"]["index"] == 57
    assert whole["culprit"]["name"] == "layers.1.mlp.act_fn"
    assert whole["pairs"][57]["diff"]["rel_l2"] == pytest.approx(8.28e-2, rel=1e-2)
    assert whole["pairs"][57]["injected"]["rel_l2"] == pytest.approx(8.28e-2, rel=1e-2)


def test_a_victim_is_right_with_right_inputs(whole: Any) -> None:
    victim = next(pair for pair in whole["pairs"] if pair["reference"] == "model.model.layers.1.mlp.down_proj-output")
    assert victim["verdict"] == "drifts"
    assert victim["diff"]["rel_l2"] > 1e-2
    assert victim["injected"]["rel_l2"] < 1e-6


def test_golden_ratio_is_near_one_where_healthy_and_large_at_the_culprit(whole: Any) -> None:
    healthy = [p["golden_ratio"] for p in whole["pairs"][:56] if p["golden_ratio"] is not None]
    assert 0.5 < float(np.median(healthy)) < 2
    assert whole["pairs"][57]["golden_ratio"] > 1e4


def test_summary(whole: Any) -> None:
    has(whole["summary"]["mse"], STATISTICS)
    assert {"attention", "embedding", "head", "mlp", "norm"} <= whole["summary"]["components"].keys()
    for part in whole["summary"]["components"].values():
        assert part["pairs"] >= 1
        has(part["mse"], STATISTICS)
    mses = [p["diff"]["mse"] for p in whole["pairs"] if not p["port"].startswith("input")]
    assert whole["summary"]["mse"]["max"] == max(mses)
    assert whole["summary"]["mse"]["mean"] == pytest.approx(np.mean(mses))
    assert whole["summary"]["mse"]["median"] == pytest.approx(np.median(mses))


def test_nothing_diverges_and_culprit_is_null(call: Call) -> None:
    said = call("compare", REFERENCE, REFERENCE, "--json")
    whole = strictly(said.out)
    assert (said.status, whole["culprit"], whole["verdict"]) == (0, None, "agrees")


@pytest.mark.parametrize(("odd", "shown"), [(np.nan, "nan"), (np.inf, "inf")])
def test_a_number_that_is_not_finite_is_a_string(call: Call, tmp_path: Path, odd: float, shown: str) -> None:
    array = numbers(4, 8)
    broken = array.copy()
    broken[1, 2] = odd
    reference, candidate = (
        save(tmp_path / "r.safetensors", {"a": array}),
        save(tmp_path / "c.safetensors", {"a": broken}),
    )
    said = call("compare", reference, candidate, "--json")
    [pair] = strictly(said.out)["pairs"]
    assert said.status == 1
    assert pair["diff"]["max_abs"] == pair["diff"]["mse"] == pair["diff"]["rel_l2"] == shown
    assert pair["diff"]["max_abs_index"] == [1, 2]
    assert pair["diff"]["nan" if shown == "nan" else "inf"] == [0, 1]
    assert strictly(said.out)["summary"]["mse"] == dict.fromkeys(STATISTICS, None) | {"finite": 0}


def test_views_are_named(call: Call, tmp_path: Path) -> None:
    array = numbers(1, 9, 4)
    reference, candidate = (
        save(tmp_path / "r.safetensors", {"a": array}),
        save(tmp_path / "c.safetensors", {"a": array[0]}),
    )
    [pair] = strictly(call("compare", reference, candidate, "--json").out)["pairs"]
    assert (pair["views"], pair["shape"]) == (["squeeze 0"], [9, 4])


def test_what_cannot_be_compared_claims_no_number_and_no_shape(call: Call, tmp_path: Path) -> None:
    reference = save(tmp_path / "r.safetensors", {"a": numbers(2, 3)})
    candidate = save(tmp_path / "c.safetensors", {"a": numbers(3, 2)})
    said = call("compare", reference, candidate, "--json")
    whole = strictly(said.out)
    assert (said.status, whole["verdict"], whole["culprit"]) == (2, "unknown", None)
    [pair] = whole["pairs"]
    assert (pair["verdict"], pair["diff"], pair["shape"]) == ("unknown", None, None)
    assert pair["dtype"] == ["float32", "float32"]


def test_source_is_what_the_manifest_says(call: Call, tmp_path: Path) -> None:
    made = write(tmp_path / "d", {"a": numbers(3)}, source="hf:some/model")
    whole = strictly(call("compare", made, made, "--json").out)
    assert whole["reference"]["source"] == "hf:some/model"


def test_names_survive_whatever_is_in_them(call: Call, tmp_path: Path) -> None:
    names = ["blocks[/0]", 'quote"\\', "\x1b[31mred", "new\nline", "<script>", "語", "\x00"]
    made = write(tmp_path / "d", {name: numbers(3) for name in names})
    said = call("compare", made, made, "--json")
    assert [pair["reference"] for pair in strictly(said.out)["pairs"]] == names
    assert said.out.isascii()
    assert said.out[:-1].isprintable()


def test_lint_is_in_it(call: Call, tmp_path: Path) -> None:
    one, two = (save(tmp_path / f"{name}.safetensors", {"a": numbers(3)}, ordered=False) for name in "rc")
    found = strictly(call("compare", one, two, "--json").out)["lint"]
    assert [finding["level"] for finding in found] == ["note", "note"]
    assert found[0].keys() == {"level", "where", "what", "why", "do"}


def test_every_culprit_is_listed_and_every_row_has_its_amplification(call: Call) -> None:
    whole = json.loads(call("compare", REFERENCE, CANDIDATE, "--json").out)
    assert [culprit["name"] for culprit in whole["culprits"]] == ["layers.1.mlp.act_fn"]
    assert whole["culprits"][0]["index"] == whole["culprit"]["index"]
    by_name = {pair["reference"]: pair for pair in whole["pairs"]}
    assert by_name["model.model.embed_tokens-output"]["amplification"] is None
    assert by_name["model.model.layers.1.mlp.act_fn-output"]["amplification"] > 1e4
    assert {pair["downcast"] for pair in whole["pairs"]} == {None}
