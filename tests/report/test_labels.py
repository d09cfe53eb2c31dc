"""How numbers, components of a network and error profiles are spelled."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensordiff.report.labels import BARS, component, number, shrink, sparkline

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("value", "bar"),
    [
        (0.0, "·"),
        (1e-300, "▁"),
        (1e-8, "▁"),
        (1.1e-7, "▂"),
        (1.1e-4, "▅"),
        (0.5, "█"),
        (1.0, "█"),
        (1e300, "█"),
        (NAN, "×"),
        (INF, "∞"),
    ],
)
def test_one_bar(value: float, bar: str) -> None:
    assert sparkline([value], 1) == bar


@given(st.floats(1e-8, 1.0), st.floats(1e-8, 1.0))
def test_a_larger_error_never_has_a_lower_bar(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert BARS.index(sparkline([low], 1)) <= BARS.index(sparkline([high], 1))


@given(st.lists(st.floats(0, 1) | st.sampled_from([NAN, INF]), max_size=64), st.integers(0, 40))
def test_as_wide_as_asked_or_as_there_is(profile: list[float], width: int) -> None:
    assert len(sparkline(profile, width)) == min(width, len(profile))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=64), st.integers(1, 40))
def test_the_largest_survives_shrinking(profile: list[float], width: int) -> None:
    assert max(shrink(profile, width)) == max(profile)


@pytest.mark.parametrize("profile", [[0.0, NAN, 1.0, INF], [INF, NAN], [NAN, INF], [NAN, 0.0]])
def test_a_nan_is_larger_than_anything(profile: list[float]) -> None:
    assert sparkline(profile, 1) == "×"


def test_an_infinity_is_larger_than_any_number() -> None:
    assert sparkline([1e300, INF, 0.0], 1) == "∞"


def test_each_stretch_shows_its_own_largest() -> None:
    assert shrink([1, 2, 3, 4, 5, 6, 7, 8], 4) == [2, 4, 6, 8]
    assert shrink([1, 2, 3, 4, 5], 2) == [2, 5]


@pytest.mark.parametrize(
    ("part", "layers"),
    [
        ("attention", ["layers.0.self_attn", "layers.0.self_attn.q_proj", "layers.0.self_attn.qkv_proj", "rotary_emb"]),
        (
            "attention",
            ["encoder.layer.0.attention.self.query", "encoder.layer.1.attention.output.dense", "h.0.attn.c_attn"],
        ),
        ("mlp", ["layers.0.mlp", "layers.0.mlp.gate_proj", "layers.0.mlp.act_fn", "layers.1.mlp.experts.3.down_proj"]),
        (
            "mlp",
            ["encoder.layer.0.intermediate.dense", "layers.0.feed_forward.w1", "h.0.mlp.c_fc", "decoder.layers.0.fc1"],
        ),
        (
            "norm",
            ["norm", "layers.0.input_layernorm", "layers.0.post_attention_layernorm", "layers.0.self_attn.q_norm"],
        ),
        (
            "norm",
            ["encoder.layer.0.output.layer_norm", "encoder.layer.0.attention.output.LayerNorm", "h.0.ln_1", "ln_f"],
        ),
        (
            "embedding",
            ["embed_tokens", "embeddings", "embeddings.word_embeddings", "transformer.wte", "transformer.wpe"],
        ),
        ("head", ["lm_head", "pooler.dense", "classifier", "cls.head"]),
        ("block", ["layers.0", "model.layers.11", "encoder.layer.3", "transformer.h.5", "blocks.7"]),
        ("other", ["model", "encoder", "dropout", "", "0", "something"]),
    ],
)
def test_real_names(part: str, layers: list[str]) -> None:
    assert {layer: component(layer) for layer in layers} == dict.fromkeys(layers, part)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.234e-7, "1.23e-07"),
        (1e-300, "1.0e-300"),
        (-1e300, "-1.0e+300"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text
