"""Rotary positions: frequencies, tables, and where they are applied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from studies.bugs.spot import change_globals, replace_forward
from studies.museum.architectures import GEMMA3, GLM4_MOE, LLAMA, PHI, QWEN2
from studies.museum.exhibit import ROWS, SEES_BACK, Exhibit
from studies.museum.questions import decoding_left, far_along

_SCALED = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32}


def frequencies(size: int, theta: float) -> Any:
    """Plain ones, of a rotary size."""
    return 1.0 / theta ** (torch.arange(0, size, 2).float() / size)


def attentions(model: Any) -> Iterator[Any]:
    """The attention of every block."""
    return (layer.self_attn for layer in model.model.layers)


def _plain_frequencies(model: Any) -> None:
    rotary = model.model.rotary_emb
    rotary.inv_freq = frequencies(2 * len(rotary.inv_freq), 10000.0)


def _default_theta(model: Any) -> None:
    rotary = model.model.rotary_emb
    rotary.inv_freq = frequencies(2 * len(rotary.inv_freq), 10000.0)


def _global_everywhere(model: Any) -> None:
    rotary = model.model.rotary_emb
    rotary.sliding_attention_inv_freq = rotary.full_attention_inv_freq.clone()
    rotary.sliding_attention_attention_scaling = rotary.full_attention_attention_scaling


def _angles_in_bfloat16(model: Any) -> None:
    rotary = model.model.rotary_emb

    def forward(x: Any, position_ids: Any) -> tuple[Any, Any]:
        angles = position_ids[..., None].bfloat16() * rotary.inv_freq.bfloat16()
        whole = torch.cat((angles, angles), -1).float()
        return whole.cos().to(x.dtype), whole.sin().to(x.dtype)

    rotary.forward = forward


def _factor_of_one(model: Any) -> None:
    model.model.rotary_emb.attention_scaling = 1.0


def _all_channels(model: Any) -> None:
    rotary = model.model.rotary_emb
    rotary.inv_freq = frequencies(4 * len(rotary.inv_freq), 10000.0)


def _before_transpose(model: Any) -> None:
    """Tables of the first positions are laid along the heads."""

    def made(rope: Any) -> Any:
        def run(q: Any, k: Any, cos: Any, sin: Any, *rest: Any, **named: Any) -> tuple[Any, Any]:
            return tuple(
                rope(x.transpose(1, 2), x.transpose(1, 2), cos[:, :heads], sin[:, :heads], *rest, **named)[0].transpose(
                    1, 2
                )
                for x in (q, k)
                for heads in (x.shape[1],)
            )

        return run

    for attention in attentions(model):
        change_globals(attention, apply_rotary_pos_emb=made)()


def _twice(model: Any) -> None:
    def made(rope: Any) -> Any:
        return lambda q, k, *rest, **named: rope(*rope(q, k, *rest, **named), *rest, **named)

    for attention in attentions(model):
        change_globals(attention, apply_rotary_pos_emb=made)()


def _table_of_first_row(model: Any) -> None:
    """The table is made for the first row's positions, once tokens come one at a time."""
    rotary = model.model.rotary_emb

    def made(forward: Any) -> Any:
        def run(x: Any, position_ids: Any) -> Any:
            return forward(x, position_ids[:1] if position_ids.shape[1] == 1 else position_ids)

        return run

    replace_forward(rotary, made)


def _positions_of_first_row(model: Any) -> None:
    """The model hands the first row's positions to all, once tokens come one at a time."""

    def change(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        given = kwargs["position_ids"]
        if given.shape[1] == 1:
            kwargs = {**kwargs, "position_ids": given[:1].expand_as(given)}
        return args, kwargs

    model.model.rotary_emb.register_forward_pre_hook(change, with_kwargs=True, prepend=True)


EXHIBITS = (
    Exhibit(
        "rope_scaling_ignored",
        ("unslothai/unsloth#6907", "Blaizzy/mlx-vlm#1710", "jmaczan/tiny-vllm#1"),
        "llama3 frequency scaling of RoPE is not applied",
        LLAMA.where(rope_parameters=_SCALED), ("model.rotary_emb",), _plain_frequencies, (*SEES_BACK, "rope_scaling"),
    ),
    Exhibit(
        "rope_theta_not_read", ("vllm-project/vllm#9503",), "rope_theta is not read from the configuration",
        PHI.where(rope_parameters={"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}),
        ("model.rotary_emb",), _default_theta, (*SEES_BACK, "rope_theta"),
    ),
    Exhibit(
        "rope_theta_dropped", ("lyogavin/airllm#369",), "one of two paths drops rope_theta",
        QWEN2.where(rope_parameters={"rope_type": "default", "rope_theta": 1e6}), ("model.rotary_emb",),
        _default_theta, (*SEES_BACK, "rope_theta"),
    ),
    Exhibit(
        "rope_global_for_local", ("vllm-project/vllm#29111",),
        "sliding layers rotate with the global base and scaling",
        GEMMA3.where(
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            }
        ),
        ("model.rotary_emb",), _global_everywhere, (*SEES_BACK, "rope_theta", "rope_scaling"),
    ),
    Exhibit(
        "rope_angles_in_bfloat16",
        ("huggingface/candle#3520", "huggingface/transformers#29285", "sgl-project/sglang-jax#1472"),
        "angles of RoPE are computed in bfloat16", LLAMA, ("model.rotary_emb",), _angles_in_bfloat16,
        (*SEES_BACK, "rope_precision"), far_along,
    ),
    Exhibit(
        "yarn_factor_of_one", ("turboderp-org/exllamav3#259",),
        "YaRN's attention factor became 1 where mscale equals mscale_all_dim", LLAMA.where(rope_parameters=_YARN),
        ("model.rotary_emb",), _factor_of_one, (*SEES_BACK, "scale", "rope_scaling"),
    ),
    Exhibit(
        "rope_not_partial", ("vllm-project/vllm#43770",), "partial_rotary_factor is lost: all channels are rotated",
        GLM4_MOE, ("model.rotary_emb",), _all_channels, (*SEES_BACK, "rope_partial"),
    ),
    Exhibit(
        "rope_before_transpose", ("lablup/mlxcel#1688",),
        "RoPE is applied before the transpose: the head's number serves as position", LLAMA,
        ("model.layers.0.self_attn",), _before_transpose, (*SEES_BACK, "rope_positions"),
    ),
    Exhibit(
        "rope_twice", ("NVIDIA/TensorRT-LLM#4040",), "RoPE is applied twice", LLAMA, ("model.layers.0.self_attn",),
        _twice, (*SEES_BACK, "rope_twice"),
    ),
    Exhibit(
        "rope_table_of_first_row", ("unslothai/unsloth#3699",),
        "in decoding, the table of RoPE is made for the first row of a left-padded batch", LLAMA,
        ("model.rotary_emb",), _table_of_first_row, (*ROWS, "position_offset", "decode_only"), decoding_left, step=1,
    ),
    Exhibit(
        "positions_of_first_row", ("unslothai/unsloth#3699",),
        "in decoding, all rows of a left-padded batch share one row of positions", LLAMA,
        ("model",), _positions_of_first_row, (*ROWS, "position_offset", "decode_only"), decoding_left, step=1,
    ),
)  # fmt: skip
