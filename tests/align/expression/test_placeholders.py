"""One mapping for every layer: filling placeholders, finding them, putting them in."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordiff.align.expression import (
    Expression,
    Name,
    bind,
    bindings,
    generalize,
    names,
    parse,
    parse_view,
    placeholders,
)
from tests.align.expression.strategies import entry_names, expressions

numbers = st.integers(0, 999_999_999)


def test_names_are_listed_once_in_order() -> None:
    expression = parse('cat(b, sum(a, b), silu("c d"))')
    assert names(expression) == ("b", "a", "c d")
    assert names(parse_view("squeeze 0")) == ()


def test_bind_fills_what_it_is_given() -> None:
    expression = parse('cat(layers.{i}.experts.{j}.w, "blocks[/{i}]", axis=0)')
    assert placeholders(expression) == {"i", "j"}
    assert str(bind(expression, {"i": 3})) == "cat(layers.3.experts.{j}.w, blocks[/3], axis=0)"
    assert placeholders(bind(expression, {"i": 3, "j": 0})) == frozenset()


@settings(deadline=None)
@given(expressions(entry_names), st.dictionaries(st.sampled_from("ijk"), numbers))
def test_bound_text_reads_back(tree: Expression, values: dict[str, int]) -> None:
    bound = bind(tree, values)
    assert parse(str(bound)) == bound
    assert placeholders(bound) == placeholders(tree) - values.keys()


@settings(deadline=None)
@given(entry_names, st.fixed_dictionaries(dict.fromkeys("ijk", numbers)))
def test_bindings_undo_bind(pattern: str, values: dict[str, int]) -> None:
    (text,) = names(bind(Name(pattern), values))
    found = bindings(pattern, text)
    assert found == {letter: number for letter, number in values.items() if f"{{{letter}}}" in pattern}


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("layers.{i}.mlp", "layers.12.mlp", {"i": 12}),
        ("layers.{i}.mlp", "layers.12.mlp.act", None),
        ("layers.{i}.mlp", "layers.012.mlp", None),
        ("layers.{i}.mlp", "layersx12.mlp", None),
        ("a.{i}.b.{i}", "a.1.b.1", {"i": 1}),
        ("a.{i}.b.{i}", "a.1.b.2", None),
        ("a.{i}.b.{j}", "a.1.b.2", {"i": 1, "j": 2}),
        ("lm_head", "lm_head", {}),
    ],
)
def test_bindings(pattern: str, text: str, found: dict[str, int] | None) -> None:
    assert bindings(pattern, text) == found


@pytest.mark.parametrize(
    ("reference", "candidate", "general"),
    [
        (
            "cat(layers.0.self_attn.q_proj, layers.0.self_attn.k_proj)",
            "layers.0.self_attn.qkv_proj",
            ("cat(layers.{i}.self_attn.q_proj, layers.{i}.self_attn.k_proj)", "layers.{i}.self_attn.qkv_proj"),
        ),
        (
            "transformer.h.3.attn",
            "model.layers.layers.3.attn",
            ("transformer.h.{i}.attn", "model.layers.layers.{i}.attn"),
        ),
        ("encoder.3.ff", "stack/3/ff", ("encoder.{i}.ff", "stack/{i}/ff")),
        ("blocks[3]", "layer_3.out", ("blocks[{i}]", "layer_{i}.out")),
        # numbers that count something else stay
        ("layers.0.mlp-input_0", "layers.0.mlp(2)-output_0", ("layers.{i}.mlp-input_0", "layers.{i}.mlp(2)-output_0")),
        ("layers.0.experts.0.w1", "layers.0.experts.0.gate", ("layers.{i}.experts.0.w1", "layers.{i}.experts.0.gate")),
        ("towers.0.layers.5.x", "enc.0.blocks.5.y", ("towers.0.layers.{i}.x", "enc.0.blocks.{i}.y")),
        ("fc_1", "dense_1", ("fc_1", "dense_1")),
        ("layer_017", "layers.17", ("layer_017", "layers.17")),
        # one number for all names, or none
        ("cat(layers.0.q, layers.1.q)", "layers.0.k", ("cat(layers.0.q, layers.1.q)", "layers.0.k")),
        ("layers.1.experts.0.w", "layers.0.x", ("layers.1.experts.0.w", "layers.0.x")),
        ("lm_head", "layers.0.x", ("lm_head", "layers.0.x")),
        ("layers.{i}.experts.0", "layers.{i}.ffn.0", ("layers.{i}.experts.0", "layers.{i}.ffn.0")),
    ],
)
def test_generalize(reference: str, candidate: str, general: tuple[str, str]) -> None:
    found = generalize(parse(reference), parse(candidate))
    assert tuple(map(str, found)) == general


@settings(deadline=None)
@given(expressions(st.sampled_from(["layers.7.a", "h.7.b-input_7", "x.blocks.7.c(7)", "e.7.7"])))
def test_what_is_general_holds_for_its_own_layer(tree: Expression) -> None:
    (general,) = generalize(tree)
    assert placeholders(general) == {"i"}
    assert bind(general, {"i": 7}) == tree


def test_views_have_nothing_to_generalize() -> None:
    view = parse_view("squeeze 0")
    assert generalize(view) == (view,)
    assert generalize() == ()


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("blocks.{i+1}.mlp", "blocks.3.mlp", {"i": 2}),
        ("blocks.{i+1}.mlp", "blocks.0.mlp", None),
        ("layers.{2i+1}", "layers.7", {"i": 3}),
        ("layers.{2i+1}", "layers.6", None),
        ("layer{i:02}.mlp", "layer07.mlp", {"i": 7}),
        ("layer{i:02}.mlp", "layer7.mlp", None),
        ("h.{i}.act({i+1})", "h.2.act(3)", {"i": 2}),
        ("h.{i}.act({i+1})", "h.2.act(2)", None),
    ],
)
def test_numbers_that_are_counted_differently(pattern: str, text: str, found: dict[str, int] | None) -> None:
    assert bindings(pattern, text) == found
    if found is not None:
        assert names(bind(parse(pattern), found)) == (text,)


def test_a_placeholder_with_arithmetic_is_written_as_it_was_read() -> None:
    text = "cat(layers.{2i+1}.q, layer{i:02}.k, act({i+1})-input_0)"
    assert str(parse(text)) == text
    assert placeholders(parse(text)) == {"i"}
