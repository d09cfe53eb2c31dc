"""``tolerances``: learning what passes, and ``compare --tolerances`` holding runs to it."""

from __future__ import annotations

import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.command import CANDIDATE, MAX, REFERENCE, Call, assert_one_sentence, process
from tests.making import SAMPLES, nudged, numbers, save, save_npy, truncate, write

NAMES = [f"layers.{i}.mlp" for i in range(3)]


def run_of(path: Path, error: float = 0.0, seed: int = 1, **more: Any) -> str:
    """A dump of a few layers, with an error of this relative size."""
    tensors = {name: numbers(6, 40, seed=k) for k, name in enumerate((*NAMES, "lm_head"))}
    moved = {name: nudged(array, error, seed + k) for k, (name, array) in enumerate(tensors.items())}
    return str(save(path, (moved if error else tensors) | more))


def tightened(path: Path, factor: float) -> Path:
    """The same tolerances, so many times smaller."""
    text = re.sub(r"(?m)(?<== )[\d.e+-]+$", lambda found: repr(float(found[0]) / factor), path.read_text())
    tight = path.with_name("tight.toml")
    tight.write_text(text)
    return tight


def test_written_then_enforced_by_a_process(tmp_path: Path) -> None:
    path = tmp_path / "tolerances.toml"
    said = process("tolerances", REFERENCE, MAX, "-o", str(path))
    assert (said.status, said.err) == (0, "")
    assert f"written to {path}" in said.out
    enforced = process("compare", REFERENCE, MAX, "--tolerances", str(path), "--json")
    assert (enforced.status, enforced.err) == (0, "")
    judged = [pair for pair in json.loads(enforced.out)["pairs"] if "tolerance" in pair["why"]]
    assert len(judged) == 43  # all but the token ids
    assert process("compare", REFERENCE, MAX, "--tolerances", str(tightened(path, 10)), "-q").status == 1
    worse = process("compare", REFERENCE, CANDIDATE, "--tolerances", str(path))
    assert worse.status == 1
    assert "first at layers.1.mlp.act_fn" in worse.out


def test_the_sample_is_what_the_command_writes(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SAMPLES.parent)
    call("tolerances", "sample_dumps/reference", "sample_dumps/max", "-o", tmp_path / "t.toml")
    assert (tmp_path / "t.toml").read_text() == (SAMPLES / "tolerances.toml").read_text()


@pytest.mark.parametrize("factor", [0.5, 1.0])
def test_a_run_as_good_or_better_passes(call: Call, tmp_path: Path, factor: float) -> None:
    ref, cand = run_of(tmp_path / "r.safetensors"), run_of(tmp_path / "c.safetensors", 1e-6)
    path = tmp_path / "t.toml"
    assert call("tolerances", ref, cand, "-o", path).status == 0
    later = run_of(tmp_path / "later.safetensors", 1e-6 * factor)
    assert call("compare", ref, later, "--tolerances", path).status == 0


def test_a_run_that_is_worse_fails_with_metric_value_and_limit(call: Call, tmp_path: Path) -> None:
    ref, cand = run_of(tmp_path / "r.safetensors"), run_of(tmp_path / "c.safetensors", 1e-6)
    path = tmp_path / "t.toml"
    call("tolerances", ref, cand, "-o", path)
    worse = run_of(tmp_path / "worse.safetensors", 3e-6)
    assert call("compare", ref, worse).status == 0
    said = call("compare", ref, worse, "--tolerances", path)
    assert said.status == 1
    assert "rel_l2 3e-06 is above 1.3e-06 (tolerance '^layers\\.\\d+\\.mlp-output$')" in said.out


def test_groups_and_layers(call: Call, tmp_path: Path) -> None:
    ref, cand = run_of(tmp_path / "r.safetensors"), run_of(tmp_path / "c.safetensors", 1e-6)
    path = tmp_path / "t.toml"
    call("tolerances", ref, cand, "-o", path)
    tables = tomllib.loads(path.read_text())["tolerance"]
    assert [table["match"] for table in tables] == [r"^layers\.\d+\.mlp-output$", "^lm_head-output$"]
    assert ["kl_div" in table for table in tables] == [False, True]
    call("tolerances", ref, cand, "--per-layer", "-o", tmp_path / "each.toml")
    tables = tomllib.loads((tmp_path / "each.toml").read_text())["tolerance"]
    assert [table["match"] for table in tables] == [
        *(rf"^layers\.{i}\.mlp-output$" for i in range(3)),
        "^lm_head-output$",
    ]


def test_many_runs_all_pass(call: Call, tmp_path: Path) -> None:
    ref = run_of(tmp_path / "r.safetensors")
    runs = [run_of(tmp_path / f"c{k}.safetensors", error, k) for k, error in enumerate((1e-7, 2e-6, 1e-6))]
    path = tmp_path / "t.toml"
    said = call("tolerances", *(word for run in runs for word in (ref, run)), "-o", path, "--margin", "0", "--json")
    assert said.status == 0
    found = json.loads(said.out)
    assert [group["pairs"] for group in found["tolerances"]] == [9, 3]
    assert found["tolerances"][0]["rel_l2"] == pytest.approx(2e-6, rel=0.1)
    assert [call("compare", ref, run, "--tolerances", path).status for run in runs] == [0, 0, 0]


def test_the_json(call: Call, tmp_path: Path) -> None:
    ref, cand = run_of(tmp_path / "r.safetensors"), run_of(tmp_path / "c.safetensors", 1e-6)
    said = call("tolerances", ref, cand, "--json")
    assert (said.status, said.err) == (0, "")
    found = json.loads(said.out)
    assert found["schema"] == "tensordiff.tolerances/1"
    assert found["dumps"] == [{"reference": ref, "candidate": cand}]
    assert (found["margin"], found["per_layer"], found["output"]) == (0.25, False, None)
    for group in found["tolerances"]:
        for metric, value in group["measured"].items():
            if value is None:
                assert group[metric] is None
            else:
                assert 1.2499 * value <= group[metric] <= 1.38 * value
        only = group["match"].strip("^$").partition("-")[0]
        for point in (*group["front"], *found["front"]):
            args = ("--atol", point["atol"], "--rtol", point["rtol"], "--only", only)
            assert call("compare", ref, cand, "-q", *args).status == 0


def test_a_person_s_file_keeps_what_it_says(call: Call, tmp_path: Path) -> None:
    ref, cand = run_of(tmp_path / "r.safetensors"), run_of(tmp_path / "c.safetensors", 1e-6)
    path = tmp_path / "t.toml"
    path.write_text(
        "# Mine.\n\n[[tolerance]]\nmatch = 'experts'\nrel_l2 = 0.5  # noisy\n\n"
        "# The head.\n[[tolerance]]\nmatch = '^lm_head-output$'\nrel_l2 = 1e-9\natol = 1.0\n"
    )
    said = call("tolerances", ref, cand, "-o", path)
    assert said.status == 0
    assert "2 tolerances written" in said.out
    assert "other tables in the file (1) stay" in said.out
    text = path.read_text()
    assert text.startswith("# Mine.\n\n[[tolerance]]\nmatch = 'experts'\nrel_l2 = 0.5  # noisy\n\n# The head.\n")
    experts, head, layers = tomllib.loads(text)["tolerance"]
    assert experts == {"match": "experts", "rel_l2": 0.5}
    assert head["rel_l2"] == pytest.approx(1.25e-6, rel=0.1)
    assert "atol" not in head
    assert layers["match"] == r"^layers\.\d+\.mlp-output$"


def test_a_new_file_says_what_it_was_made_from(call: Call, tmp_path: Path) -> None:
    ref, cand = run_of(tmp_path / "r.safetensors"), run_of(tmp_path / "c\nd.safetensors", 1e-6)
    path = tmp_path / "t.toml"
    call("tolerances", ref, cand, "-o", path, "--margin", "0.5")
    lines = path.read_text().splitlines()
    assert lines[0] == "# Tolerances that these runs pass with a margin of 0.5, by tensordiff tolerances:"
    assert lines[1] == f"#   {tmp_path}/c\\nd.safetensors against {ref}"
    assert lines[4] == "[[tolerance]]"


def test_rules_pair_and_their_tolerances_are_a_person_s_word(call: Call, tmp_path: Path) -> None:
    ref = save(tmp_path / "r.safetensors", {"a": numbers(8), "b": numbers(8, seed=1)})
    cand = save(tmp_path / "c.safetensors", {"other": nudged(numbers(8), 1e-6), "b": nudged(numbers(8, seed=1), 0.5)})
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\nside = 'candidate'\nmatch = 'other'\nreplace = 'a'\n")
    assert_one_sentence(call("tolerances", ref, cand, "--rules", rules), "b diverges (rel_l2 5.0e-01", "--rules")
    rules.write_text(rules.read_text() + "[[tolerance]]\nmatch = '^b$'\nrel_l2 = 0.6\n")
    found = json.loads(call("tolerances", ref, cand, "--rules", rules, "--json").out)
    assert [group["match"] for group in found["tolerances"]] == ["^a-output$", "^b-output$"]
    assert call("compare", ref, cand, "--rules", rules).status == 0


@pytest.mark.parametrize("both", [False, True])
def test_nan_is_refused(call: Call, tmp_path: Path, both: bool) -> None:
    bad = numbers(4)
    bad[1] = math.nan
    ref = run_of(tmp_path / "r.safetensors", x=bad if both else numbers(4))
    cand = run_of(tmp_path / "c.safetensors", 1e-6, x=bad)
    path = tmp_path / "t.toml"
    assert_one_sentence(call("tolerances", ref, cand, "-o", path), "x", "NaN")
    assert not path.exists()


def test_a_layer_that_diverges_is_refused(call: Call, tmp_path: Path) -> None:
    said = call("tolerances", REFERENCE, CANDIDATE, "-o", tmp_path / "t.toml")
    assert_one_sentence(said, "layers.1.mlp.act_fn diverges (rel_l2 8.3e-02", "fix it")
    assert not (tmp_path / "t.toml").exists()


def test_one_bad_run_among_good_ones_is_refused(call: Call) -> None:
    assert_one_sentence(call("tolerances", REFERENCE, MAX, REFERENCE, CANDIDATE), "act_fn diverges")


def test_nothing_paired_is_refused(call: Call, tmp_path: Path) -> None:
    ref, cand = save(tmp_path / "r.safetensors", {"a": numbers(4)}), save(tmp_path / "c.safetensors", {"b": numbers(5)})
    assert_one_sentence(call("tolerances", ref, cand), "nothing could be paired", "--rules")


def test_nothing_but_integers_is_refused(call: Call, tmp_path: Path) -> None:
    ids = save(tmp_path / "r.safetensors", {"ids": np.arange(4)})
    assert_one_sentence(call("tolerances", ids, ids), "no floats are paired")


def test_a_dump_that_lints_with_errors_is_refused(call: Call, tmp_path: Path) -> None:
    one = write(tmp_path / "r", {"a": numbers(4)}, token_ids=[1, 2])
    other = write(tmp_path / "c", {"a": numbers(4)}, token_ids=[1, 3])
    assert_one_sentence(call("tolerances", one, other), "did not get the same token ids", "same ids")


def test_an_orphan_that_cannot_be_read_is_refused(call: Call, tmp_path: Path) -> None:
    ref = save_npy(tmp_path / "r", {"a": numbers(4)})
    cand = save_npy(tmp_path / "c", {"a": numbers(4), "lonely": numbers(4)})
    truncate(cand / "lonely.npy")
    assert_one_sentence(call("tolerances", ref, cand), "lonely", "dump it again")


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ((REFERENCE,), "come in pairs, a reference and its candidate; there are 1"),
        ((REFERENCE, MAX, REFERENCE), "there are 3"),
        ((), "Missing argument"),
        ((REFERENCE, MAX, "--margin", "nan"), "nan is not a size"),
        ((REFERENCE, MAX, "--margin", "inf"), "--margin"),
        ((REFERENCE, MAX, "--margin", "-1"), "--margin"),
        ((REFERENCE, "nowhere.pt"), "nowhere.pt"),
    ],
)
def test_misuse(call: Call, args: tuple[str, ...], part: str) -> None:
    assert_one_sentence(call("tolerances", *args), part)


def test_a_file_that_cannot_be_written(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "t.toml"
    assert_one_sentence(call("tolerances", REFERENCE, MAX, "-o", path), str(path), "cannot be written")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "holds no [[tolerance]]"),
        ("[[rule]]\nmatch = 'a'\nreplace = 'b'\n[[tolerance]]\nmatch = 'a'\nrel_l2 = 1", "give it with --rules"),
        ("[[tolerance]]\nmatch = 'a'", "tolerance 1 says nothing"),
        ("[[tolerance]]\nmatch = '('\nrel_l2 = 1", "not a regular expression"),
        ("[[tolerance]]\nmatch = 'a'\nkl_div = -1", "kl_div is -1"),
    ],
)
def test_a_file_that_would_enforce_something_else(call: Call, tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "t.toml"
    path.write_text(text)
    assert_one_sentence(call("compare", REFERENCE, MAX, "--tolerances", path), "t.toml", part)


def test_tolerances_come_before_those_of_the_rules(call: Call, tmp_path: Path) -> None:
    strict, loose = tmp_path / "strict.toml", tmp_path / "loose.toml"
    strict.write_text("[[tolerance]]\nmatch = '.'\nrel_l2 = 0\n")
    loose.write_text("[[tolerance]]\nmatch = '.'\nrel_l2 = 1\n")
    assert call("compare", REFERENCE, CANDIDATE, "--tolerances", loose, "--rules", strict).status == 0
    assert call("compare", REFERENCE, CANDIDATE, "--tolerances", strict, "--rules", loose).status == 1
    assert call("compare", REFERENCE, CANDIDATE, "--rules", loose).status == 0


def test_rtol_alone_does_not_always_pass(call: Call, tmp_path: Path) -> None:
    ref = save(tmp_path / "r.safetensors", {"a": np.array([1.0, 5.0, 0.0])})
    cand = save(tmp_path / "c.safetensors", {"a": np.array([2.0, -7.0, 3.0])})
    path = tmp_path / "t.toml"
    path.write_text("[[tolerance]]\nmatch = 'a'\nrtol = 1e30\n")
    assert call("compare", ref, cand, "--tolerances", path).status == 1
    assert call("compare", ref, cand, "--rtol", "1e30").status == 1


def test_logits_are_summed_up(call: Call) -> None:
    line = "logits of 9 tokens: top-1 100%, top-5 97.7% the same; worst kl_div 2.2e-06, cos_dist 7.3e-05"
    assert line in call("compare", REFERENCE, CANDIDATE, "-q").out.splitlines()
    found = json.loads(call("compare", REFERENCE, CANDIDATE, "--json").out)["summary"]["logits"]
    assert (found["tokens"], found["of"], found["top_1"], found["k"]) == (9, 9, 1.0, 5)
    assert found["kl_div"] == pytest.approx(2.165e-6, rel=1e-3)
    assert found["kl_div_mean"] < found["kl_div"]


def test_without_logits_nothing_is_said_of_them(call: Call) -> None:
    said = call("compare", REFERENCE, MAX, "--only", "mlp")
    assert "logits" not in said.out
    assert json.loads(call("compare", REFERENCE, MAX, "--only", "mlp", "--json").out)["summary"]["logits"] is None
