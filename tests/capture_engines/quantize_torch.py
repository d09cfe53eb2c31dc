"""A checkpoint as torchao or bitsandbytes quantizes it: ``quantize_torch.py FOLDER OUTPUT HOW``."""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, TorchAoConfig


def config_of(how: str) -> Any:
    """By the name of a way to quantize."""
    if how == "bitsandbytes-8":
        return BitsAndBytesConfig(load_in_8bit=True)
    if how == "bitsandbytes-4":
        return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, IntxWeightOnlyConfig
    from torchao.quantization.granularity import PerGroup

    return TorchAoConfig({
        "torchao-int8": lambda: Int8WeightOnlyConfig(version=2),
        "torchao-int8-dynamic": lambda: Int8DynamicActivationInt8WeightConfig(version=2),
        "torchao-int4": lambda: IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32), version=2),
    }[how]())  # fmt: skip


def main(folder: str, output: str, how: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config_of(how), dtype=torch.float32)
    model.save_pretrained(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
