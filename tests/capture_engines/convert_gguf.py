"""A small checkpoint of transformers as a GGUF file without a vocabulary: ``convert_gguf.py FOLDER FILE.gguf [TYPE]``.

With a type such as ``Q4_K``, matrices are quantized by llama.cpp's own code.

It is run in llama.cpp's own environment, which has gguf and numpy.
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import xllamacpp


def read_weights(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    body = data[8 + size :]
    return {
        name: np.frombuffer(body[slice(*each["data_offsets"])], np.float32).reshape(each["shape"])
        for name, each in header.items()
    }


def as_pairs(weight: Any, heads: int) -> Any:
    """Rope's two halves side by side, as llama.cpp's Llama has them."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def quantized(weight: Any, kind: gguf.GGMLQuantizationType) -> Any:
    """The blocks of a matrix, a row of bytes for each of its rows."""
    library = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("xllamacpp*.so"))))
    quantize, row_size = library.ggml_quantize_chunk, library.ggml_row_size
    quantize.restype = row_size.restype = ctypes.c_size_t
    row_size.argtypes = [ctypes.c_int, ctypes.c_int64]
    quantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    rows, columns = weight.shape
    values = np.ascontiguousarray(weight, np.float32)
    blocks = np.empty((rows, row_size(kind.value, columns)), np.uint8)
    written = quantize(kind.value, values.ctypes.data, blocks.ctypes.data, 0, rows, columns, None)
    assert written == blocks.nbytes
    return blocks


ARCHITECTURES = {"gemma3_text": "gemma3"}
"""What llama.cpp calls an architecture, where transformers calls it otherwise."""


def write_metadata(writer: gguf.GGUFWriter, name: str, config: dict[str, Any]) -> None:
    width = config.get("hidden_size") or config["n_embd"]
    heads = config.get("num_attention_heads") or config["n_head"]
    writer.add_context_length(config.get("max_position_embeddings", config.get("n_positions")))
    writer.add_embedding_length(width)
    writer.add_block_count(config.get("num_hidden_layers", config.get("n_layer")))
    writer.add_feed_forward_length(config.get("intermediate_size", 4 * width))
    writer.add_head_count(heads)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    writer.add_file_type(0)
    if name == "gpt2":
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
        return
    size = config.get("head_dim") or width // heads
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    writer.add_rope_dimension_count(size)
    if name == "gemma3":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    if name == "phi3":
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
        writer.add_sliding_window(0)


def as_there(name: str, key: str, weight: Any, config: dict[str, Any]) -> Any:
    """A weight as llama.cpp's model of the architecture wants it."""
    if name == "llama" and key.endswith(("q_proj.weight", "k_proj.weight")):
        return as_pairs(weight, config["num_attention_heads" if "q_proj" in key else "num_key_value_heads"])
    if name == "gemma3" and key.endswith("norm.weight"):
        return weight + 1
    if name == "gpt2" and weight.ndim == 2 and ".h." in key:
        return weight.T  # transformers keeps these matrices the other way round
    return weight


def main(folder: Path, output: str, kind: str | None = None) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    name, layers = config["model_type"], config.get("num_hidden_layers", config.get("n_layer"))
    name = ARCHITECTURES.get(name, name)
    writer = gguf.GGUFWriter(output, name)
    write_metadata(writer, name, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[name.upper()], layers)
    for key, weight in read_weights(folder / "model.safetensors").items():
        weight = as_there(name, key, weight, config)
        name_there = names.get_name(key, try_suffixes=(".weight", ".bias"))
        if kind is not None and weight.ndim == 2:
            code = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(name_there, quantized(weight, code), raw_dtype=code)
        else:
            writer.add_tensor(name_there, np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
