"""The tensors that two engines have in common, by the tables of names of each engine, not by what tensordiff pairs.

A line says what a candidate's tensor is: its name with ``{i}`` for a block, and the reference's tensors that it is made
of. The tables were written by reading the engines' sources and their dumps (docs/engines.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

Table = Mapping[str, tuple[str, ...]]
_H = "model.model.layers.{i}"
_LLAMA_BLOCK = {
    "": (f"{_H}-output",),
    ".input_layernorm": (f"{_H}.input_layernorm-output",),
    ".self_attn": (f"{_H}.self_attn-output_0",),
    ".self_attn.o_proj": (f"{_H}.self_attn.o_proj-output",),
    ".post_attention_layernorm": (f"{_H}.post_attention_layernorm-output",),
    ".mlp": (f"{_H}.mlp-output",),
    ".mlp.down_proj": (f"{_H}.mlp.down_proj-output",),
}
_ENDS = {
    "embed_tokens": ("model.model.embed_tokens-output",),
    "norm": ("model.model.norm-output",),
}
_APART = {
    part: (f"{_H}{part}-output",)
    for part in (".self_attn.q_proj", ".self_attn.k_proj", ".self_attn.v_proj", ".mlp.gate_proj", ".mlp.up_proj")
}


def _llama(prefix: str, parts: Table, ends: Table, suffix: str = "-output") -> dict[str, tuple[str, ...]]:
    blocks = {f"{prefix}.layers.{{i}}{part}{suffix}": of for part, of in parts.items()}
    return blocks | {f"{prefix}.{part}{suffix}": of for part, of in ends.items()}


def _vllm(root: str) -> dict[str, tuple[str, ...]]:
    """Projections and norms give tuples; q, k, v and gate, up are one; the residual travels apart."""
    block = f"{root}.layers.{{i}}"
    return {
        f"{root}.embed_tokens-output": ("model.model.embed_tokens-output",),
        f"{block}.self_attn.qkv_proj-output_0": tuple(f"{_H}.self_attn.{x}_proj-output" for x in "qkv"),
        f"{block}.self_attn.o_proj-input_0": (f"{_H}.self_attn.o_proj-input_0",),
        f"{block}.self_attn.o_proj-output_0": (f"{_H}.self_attn.o_proj-output",),
        f"{block}.self_attn-output": (f"{_H}.self_attn-output_0",),
        f"{block}.post_attention_layernorm-output_0": (f"{_H}.post_attention_layernorm-output",),
        f"{block}.post_attention_layernorm-output_1": (f"{_H}.post_attention_layernorm-input_0",),
        f"{block}.mlp.gate_up_proj-output_0": (f"{_H}.mlp.gate_proj-output", f"{_H}.mlp.up_proj-output"),
        f"{block}.mlp.act_fn-output": (f"{_H}.mlp.act_fn-output", f"{_H}.mlp.up_proj-output"),
        f"{block}.mlp.down_proj-output_0": (f"{_H}.mlp.down_proj-output",),
        f"{block}.mlp-output": (f"{_H}.mlp-output",),
        f"{block}-output_0": (f"{_H}-output",),
        f"{block}-output_1": (f"{_H}-output",),
        f"{root}.norm-output_0": ("model.model.norm-output",),
        f"{root.rpartition('.')[0]}.logits_processor-output": ("model.lm_head-output",),
    }


_GPT = "model.transformer.h.{i}"
_VLLM_GPT = "model.model.transformer.h.{i}"
TABLES: Mapping[str, Table] = {
    "vllm": _vllm("model.model.model"),
    "vllm-hooks-skipped": _vllm("model.model"),
    "vllm-gpt2": {
        f"{_VLLM_GPT}.{part}": (f"{_GPT}.{of}",)
        for part, of in {
            "ln_1-output": "ln_1-output", "attn.c_attn-output_0": "attn.c_attn-output",
            "attn.c_proj-output_0": "attn.c_proj-output", "attn-output": "attn-output_0", "ln_2-output": "ln_2-output",
            "mlp.c_fc-output_0": "mlp.c_fc-output", "mlp.c_proj-output_0": "mlp.c_proj-output",
            "mlp-output": "mlp-output",
        }.items()
    } | {
        "model.model.transformer.wte-output": ("model.transformer.wte-output",),
        "model.model.transformer.ln_f-output": ("model.transformer.ln_f-output",),
        "model.model.logits_processor-output": ("model.lm_head-output",),
        "model.model.transformer.h.0.mlp.act-output": ("model.transformer.h.0.mlp.act-output",),
        "model.model.transformer.h.0.mlp.act(2)-output": ("model.transformer.h.1.mlp.act-output",),
    },
    "mlx": _llama("model.model", _LLAMA_BLOCK | _APART, _ENDS) | {"model.lm_head-output": ("model.lm_head-output",)},
    "llamacpp": {
        "embd-output": ("model.model.embed_tokens-output",),
        "result_norm-output": ("model.model.norm-output",),
        "result_output-output": ("model.lm_head-output",),
        "blk.{i}.attn_norm-output": (f"{_H}.input_layernorm-output",),
        "blk.{i}.Qcur-output": (f"{_H}.self_attn.q_proj-output",),
        "blk.{i}.Kcur-output": (f"{_H}.self_attn.k_proj-output",),
        "blk.{i}.Vcur-output": (f"{_H}.self_attn.v_proj-output",),
        "blk.{i}.kqv_out-output": (f"{_H}.self_attn.o_proj-input_0",),
        "blk.{i}.attn_out-output": (f"{_H}.self_attn.o_proj-output",),
        "blk.{i}.ffn_inp-output": (f"{_H}.post_attention_layernorm-input_0",),
        "blk.{i}.ffn_norm-output": (f"{_H}.post_attention_layernorm-output",),
        "blk.{i}.ffn_gate-output": (f"{_H}.mlp.gate_proj-output",),
        "blk.{i}.ffn_up-output": (f"{_H}.mlp.up_proj-output",),
        "blk.{i}.ffn_swiglu-output": (f"{_H}.mlp.down_proj-input_0",),
        "blk.{i}.ffn_out-output": (f"{_H}.mlp-output",),
        "blk.{i}.l_out-output": (f"{_H}-output",),
    },
    "jax": _llama("model.model", _LLAMA_BLOCK | _APART, _ENDS) | {"model.lm_head-output": ("model.lm_head-output",)},
    "export-unflatten": _llama(
        "model.model.model",
        {part: of for part, of in (_LLAMA_BLOCK | _APART).items() if not part.endswith("layernorm")},
        _ENDS,
    )
    | {  # a norm gives its input and its result
        f"model.model.model.layers.{{i}}.{norm}-output_1": (f"{_H}.{norm}-output",)
        for norm in ("input_layernorm", "post_attention_layernorm")
    }
    | {"model.model.lm_head-output": ("model.lm_head-output",)},
}  # fmt: skip
"""By pair of dumps."""


def counterparts(case: str, blocks: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The candidate's tensors that have a counterpart, each with what it is made of."""
    for name, of in TABLES[case].items():
        for i in range(blocks) if "{i}" in name else [0]:
            yield name.replace("{i}", str(i)), tuple(one.replace("{i}", str(i)) for one in of)
