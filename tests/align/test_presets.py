"""Presets: chosen by the names of real models, and right about what is the same layer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tensordiff.align import presets
from tensordiff.align.expression import parse, placeholders
from tensordiff.align.presets import PRESETS, choose, fitting, preset
from tensordiff.align.rules import RuleSet
from tensordiff.dump import Dump
from tests.align.model_names import (
    CONFIGS,
    FAIRSEQ_DECODER,
    FAIRSEQ_ROBERTA,
    MAX_BERT,
    MAX_LLAMA,
    MAX_LLAMA_V3,
    MAX_QWEN3,
    MEGATRON_BEFORE_CORE,
    MEGATRON_CORE,
    ORIGINAL_LLAMA,
    OTHERS,
    VERIFY_LAYERS_LLAMA,
    VLLM_LLAMA,
    transformers_layers,
)
from tests.making import held, numbers

Names = tuple[str, ...]
ONE = numbers(1)


def dump(layers: Iterable[str]) -> Dump:
    return held({f"{layer}-output": ONE for layer in layers})


def layers_of(model: str) -> Names:
    return OTHERS[model] if model in OTHERS else transformers_layers(model)


def same(reference: Names, candidate: Names) -> dict[str, str]:
    """The layers of the first block, and outside of blocks, that are spelled alike; the last of several wins."""
    rules = choose(dump(reference), dump(candidate)).rules
    theirs = {rules.canonical(layer, "candidate"): layer for layer in candidate}
    found = {layer: theirs.get(rules.canonical(layer, "reference")) for layer in reference}
    return {ours: other for ours, other in found.items() if other and not re.search(r"\.1(\.|$)", ours)}


def expected(lines: str) -> dict[str, str]:
    return {ours: other for ours, other in (line.split() for line in lines.strip().splitlines())}


# --- choosing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("LlamaForCausalLM", "hf fused"),
        ("MixtralForCausalLM", "hf fused"),
        ("Phi3ForCausalLM", "hf fused"),
        ("GPT2LMHeadModel", "gpt2 fused"),
        ("GPTJForCausalLM", "gpt2 fused"),
        ("BloomForCausalLM", "megatron gpt2"),
        ("BertModel", "bert"),
        ("RobertaForMaskedLM", "bert"),
        ("OPTForCausalLM", "hf fairseq fused"),
        ("BartForConditionalGeneration", "hf fairseq fused"),
        ("T5ForConditionalGeneration", "hf"),
        ("vllm llama", "hf vllm fused"),
        ("max llama", "hf max fused"),
        ("max qwen3", "hf max fused"),
        ("max bert", "hf max bert"),
        ("verify_layers llama", "hf verify_layers fused"),
        ("original llama", "llama_original"),
        ("megatron core", "megatron"),
        ("megatron before core", "megatron max"),
        ("fairseq roberta", "hf fairseq fused"),
        ("fairseq decoder", "hf fairseq fused"),
    ],
)
def test_presets_are_chosen_by_the_names(model: str, names: str) -> None:
    assert fitting(dump(layers_of(model))) == tuple(names.split())


def test_each_side_is_looked_at_by_itself() -> None:
    chosen = choose(dump(transformers_layers("GPT2LMHeadModel")), dump(ORIGINAL_LLAMA))
    assert chosen.presets == {"reference": ("gpt2", "fused"), "candidate": ("llama_original",)}
    assert {(rule.source, rule.side) for rule in chosen.rules.rules} == {
        ("gpt2", "reference"),
        ("llama_original", "candidate"),
    }


def test_a_side_that_says_nothing_is_read_as_the_other() -> None:
    assert choose(dump(ORIGINAL_LLAMA), dump(["layers.0", "output"])).presets["candidate"] == ("llama_original",)
    assert same(ORIGINAL_LLAMA, ("layers.0", "output")) == {"layers.0": "layers.0", "output": "output"}
    assert same(("decoder.layers.0", "output_layer"), MEGATRON_CORE) == {
        "decoder.layers.0": "decoder.layers.0",
        "output_layer": "output_layer",
    }


def test_names_that_no_preset_knows() -> None:
    chosen = choose(dump(["tower.a"]), dump(["spire.b"]))
    assert chosen.rules == RuleSet(())
    assert chosen.maps == ()


def test_presets_may_be_asked_for() -> None:
    chosen = choose(dump(["tower.a"]), dump(["h.0"]), ("gpt2",))
    assert chosen.rules.canonical("h.0", "reference") == "layers.0"
    assert [rule.source for rule in choose(dump([]), dump([]), ()).rules.rules] == []


def test_rules_without_a_dump_to_look_at() -> None:
    assert {rule.source for rule in RuleSet().rules} == {"hf", "max", "bert"}


@pytest.mark.parametrize("model", [*CONFIGS, *OTHERS])
def test_one_layer_is_enough_to_be_read_like_the_rest(model: str) -> None:
    """A dump of a few layers must not be spelled otherwise than one of all: they would not pair."""
    layers = layers_of(model)
    whole = choose(dump(layers), dump(layers)).rules
    for layer in layers:
        few = choose(dump(layers), dump([layer])).rules
        assert few.canonical(layer, "candidate") == whole.canonical(layer, "candidate")


# --- what is the same ----------------------------------------------------------------------------


@pytest.mark.parametrize("model", [*CONFIGS, *OTHERS])
def test_no_two_layers_of_a_model_become_one(model: str) -> None:
    layers = layers_of(model)
    rules = choose(dump(layers), dump(layers)).rules
    spelled = {layer: rules.canonical(layer, "reference") for layer in layers}
    assert len(set(spelled.values())) == len(layers), spelled
    assert all(spelled.values())


@pytest.mark.parametrize("model", ["LlamaForCausalLM", "GPT2LMHeadModel", "BertModel", "OPTForCausalLM"])
@pytest.mark.parametrize("prefix", ["model.", "model.model.", "module.", "_orig_mod.", "_orig_mod.module."])
def test_wrappers_change_nothing(model: str, prefix: str) -> None:
    layers = layers_of(model)
    assert same(layers, tuple(prefix + layer for layer in layers)).keys() == same(layers, layers).keys()


def test_wrappers_within_a_name() -> None:
    wrapped = "model.layers.0._fsdp_wrapped_module._checkpoint_wrapped_module.mlp"
    assert RuleSet().canonical(wrapped, "reference") == "layers.0.mlp"


@pytest.mark.parametrize(
    ("model", "lines"),
    [
        (
            "GPT2LMHeadModel",
            """
            transformer.wte                 embed_tokens
            transformer.wpe                 embed_positions
            transformer.h.0                 layers.0
            transformer.h.0.ln_1            layers.0.input_layernorm
            transformer.h.0.attn            layers.0.self_attn
            transformer.h.0.attn.c_attn     layers.0.self_attn.qkv_proj
            transformer.h.0.attn.c_proj     layers.0.self_attn.o_proj
            transformer.h.0.ln_2            layers.0.post_attention_layernorm
            transformer.h.0.mlp             layers.0.mlp
            transformer.h.0.mlp.c_fc        layers.0.mlp.up_proj
            transformer.h.0.mlp.act         layers.0.mlp.act_fn
            transformer.h.0.mlp.c_proj      layers.0.mlp.down_proj
            transformer.ln_f                norm
            lm_head                         lm_head
            """,
        ),
        (
            "original llama",
            """
            tok_embeddings              embed_tokens
            layers.0                    layers.0
            layers.0.attention          layers.0.self_attn
            layers.0.attention.wv       layers.0.self_attn.v_proj
            layers.0.attention.wo       layers.0.self_attn.o_proj
            layers.0.feed_forward       layers.0.mlp
            layers.0.feed_forward.w1    layers.0.mlp.gate_proj
            layers.0.feed_forward.w2    layers.0.mlp.down_proj
            layers.0.feed_forward.w3    layers.0.mlp.up_proj
            layers.0.attention_norm     layers.0.input_layernorm
            layers.0.ffn_norm           layers.0.post_attention_layernorm
            norm                        norm
            output                      lm_head
            """,
        ),
        (
            "megatron core",
            """
            embedding.word_embeddings                       embed_tokens
            decoder.layers.0                                layers.0
            decoder.layers.0.input_layernorm                layers.0.input_layernorm
            decoder.layers.0.self_attention                 layers.0.self_attn
            decoder.layers.0.self_attention.q_layernorm     layers.0.self_attn.q_norm
            decoder.layers.0.self_attention.k_layernorm     layers.0.self_attn.k_norm
            decoder.layers.0.self_attention.linear_proj     layers.0.self_attn.o_proj
            decoder.layers.0.pre_mlp_layernorm              layers.0.post_attention_layernorm
            decoder.layers.0.mlp                            layers.0.mlp
            decoder.layers.0.mlp.linear_fc2                 layers.0.mlp.down_proj
            decoder.final_layernorm                         norm
            output_layer                                    lm_head
            """,
        ),
    ],
    ids=["gpt2", "llama_original", "megatron"],
)
def test_names_become_those_of_a_llama_where_the_tensor_is_the_same(model: str, lines: str) -> None:
    parts = "input_layernorm self_attn post_attention_layernorm mlp mlp.gate_proj mlp.up_proj mlp.act_fn mlp.down_proj"
    heads = [f"self_attn.{part}" for part in "q_proj k_proj v_proj qkv_proj o_proj q_norm k_norm".split()]
    llama = ("embed_tokens embed_positions norm lm_head layers.0".split(), [*parts.split(), *heads])
    assert same(layers_of(model), (*llama[0], *(f"layers.0.{part}" for part in llama[1]))) == expected(lines)


def test_max_s_llama() -> None:
    layers = tuple(f"model.{name}" for name in transformers_layers("LlamaForCausalLM"))
    for other in (MAX_LLAMA, MAX_LLAMA_V3):
        found = same(layers, other)
        assert {*found.values()} == {n for n in other if ".1" not in n and "qkv" not in n}
        assert found["model.model.layers.0.mlp.down_proj"].endswith(".0.mlp.down_proj")
        assert found["model.lm_head"] == "model.lm_head"


def test_max_s_qwen3() -> None:
    found = same(transformers_layers("Qwen3ForCausalLM"), MAX_QWEN3)
    assert found["model.layers.0.self_attn.q_norm"] == "model.layers.layers.0.self_attn_shards.0.q_norm"
    orphans = {name for name in MAX_QWEN3 if ".1" not in name} - {*found.values()}
    assert {name.rpartition(".")[2] for name in orphans} == {"qkv_proj", "allreduce", "0"}


def test_max_s_bert() -> None:
    found = same(transformers_layers("BertModel"), MAX_BERT)
    assert {*found.values()} == {name for name in MAX_BERT if ".1" not in name}
    assert found["encoder.layer.0.output.LayerNorm"] == "model.encoder.layer.layers.0.output.layer_norm"


def test_a_model_with_a_head_and_one_without() -> None:
    roberta = tuple(name for name in transformers_layers("RobertaForMaskedLM") if name.startswith("roberta."))
    assert len(same(roberta, tuple(name.removeprefix("roberta.") for name in roberta))) > 20


def test_what_vllm_calls_the_same_and_is_another_tensor_is_not_paired() -> None:
    assert same(transformers_layers("LlamaForCausalLM"), VLLM_LLAMA) == {
        f"model.{name}": f"model.{name}"
        for name in (
            "embed_tokens layers.0.self_attn layers.0.self_attn.o_proj layers.0.mlp layers.0.mlp.down_proj".split()
        )
    }
    assert len(same(VLLM_LLAMA, VLLM_LLAMA)) == len(VLLM_LLAMA) // 2 + 2


def test_two_megatrons() -> None:
    found = same(MEGATRON_CORE, MEGATRON_BEFORE_CORE)
    assert len(found) == len([name for name in MEGATRON_BEFORE_CORE if ".1" not in name])
    linear_qkv = "language_model.encoder.layers.0.self_attention.query_key_value"
    assert found["decoder.layers.0.self_attention.linear_qkv"] == linear_qkv


def test_encoder_and_decoder_of_megatron_stay_apart() -> None:
    layers = [f"{side}.layers.0.self_attention.linear_qkv" for side in ("encoder", "decoder")]
    old = [f"language_model.{layer}" for layer in layers]
    for both in (layers, old):
        rules = choose(dump(both), dump(both)).rules
        assert len({rules.canonical(layer, "reference") for layer in both}) == 2


def test_blocks_of_verify_layers_and_no_other_that_are_counted_by_class() -> None:
    found = same(transformers_layers("LlamaForCausalLM"), VERIFY_LAYERS_LLAMA)
    assert found["model.layers.0"] == "layers.0.TransformerBlock"
    assert {"layers.0.MLP", "layers.0.AttentionWithRope"}.isdisjoint(found.values())


def test_fairseq_s_decoder_is_opt() -> None:
    found = same(transformers_layers("OPTForCausalLM"), FAIRSEQ_DECODER)
    assert found["lm_head"] == "decoder.output_projection"
    assert {name for name in FAIRSEQ_DECODER if ".1" not in name} - {*found.values()} == {"decoder.layer_norm"}


def test_mixtral_before_transformers_5() -> None:
    rules = RuleSet()
    assert rules.canonical("model.layers.0.block_sparse_moe.gate", "reference") == "layers.0.mlp.gate"
    experts = "model.layers.0.block_sparse_moe.experts.7"
    spelled = [rules.canonical(f"{experts}.{name}", "reference") for name in ("w1", "w2", "w3")]
    assert spelled == [f"layers.0.mlp.experts.7.{name}_proj" for name in ("gate", "down", "up")]


# --- the files -----------------------------------------------------------------------------------


def test_every_file_is_a_preset() -> None:
    folder = Path(presets.__file__).parent / "presets"
    assert {path.stem for path in folder.glob("*.toml")} == set(PRESETS)
    assert {path.suffix for path in folder.iterdir()} == {".toml"}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_says_what_it_is_for_and_has_both_ways_round(name: str) -> None:
    found = preset(name)
    assert found.about
    assert found.detect
    assert {rule.source for rule in found.rules} <= {name}
    assert {(m.reference, m.candidate) for m in found.maps} == {(m.candidate, m.reference) for m in found.maps}


@pytest.mark.parametrize("name", PRESETS)
def test_maps_are_in_names_that_rules_leave_alone(name: str) -> None:
    for rule in preset(name).maps:
        sides = [parse(side) for side in (rule.reference, rule.candidate)]
        assert placeholders(sides[0]) == placeholders(sides[1])
        texts = re.findall(r"[a-z][\w.]*\{i\}[\w.]*", f"{rule.reference} {rule.candidate}")
        for text in texts:
            filled = text.replace("{i}", "3")
            assert RuleSet().canonical(filled, "reference") == filled


def test_roberta_by_maps_covers_every_linear_layer_and_norm() -> None:
    chosen = choose(dump(transformers_layers("RobertaForMaskedLM")), dump(FAIRSEQ_ROBERTA))
    mapped = {rule.candidate.replace("{i}", "0") for rule in chosen.maps if rule.reference.startswith("e")}
    spelled = {chosen.rules.canonical(name, "candidate") for name in FAIRSEQ_ROBERTA if ".1" not in name}
    alone = {"encoder.layers.0.self_attn", "lm_head", "lm_head.dense", "lm_head.layer_norm"}
    assert spelled - mapped == alone
