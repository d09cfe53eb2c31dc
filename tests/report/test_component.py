"""Parts of networks by the names real models give their layers."""

from __future__ import annotations

import pytest

from tensordiff.report.labels import component


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
