"""A small checkpoint of transformers as a GGUF file without a vocabulary: ``convert_gguf.py FOLDER FILE.gguf``.

It is run in llama.cpp's own environment, which has gguf and numpy.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np


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


def main(folder: Path, output: str) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    name, layers = config["model_type"], config["num_hidden_layers"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    writer = gguf.GGUFWriter(output, name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(size)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    writer.add_file_type(0)
    if name == "phi3":
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
        writer.add_sliding_window(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[name.upper()], layers)
    for key, weight in read_weights(folder / "model.safetensors").items():
        if name == "llama" and key.endswith(("q_proj.weight", "k_proj.weight")):
            weight = as_pairs(weight, heads if "q_proj" in key else groups)
        writer.add_tensor(names.get_name(key, try_suffixes=(".weight", ".bias")), np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
