"""Rules: how two engines' names become one."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensordiff.align.presets import PRESETS, preset
from tensordiff.align.rules.rule import Rule, RuleSet, Side, check_rule
from tensordiff.dump.model import Dump, Entry, Origin
from tensordiff.errors import AlignError
from tests.making import MemoryTensor, numbers


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
    found = (
        rules.canonical(hugging_face, "reference"),
        rules.canonical(other.replace("._shards", "_shards"), "candidate"),
    )
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


TOWER = Rule("candidate", r"^tower\.(\d+)", r"layers.\1")


@pytest.mark.parametrize(("side", "found"), [("candidate", "layers.7"), ("reference", "tower.7")])
def test_a_rule_is_for_its_side(side: Side, found: str) -> None:
    assert RuleSet((TOWER,)).canonical("tower.7", side) == found


def test_rules_are_tried_in_order_each_on_what_the_one_before_left() -> None:
    ab, bc = Rule("both", "a", "b"), Rule("both", "b", "c")
    assert RuleSet((ab, bc)).canonical("a", "reference") == "c"
    assert RuleSet((bc, ab)).canonical("a", "reference") == "b"


def test_a_rule_before_the_default_ones_is_tried_first() -> None:
    rules = RuleSet((Rule("both", r"^model\.(?=x$)", "kept_"), *RuleSet().rules))
    assert rules.canonical("model.x", "reference") == "kept_x"
    assert rules.canonical("model.y", "reference") == "y"


@pytest.mark.parametrize(
    ("match", "replacement", "name", "found"),
    [
        (r"^blocks\.(\d+)", r"layers.{\1-1}", "blocks.3.mlp", "layers.2.mlp"),
        (r"^blocks\.0*(\d+)", r"layers.{\1-1}", "blocks.010", "layers.9"),
        (r"^b\.(?P<at>\d+)", r"l.{\g<at>+2}", "b.0", "l.2"),
        (r"^blocks\.(\d+)", r"layers.{\1-1}", "blocks.0.mlp", "blocks.0.mlp"),
        (r"^blocks\.(\w+)", r"layers.{\1-1}", "blocks.x", "layers.{x-1}"),
        (r"^h\.(\d+)\.e\.(\d+)", r"h.{\1+1}.e.{\2-1}", "h.1.e.1", "h.2.e.0"),
    ],
    ids=["less", "zeros", "named", "below zero stays", "no number", "two"],
)
def test_a_replacement_counts(match: str, replacement: str, name: str, found: str) -> None:
    rule = Rule("candidate", match, replacement)
    check_rule(rule)
    assert RuleSet((rule,)).canonical(name, "candidate") == found


def test_a_rule_that_is_off_is_passed_over() -> None:
    assert RuleSet((TOWER,)).canonical("tower.7", "candidate") != "tower.7"
    assert RuleSet((replace(TOWER, on=False),)).canonical("tower.7", "candidate") == "tower.7"


def test_a_rule_for_a_class_leaves_others_alone() -> None:
    rules = RuleSet((Rule("both", r"act_fn$", "act_and_mul", module_class=r"AndMul$"),))
    assert rules.canonical("mlp.act_fn", "candidate", "SiluAndMul") == "mlp.act_and_mul"
    assert rules.canonical("mlp.act_fn", "candidate", "SiLU") == "mlp.act_fn"
    assert rules.canonical("mlp.act_fn", "candidate") == "mlp.act_fn"
    assert rules.canonical("mlp.norm", "candidate", "SiluAndMul") == "mlp.norm"


def test_the_same_rule_from_elsewhere_is_the_same_rule() -> None:
    assert Rule("both", "a", "b", source="hf") == Rule("both", "a", "b", source="rules.toml")
    assert Rule("both", "a", "b") != Rule("both", "a", "b", on=False)
    assert Rule("both", "a", "b") != Rule("both", "a", "b", module_class="C")


def dump(*entries: tuple[str, str, str | None]) -> Dump:
    stored = MemoryTensor(numbers(1))
    made = (Entry(f"{layer}-{port}", layer, port, 1, 0, stored, Origin(of)) for layer, port, of in entries)
    plain = Entry("a-output", "a", "output", 1, 0, stored)
    return Dump(Path("dump"), "held", (*made, plain), True)


def test_usage_counts_the_names_that_a_rule_changes() -> None:
    entries = [("tower.1", "input_0", None), ("tower.1", "output", None), ("b", "output", "X"), ("b", "input_0", "Y")]
    same, of_class, off = (
        Rule("both", "^a$", "a"),
        Rule("both", "b", "", module_class="X"),
        Rule("both", ".", "", False),
    )
    rules = RuleSet((TOWER, Rule("both", "^a$", "aa"), same, of_class, off, Rule("both", "^layers", "tower")))
    both: dict[Side, Dump] = {"reference": dump(*entries), "candidate": dump(*entries)}
    assert rules.usage(both) == (2, 2, 0, 2, 0, 2)
    assert rules.usage({"reference": both["reference"]}) == (0, 1, 0, 1, 0, 0)


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (Rule("both", "a(", ""), "match 'a.' is not a regular expression: missing"),
        (Rule("both", "a", r"\1"), "replace .* does not go with its match"),
        (Rule("both", "a", "", module_class="*"), "module_class .* is not a regular expression"),
        (Rule("both", "a\x1b[", ""), r"match 'a\\x1b.' is not a regular expression"),
    ],
)
def test_a_rule_that_cannot_be_applied_is_refused(rule: Rule, sentence: str) -> None:
    with pytest.raises(AlignError, match=sentence) as caught:
        check_rule(rule)
    assert str(caught.value).isprintable()


NAMES = st.text("modelayrs.0123_hLN", max_size=24)


@given(NAMES, st.sampled_from(["reference", "candidate"]))
def test_names_are_what_one_expression_after_the_other_makes_of_them(name: str, side: Side) -> None:
    rules, expected = [rule for each in PRESETS for rule in preset(each).rules], name
    for rule in rules:
        expected = re.sub(rule.match, rule.replace, expected)
    assert RuleSet(tuple(rules)).canonical(name, side) == expected


def test_forty_rules_on_two_times_two_thousand_entries_are_quick() -> None:
    layers = [
        f"layers.{i}.{part}" for i in range(100) for part in [*"abcde", "mlp", "mlp.up", "self_attn", "q", "norm"]
    ]
    rules = tuple(rule for each in PRESETS for rule in preset(each).rules)[:40]
    taken = []
    for _ in range(5):
        fresh, start = RuleSet(rules), time.process_time()
        for layer in layers:
            for _port in range(2):
                fresh.canonical(f"model.model.{layer}", "reference")
                fresh.canonical(f"model.layers.{layer}", "candidate")
        taken.append(time.process_time() - start)
    assert (len(rules), 4 * len(layers)) == (40, 4000)
    assert min(taken) < 0.1


def test_a_canonical_name_is_made_once_for_both_sides() -> None:
    """As many as there are: a dump of a million layers would else rewrite each name for every side that asks."""
    rules = RuleSet((Rule("both", "a", "b"),))
    names = [f"a.{k}" for k in range(140_000)]
    made = [rules.canonical(name, "reference") for name in names]
    assert all(rules.canonical(name, "candidate") is one for name, one in zip(names, made, strict=True))
    assert rules.canonical(names[0].upper(), "reference") == "A.0"
