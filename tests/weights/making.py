"""Small checkpoints, written in every format that the tests of weights compare; nothing here is fetched."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Weights = dict[str, NDArray[Any]]

HIDDEN, MIDDLE, VOCAB, LAYERS, HEADS, KV_HEADS, HEAD = 64, 160, 96, 3, 4, 2, 16
GGUF_NAMES = (
    ("model.embed_tokens.", "token_embd."), ("model.norm.", "output_norm."), ("lm_head.", "output."),
    ("model.layers.", "blk."), (".input_layernorm.", ".attn_norm."), (".post_attention_layernorm.", ".ffn_norm."),
    (".self_attn.q_proj.", ".attn_q."), (".self_attn.k_proj.", ".attn_k."), (".self_attn.v_proj.", ".attn_v."),
    (".self_attn.o_proj.", ".attn_output."), (".mlp.gate_proj.", ".ffn_gate."), (".mlp.up_proj.", ".ffn_up."),
    (".mlp.down_proj.", ".ffn_down."),
)  # fmt: skip


def llama(seed: int, layers: int = LAYERS) -> Weights:
    """The parameters of a small Llama, as Hugging Face names them."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        # Heavier tails than an initialization has, as trained weights do.
        return (random.standard_t(6, (rows, columns)) * 0.04).astype(np.float32)

    def norm() -> NDArray[np.float32]:
        return (1 + 0.2 * random.standard_normal(HIDDEN)).astype(np.float32)

    made: Weights = {"model.embed_tokens.weight": matrix(VOCAB, HIDDEN)}
    for k in range(layers):
        prefix = f"model.layers.{k}."
        made |= {
            f"{prefix}input_layernorm.weight": norm(),
            f"{prefix}self_attn.q_proj.weight": matrix(HEADS * HEAD, HIDDEN),
            f"{prefix}self_attn.k_proj.weight": matrix(KV_HEADS * HEAD, HIDDEN),
            f"{prefix}self_attn.v_proj.weight": matrix(KV_HEADS * HEAD, HIDDEN),
            f"{prefix}self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD),
            f"{prefix}post_attention_layernorm.weight": norm(),
            f"{prefix}mlp.gate_proj.weight": matrix(MIDDLE, HIDDEN),
            f"{prefix}mlp.up_proj.weight": matrix(MIDDLE, HIDDEN),
            f"{prefix}mlp.down_proj.weight": matrix(HIDDEN, MIDDLE),
        }
    return made | {"model.norm.weight": norm(), "lm_head.weight": matrix(VOCAB, HIDDEN)}


# --- writers -----------------------------------------------------------------------------------------


def write_sharded(weights: Mapping[str, NDArray[Any]], folder: Path, shards: int = 2) -> Path:
    """A Hugging Face folder: shards of safetensors, an index and a config."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    names = list(weights)
    index: dict[str, str] = {}
    for k in range(shards):
        file = f"model-{k + 1:05}-of-{shards:05}.safetensors"
        some = {name: np.ascontiguousarray(weights[name]) for name in names[k::shards]}
        save_file(some, folder / file)
        index |= dict.fromkeys(some, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


def write_bin(weights: Mapping[str, NDArray[Any]], folder: Path) -> Path:
    """``pytorch_model.bin`` beside a config."""
    import torch

    folder.mkdir(parents=True)

    def tensor(array: NDArray[Any]) -> torch.Tensor:
        if array.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(np.ascontiguousarray(array).view(np.int16).copy()).view(torch.bfloat16)
        return torch.from_numpy(np.ascontiguousarray(array).copy())

    torch.save({name: tensor(array) for name, array in weights.items()}, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


def write_npz(weights: Mapping[str, NDArray[Any]], path: Path) -> Path:
    """``weights.npz``, as MLX wrote them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **weights)  # type: ignore[arg-type]
    return path


def write_gguf(weights: Mapping[str, NDArray[Any]], path: Path, kind: str = "F32") -> Path:
    """A GGUF file of version 3 with llama.cpp's names and its order of rope's rows; matrices in ``kind``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows, data = b"", b""
    for name, array in weights.items():
        values = gguf_rows(name, np.asarray(array, np.float32))
        for ours, theirs in GGUF_NAMES:
            name = name.replace(ours, theirs)
        code, raw = QUANTIZE[kind if values.ndim > 1 else "F32"](values)
        shape = values.shape[::-1]
        rows += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(shape))
        rows += struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", code, len(data))
        data += raw + b"\0" * (-len(raw) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(weights), 0) + rows
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)
    return path


def gguf_rows(name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """As convert_hf_to_gguf permutes q and k."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return values
    heads = values.shape[0] // HEAD
    return np.ascontiguousarray(values.reshape(heads, 2, HEAD // 2, -1).swapaxes(1, 2).reshape(values.shape))


def _blocks(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values.reshape(-1, 32)


def _q8_0(values: NDArray[np.float32]) -> tuple[int, bytes]:
    x = _blocks(values)
    d = np.abs(x).max(1, keepdims=True) / 127
    q = np.round(np.divide(x, d, out=np.zeros_like(x), where=d > 0)).astype(np.int8)
    return 8, np.concatenate((d.astype(np.float16).view(np.uint8), q.view(np.uint8)), 1).tobytes()


def _q4_0(values: NDArray[np.float32]) -> tuple[int, bytes]:
    x = _blocks(values)
    largest = np.take_along_axis(x, np.abs(x).argmax(1, keepdims=True), 1)
    d = largest / -8
    q = np.clip(np.trunc(np.divide(x, d, out=np.zeros_like(x), where=d != 0) + 8.5), 0, 15).astype(np.uint8)
    return 2, np.concatenate((d.astype(np.float16).view(np.uint8), q[:, :16] | (q[:, 16:] << 4)), 1).tobytes()


def _q4_1(values: NDArray[np.float32]) -> tuple[int, bytes]:
    x = _blocks(values)
    low = x.min(1, keepdims=True)
    d = (x.max(1, keepdims=True) - low) / 15
    q = np.clip(np.trunc(np.divide(x - low, d, out=np.zeros_like(x), where=d > 0) + 0.5), 0, 15).astype(np.uint8)
    scales = np.concatenate((d, low), 1).astype(np.float16).view(np.uint8)
    return 3, np.concatenate((scales, q[:, :16] | (q[:, 16:] << 4)), 1).tobytes()


def _q6_k(values: NDArray[np.float32]) -> tuple[int, bytes]:
    """By rounding to the nearest; llama.cpp also searches for better scales."""
    x = values.reshape(-1, 16, 16)
    scale = np.abs(x).max(2) / 31
    d = np.maximum(scale.max(1, keepdims=True) / 127, 1e-7).astype(np.float16).astype(np.float32)
    sc = np.clip(np.round(scale / d), 1, 127)
    q = (np.clip(np.round(x / (d * sc)[:, :, None]), -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = (q[:, :, :2] & 15) | ((q[:, :, 2:] & 15) << 4)
    high = sum((q[:, :, k] >> 4) << (2 * k) for k in range(4))
    parts = low.reshape(len(x), 128), np.asarray(high, np.uint8).reshape(len(x), 64), sc.astype(np.int8).view(np.uint8)
    return 14, np.concatenate((*parts, d.astype(np.float16).view(np.uint8)), 1).tobytes()


def _q4_k(values: NDArray[np.float32]) -> tuple[int, bytes]:
    """By rounding to the nearest."""
    x = values.reshape(-1, 8, 32)
    low = np.minimum(x.min(2), 0)
    scale = (x.max(2) - low) / 15
    halves = [np.maximum(part.max(1, keepdims=True) / 63, 1e-7).astype(np.float16) for part in (scale, -low)]
    d, m = (half.astype(np.float32) for half in halves)
    sc, mins = np.clip(np.round(scale / d), 1, 63).astype(np.uint8), np.clip(np.round(-low / m), 0, 63).astype(np.uint8)
    q = np.clip(np.round((x + (m * mins)[:, :, None]) / (d * sc)[:, :, None]), 0, 15).astype(np.uint8)
    first = (sc[:, :4] & 63) | ((sc[:, 4:] >> 4) << 6), (mins[:, :4] & 63) | ((mins[:, 4:] >> 4) << 6)
    scales = np.concatenate((*first, (sc[:, 4:] & 15) | ((mins[:, 4:] & 15) << 4)), 1)
    packed = (q[:, 0::2] | (q[:, 1::2] << 4)).reshape(len(x), 128)
    return 12, np.concatenate((*(half.view(np.uint8) for half in halves), scales, packed), 1).tobytes()


QUANTIZE = {
    "F32": lambda values: (0, values.astype(np.float32).tobytes()),
    "F16": lambda values: (1, values.astype(np.float16).tobytes()),
    "BF16": lambda values: (30, values.astype(ml_dtypes.bfloat16).tobytes()),
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}


def mlx_quantized(weights: Mapping[str, NDArray[Any]], bits: int = 4, group: int = 32) -> Weights:
    """As MLX quantizes: packed words, scales and biases for each matrix."""
    made: Weights = {}
    for name, array in weights.items():
        values = np.asarray(array, np.float32)
        if values.ndim < 2:
            made[name] = array
            continue
        x = values.reshape(values.shape[0], -1, group)
        low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
        scale = np.maximum((high - low) / (2**bits - 1), 1e-8)
        q = (
            np.clip(np.round((x - low) / scale), 0, 2**bits - 1)
            .astype(np.uint32)
            .reshape(values.shape[0], -1, 32 // bits)
        )
        stem = name.removesuffix(".weight")
        made[name] = (q << np.arange(0, 32, bits, dtype=np.uint32)).sum(-1, dtype=np.uint32)
        made[f"{stem}.scales"] = scale[..., 0].astype(np.float16)
        made[f"{stem}.biases"] = low[..., 0].astype(np.float16)
    return made
