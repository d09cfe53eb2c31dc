"""Rules: how two engines' names become one, and what is said of a file that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensordiff.align.rules import RuleSet, Side, read_rules
from tensordiff.errors import AlignError


@pytest.mark.parametrize(
    ("hugging_face", "other"),
    [
        ("model.model.layers.0.mlp.down_proj", "model.layers.layers.0.mlp.down_proj"),
        ("model.model.embed_tokens", "language_model.embed_tokens"),
        ("model.lm_head", "lm_head"),
        ("model.model.layers.0.mlp.down_proj", "model.layers.layers.0.mlp._shards.0.down_proj"),
        ("bert.encoder.layer.1.output.LayerNorm", "bert.encoder.layer.1.output.layer_norm"),
        ("transformer.h.0", "transformer.h.layers.0"),
    ],
)
def test_the_same_layer_is_spelled_alike(hugging_face: str, other: str) -> None:
    rules = RuleSet()
    found = rules.canonical(hugging_face, "reference"), rules.canonical(other.replace("._shards", "_shards"), "candidate")
    assert found[0] == found[1]


@pytest.mark.parametrize("one", ["layers.0", "layers.1", "layers.10", "model", "model_2", "norm", "q_norm", "h.1", "1"])
def test_layers_that_differ_stay_different(one: str) -> None:
    others = {"layers.0", "layers.1", "layers.10", "model", "model_2", "norm", "q_norm", "h.1", "1"} - {one}
    rules = RuleSet()
    assert rules.canonical(one, "reference") not in {rules.canonical(other, "candidate") for other in others}


@pytest.mark.parametrize("name", ["", ".", "model", "model.", "language_model.", "layers.layers."])
def test_odd_names_stay_names(name: str) -> None:
    assert isinstance(RuleSet().canonical(name, "reference"), str)


def test_a_layer_named_model_is_not_erased() -> None:
    assert RuleSet().canonical("model", "reference") == "model"
    assert RuleSet().canonical("model.model", "reference") == "model"


def rules_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    return path


GOOD = """
# a comment
[[rule]]
side = "candidate"
match = '^tower\\.(\\d+)'
replace = 'layers.\\1'

[[rule]]
match = 'a'
replace = 'b'
"""


def test_a_file_is_read(tmp_path: Path) -> None:
    first, second = read_rules(rules_file(tmp_path, GOOD))
    assert (first.side, first.match, first.replace) == ("candidate", r"^tower\.(\d+)", r"layers.\1")
    assert second.side == "both"


@pytest.mark.parametrize(("side", "found"), [("candidate", "layers.7"), ("reference", "tower.7")])
def test_a_rule_is_for_its_side(tmp_path: Path, side: Side, found: str) -> None:
    assert RuleSet().with_file(rules_file(tmp_path, GOOD)).canonical("tower.7", side) == found


def test_rules_are_tried_in_order_each_on_what_the_one_before_left(tmp_path: Path) -> None:
    text = "".join(f"[[rule]]\nmatch = '{a}'\nreplace = '{b}'\n" for a, b in ("ab", "bc"))
    assert RuleSet().with_file(rules_file(tmp_path, text)).canonical("a", "reference") == "c"


def test_a_user_s_rules_go_before_ours(tmp_path: Path) -> None:
    path = rules_file(tmp_path, "[[rule]]\nmatch = '^model\\.(?=x$)'\nreplace = 'kept_'\n")
    rules = RuleSet().with_file(path)
    assert rules.canonical("model.x", "reference") == "kept_x"
    assert rules.canonical("model.y", "reference") == "y"


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert RuleSet().with_file(rules_file(tmp_path, "")) == RuleSet()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[rule]\nmatch = 'a'", r"not valid TOML: .* \(at line 1, column 8\)"),
        ("[[rule]]\nmatch = 'a\nreplace = 'b'", r"not valid TOML: .* \(at line 2, column 11\)"),
        ("[rule]\nmatch = 'a'\nreplace = 'b'", r"write \[\[rule\]\], not \[rule\]"),
        ("rule = [1]", "rule 1 is not a table"),
        ("[[rules]]\nmatch = 'a'\nreplace = 'b'", "'rules' is not known; a rules file has"),
        ("[[rule]]\nmatch = 'a'", "rule 1 needs 'match' and 'replace'"),
        ("[[rule]]\nmatch = 1\nreplace = 'b'", "rule 1 needs 'match' and 'replace', both text"),
        ("[[rule]]\nmatch = 'a'\nreplace = 'b'\nmtach = 'c'", "rule 1: 'mtach' is not known"),
        ("[[rule]]\nmatch = 'a'\nreplace = 'b'\nside = 'left'", "rule 1: side is 'left'; it is one of reference, "),
        ("[[rule]]\nmatch = 'a'\nreplace = 'b'\nside = []", r"rule 1: side is \[\]"),
        ("[[rule]]\nmatch = 'a(b'\nreplace = 'b'", r"match 'a\(b' is not a regular expression: .* position 1"),
        ("[[rule]]\nmatch = 'a'\nreplace = '\\1'", "replace .* does not go with its match: invalid group reference 1"),
        ("[[rule]]\nmatch = 'a'\nreplace = '\\g<x>'", "replace .* does not go with its match: unknown group name 'x'"),
        ("[[rule]]\nmatch='a'\nreplace='b'\n[[rule]]\nmatch='('\nreplace='b'", "rule 2: match"),
        ("[[map]]\nreference = 'a'\ncandidate = 'b'", r"\[\[map\]\] cannot be used yet"),
        ("[[tolerance]]\nmatch = 'a'\nrel_l2 = 1.0", r"\[\[tolerance\]\] cannot be used yet"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path: Path, text: str, sentence: str) -> None:
    path = rules_file(tmp_path, text)
    with pytest.raises(AlignError, match=sentence) as caught:
        read_rules(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(AlignError, match="cannot be read"):
        read_rules(path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(AlignError, match="cannot be read"):
        read_rules(tmp_path)
