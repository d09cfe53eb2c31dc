"""What presets take for the same layer, on the names of real models, and what they must not."""

from __future__ import annotations

import pytest

from tensordiff.align.presets import choose
from tensordiff.align.rules.rule import RuleSet
from tests.align.model_names import (
    CONFIGS,
    FAIRSEQ_DECODER,
    MAX_BERT,
    MAX_LLAMA,
    MAX_LLAMA_V3,
    MAX_QWEN3,
    MEGATRON_BEFORE_CORE,
    MEGATRON_CORE,
    OTHERS,
    VERIFY_LAYERS_LLAMA,
    VLLM_LLAMA,
    blocks,
    dump,
    layers_of,
    same,
    transformers_layers,
)
from tests.making import aligned, numbers


def expected(lines: str) -> dict[str, str]:
    words = lines.split()
    return dict(zip(words[::2], words[1::2], strict=True))


def test_gemma_s_norms_in_gguf_files() -> None:
    names = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "attn_q", "ffn_down")
    found = dump([f"blk.{k}.{name}" for k in range(2) for name in names])
    rules = choose(found, found).rules
    spelled = [rules.canonical(f"blk.1.{name}", "candidate") for name in names]
    parts = ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"]
    assert spelled == [f"layers.1.{part}" for part in (*parts, "self_attn.q_proj", "mlp.down_proj")]


@pytest.mark.parametrize("layer", ["model.blk.1.attn_norm/mul_0", "model.blk.1.post_feedforward_layernorm/mul_0"])
def test_the_nodes_of_one_norm_of_llama_cpp_are_known_as_such(layer: str) -> None:
    rules = choose(dump([layer]), dump([layer])).rules
    assert rules.canonical(layer, "candidate").startswith("layers.1.")


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


LIKE_LLAMA = blocks(
    "layers",
    ". input_layernorm self_attn self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.qkv_proj "
    "self_attn.o_proj self_attn.q_norm self_attn.k_norm post_attention_layernorm mlp mlp.gate_proj mlp.up_proj "
    "mlp.gate_up_proj mlp.act_fn mlp.down_proj",
    "embed_tokens embed_positions",
    "norm lm_head",
)


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
    assert same(layers_of(model), LIKE_LLAMA) == expected(lines)


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
    found = same(transformers_layers("LlamaForCausalLM"), VLLM_LLAMA)
    named = (
        "embed_tokens",
        *(f"layers.0.{part}" for part in ("self_attn", "self_attn.o_proj", "mlp", "mlp.down_proj")),
    )
    assert found == {f"model.{name}": f"model.{name}" for name in named}
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


def test_max_on_several_gpus() -> None:
    """A share of attention has the names of the whole; what one GPU has of stacked weights has a name of its own."""
    block = "model.layers.layers.0"
    names = (
        f"{block}.self_attn", f"{block}.self_attn.list_of_attentions.0", f"{block}.mlp_shards.0.down_proj",
        f"{block}.self_attn.list_of_attentions.0.o_proj", f"{block}.self_attn.list_of_attentions.1of2.qkv_proj",
    )  # fmt: skip
    rules = choose(dump(names), dump(names)).rules
    assert [rules.canonical(name, "candidate") for name in names] == [
        "layers.0.self_attn", "layers.0.self_attn.list_of_attentions.0", "layers.0.mlp.down_proj",
        "layers.0.self_attn.o_proj", "layers.0.self_attn.list_of_attentions.1of2.qkv_proj",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("layers.1.mlp.gate", "blk.1.ffn.gate_inp"),
        ("layers.1.mlp.shared_expert.up_proj", "blk.1.ffn.up_shexp"),
        ("layers.1.mlp.shared_expert_gate", "blk.1.ffn.gate_inp_shexp"),
        ("layers.1.mlp.c_fc", "blk.1.ffn.up"),  # StarCoder2
        ("layers.1.mlp.fc2", "blk.1.ffn.down"),  # Phi-2
        ("layers.1.self_attn.dense", "blk.1.attn.output"),
        ("final_layernorm", "output_norm"),
        ("transformer.h.1.mlp.dense_h_to_4h", "blk.1.ffn.up"),  # Falcon
    ],
)
def test_layers_of_gguf_files_are_paired_with_what_other_architectures_call_them(ours: str, theirs: str) -> None:
    values = numbers(3, 4)
    reference = {f"model.{name}-output": values for name in (ours, ours.replace("1", "0"))}
    candidate = {f"model.{name}-output": values for name in (theirs, theirs.replace("1", "0"), "token_embd")}
    pairs = {pair.reference.layer: pair.candidate.layer for pair in aligned(reference, candidate).pairs}
    assert pairs.get(f"model.{ours}") == f"model.{theirs}"
