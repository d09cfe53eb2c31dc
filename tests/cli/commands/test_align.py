"""``tensordiff align``: what it shows, what it writes, and that what it wrote gives the same alignment."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from tensordiff.align.rules.file import read_rules_file
from tensordiff.dump.dtypes import Array
from tests.cli.command import Call, assert_one_sentence
from tests.making import SAMPLES, numbers, save

REFERENCE, MAX = SAMPLES / "reference", SAMPLES / "max"


def fused_pair(folder: Path) -> tuple[Path, Path]:
    """Four layers whose names no preset knows, fused on one side."""
    ours: dict[str, Array] = {}
    theirs: dict[str, Array] = {}
    for k in range(4):
        a, b = numbers(9, 24, seed=2 * k), numbers(9, 40, seed=2 * k + 1)
        ours |= {f"layers.{k}.left": a, f"layers.{k}.right": b, f"layers.{k}.same": a[:, :20] * 2}
        theirs |= {f"layers.{k}.both": np.concatenate((a, b), axis=1), f"layers.{k}.same": a[:, :20] * 2}
    return save(folder / "ours.safetensors", ours), save(folder / "theirs.safetensors", theirs)


def test_shows_how_names_were_paired_and_what_is_left(call: Call) -> None:
    said = call("align", "--no-learn", REFERENCE, MAX)
    assert said.status == 0
    assert said.out.startswith("43 pairs: ")
    assert "fused   cat(layers.0.self_attn.q_proj, layers.0.self_attn.k_proj, layers.0.self_attn.v_proj)" in said.out
    assert "order: unknown, taken from the reference" in said.out
    assert "the two agree again at layers.0.input_layernorm" in said.out
    assert "model.model.rotary_emb-output_0: no layer rotary_emb on the other side" in said.out


def test_json(call: Call) -> None:
    said = call("align", "--no-learn", REFERENCE, MAX, "--json")
    whole = json.loads(said.out)
    assert whole["schema"] == "tensordiff.align/1"
    assert len(whole["pairs"]) == 43 and whole["order_from"] == "reference"
    assert {pair["by"] for pair in whole["pairs"]} == {"rule", "name", "fused"}
    views = {pair["candidate"]: pair["views"] for pair in whole["pairs"]}
    assert views["model.lm_head-output"] == ["last_token"]


def test_suggests_from_values_and_writes_one_map_for_all_layers(call: Call, tmp_path: Path) -> None:
    pair, rules = fused_pair(tmp_path), tmp_path / "rules.toml"
    said = call("align", "--no-learn", *pair, "-o", rules)
    assert said.status == 0 and "cat of 2 agrees to" in said.out
    assert tomllib.loads(rules.read_text())["map"] == [
        {"reference": "cat(layers.{i}.left, layers.{i}.right)", "candidate": "layers.{i}.both"}
    ]
    again = json.loads(call("align", "--no-learn", *pair, "--rules", rules, "--json").out)
    assert [p["by"] for p in again["pairs"]].count("map") == 4
    assert again["orphans"] == {"reference": [], "candidate": []}


def test_auto_accepts_what_values_prove_and_a_written_file_gives_the_same_alignment(call: Call, tmp_path: Path) -> None:
    pair, rules = fused_pair(tmp_path), tmp_path / "rules.toml"
    auto = json.loads(call("align", "--no-learn", *pair, "--auto", "-o", rules, "--json").out)
    assert [p["by"] for p in auto["pairs"]].count("fused") == 4
    read = json.loads(call("align", "--no-learn", *pair, "--rules", rules, "--json").out)
    assert [(p["reference"], p["candidate"]) for p in read["pairs"]] == [
        (p["reference"], p["candidate"]) for p in auto["pairs"]
    ]


def test_without_suggestions_no_tensor_is_read(call: Call, tmp_path: Path) -> None:
    said = call("align", "--no-learn", *fused_pair(tmp_path), "--no-suggest", "--json")
    assert json.loads(said.out)["suggestions"] == []


def test_a_persons_comments_survive(call: Call, tmp_path: Path) -> None:
    pair, rules = fused_pair(tmp_path), tmp_path / "rules.toml"
    rules.write_text("# mine\n[[rule]]  # why\nmatch = 'x'\nreplace = 'y'\n")
    assert call("align", "--no-learn", *pair, "--rules", rules, "-o", rules).status == 0
    assert rules.read_text().startswith("# mine\n[[rule]]  # why\n") and "[[map]]" in rules.read_text()


def test_a_broken_rules_file_is_pointed_at(call: Call, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[map]]\nreference = "cat(a, b"\ncandidate = "c"\n')
    said = call("align", "--no-learn", REFERENCE, MAX, "--rules", rules)
    assert said.status == 2 and "line 2, column" in said.err and "Traceback" not in said.err


def test_nothing_paired(call: Call, tmp_path: Path) -> None:
    ours, theirs = (save(tmp_path / f"{name}.safetensors", {name: numbers(3, seed=k)}) for k, name in enumerate("ab"))
    assert call("align", "--no-learn", ours, theirs).status == 2


def renamed_pair(folder: Path) -> tuple[Path, Path]:
    """Three layers called otherwise, and two that are equal, so either may be meant."""
    ours = {f"layers.{k}.up": numbers(9, 24, seed=k) for k in range(3)} | {"lonely": numbers(9, 30, seed=9)}
    theirs = {f"layers.{k}.first": array for k, array in enumerate(list(ours.values())[:3])}
    twin = numbers(9, 16, seed=20)
    ours |= {"one": twin, "two": twin, "same": numbers(4, seed=30)}
    theirs |= {"eins": twin, "zwei": twin, "same": numbers(4, seed=30)}
    return save(folder / "ours.safetensors", ours), save(folder / "theirs.safetensors", theirs)


def maps(rules: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = tomllib.loads(rules.read_text()).get("map", [])
    return found


def test_suggestions_are_numbered_and_have_a_confidence(call: Call, tmp_path: Path) -> None:
    pair = renamed_pair(tmp_path)
    found = json.loads(call("align", "--no-learn", *pair, "--json").out)["suggestions"]
    assert [one["number"] for one in found] == list(range(1, len(found) + 1)) and len(found) == 5
    assert [one["confidence"] > 0.9 for one in found] == [one["only"] for one in found]
    assert {round(one["confidence"], 1) for one in found if not one["only"]} == {0.5}
    said = call("align", "--no-learn", *pair)
    assert "   1  0.95  layers.0.up = layers.0.first  values agree to" in said.out
    assert "(1 more fits as well)" in said.out


def test_accept_one_by_its_number(call: Call, tmp_path: Path) -> None:
    pair, rules = renamed_pair(tmp_path), tmp_path / "rules.toml"
    listed = json.loads(call("align", "--no-learn", *pair, "--json").out)["suggestions"]
    unsure = next(one for one in listed if not one["only"])
    said = json.loads(call("align", "--no-learn", *pair, "--accept", unsure["number"], "-o", rules, "--json").out)
    wanted = {"reference": unsure["reference"], "candidate": unsure["candidate"], "every": False}
    assert said["accepted"] == [wanted] and maps(rules) == [wanted]
    assert (unsure["reference"], unsure["candidate"]) in {(p["reference"], p["candidate"]) for p in said["pairs"]}


def test_accept_one_of_a_layer_holds_for_every_layer_that_the_values_prove(call: Call, tmp_path: Path) -> None:
    pair, rules = renamed_pair(tmp_path), tmp_path / "rules.toml"
    said = call("align", "--no-learn", *pair, "--accept", "1", "-o", rules)
    assert said.status == 0 and "1 map written" in said.out and "layers.{i}.up = layers.{i}.first" in said.out
    assert maps(rules) == [{"reference": "layers.{i}.up", "candidate": "layers.{i}.first"}]
    again = json.loads(call("align", "--no-learn", *pair, "--rules", rules, "--json").out)
    assert [p["by"] for p in again["pairs"]].count("map") == 3


def test_accept_above_a_confidence(call: Call, tmp_path: Path) -> None:
    pair = renamed_pair(tmp_path)
    sure = json.loads(call("align", "--no-learn", *pair, "--accept-above", "0.9", "--json").out)
    assert len(sure["accepted"]) == 1 and len(sure["pairs"]) == 4
    everything = json.loads(call("align", "--no-learn", *pair, "--accept-above", "0", "--json").out)
    assert len(everything["accepted"]) == 3 and len(everything["pairs"]) == 6
    assert json.loads(call("align", "--no-learn", *pair, "--accept-above", "1", "--json").out)["accepted"] == []


def test_accept_goes_with_auto(call: Call, tmp_path: Path) -> None:
    pair = renamed_pair(tmp_path)
    said = json.loads(call("align", "--no-learn", *pair, "--auto", "--accept", "4", "--json").out)
    assert len(said["accepted"]) == 2 and len(said["pairs"]) == 5


def test_accepting_what_is_not_there(call: Call, tmp_path: Path) -> None:
    pair, rules = renamed_pair(tmp_path), tmp_path / "rules.toml"
    said = call("align", "--no-learn", *pair, "--accept", "1,77", "-o", rules)
    assert_one_sentence(said, "--accept 77: there is no such suggestion", "there are 5")
    assert not rules.exists()
    for words in (("--accept", "x"), ("--accept", "0"), ("--accept-above", "1.5"), ("--accept-above", "nan")):
        assert_one_sentence(call("align", "--no-learn", *pair, *words))


def test_what_is_learned_is_said_and_written_as_rules_that_pair_the_same(call: Call, tmp_path: Path) -> None:
    pair, rules = renamed_pair(tmp_path), tmp_path / "rules.toml"
    said = json.loads(call("align", *pair, "-o", rules, "--json").out)
    assert said["learned"] and all(rule["used"] for rule in said["learned"])
    written = read_rules_file(rules)
    assert written.rules and len(written.rules) + len(written.maps) < len(said["learned"])
    again = json.loads(call("align", *pair, "--no-learn", "--rules", rules, "--json").out)
    assert pairs_of(again) == pairs_of(said)


def pairs_of(said: dict[str, Any]) -> list[tuple[str, str]]:
    return [(pair["reference"], pair["candidate"]) for pair in said["pairs"]]
