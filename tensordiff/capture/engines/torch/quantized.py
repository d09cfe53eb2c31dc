"""Quantized torch models: the dequantized values of their weights, and a plain model with such weights.

torchao stores codes and scales in a tensor of its own type, bitsandbytes beside the weight or in the module. Neither is
imported here unless the model uses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tensordiff.capture.engines.torch.tensors import as_array
from tensordiff.capture.events import Note, Tell
from tensordiff.capture.quantization import quantization_facts, said_to_round_activations
from tensordiff.dump import Dump, open_dump
from tensordiff.dump.model import MemoryTensor, entry
from tensordiff.dump.names import parameter_name
from tensordiff.errors import CaptureError, printable
from tensordiff.weights.quantization import Quantization
from tensordiff.weights.rounding import Rounding, round_as, rounds_activations

_OF_BITSANDBYTES = 127.0
_NAMED = 3


class QuantizedWeight(NamedTuple):
    """The quantized weight of a module."""

    kind: Quantization
    values: Tensor
    """The dequantized values."""
    rounds_activations: bool
    """Whether the other operand of its products is rounded to 8 bits."""


def quantized_weight(module: nn.Module) -> QuantizedWeight | None:
    """The weight of a module, if torchao or bitsandbytes quantized it."""
    weight = dict(module.named_parameters(recurse=False)).get("weight")
    library = type(weight).__module__.partition(".")[0]
    if library == "torchao" and hasattr(weight, "dequantize"):
        return _of_torchao(weight)
    if library == "bitsandbytes":
        return _of_bitsandbytes(module, weight)
    return None


def _of_torchao(weight: Any) -> QuantizedWeight:
    dtype = getattr(weight, "target_dtype", None) or getattr(weight, "qdata", weight).dtype
    digits = "".join(filter(str.isdigit, str(dtype).rpartition("int")[2]))
    bits = int(digits) if digits and "float" not in str(dtype) else 0
    block = int((getattr(weight, "block_size", None) or weight.shape)[-1])
    activations = any(getattr(weight, name, None) for name in ("act_quant_kwargs", "activation_quantization"))
    kind = Quantization(f"torchao {type(weight).__name__} {str(dtype).removeprefix('torch.')}", bits, block)
    return QuantizedWeight(kind, weight.dequantize().detach(), activations)


def _of_bitsandbytes(module: nn.Module, weight: Any) -> QuantizedWeight | None:
    if (state := getattr(weight, "quant_state", None)) is not None:
        from bitsandbytes.functional import dequantize_4bit

        kind = Quantization(f"bitsandbytes {state.quant_type}", 4, int(state.blocksize))
        return QuantizedWeight(kind, dequantize_4bit(weight.data, state).detach(), rounds_activations=False)
    held = getattr(module, "state", None)
    codes = next(
        (found for found in (getattr(weight, "CB", None), getattr(held, "CB", None)) if found is not None), None
    )
    scale = next(
        (found for found in (getattr(weight, "SCB", None), getattr(held, "SCB", None)) if found is not None), None
    )
    if codes is None or scale is None:
        return None
    values = codes.float() * scale.float().reshape(-1, 1) / _OF_BITSANDBYTES
    return QuantizedWeight(Quantization("bitsandbytes int8", 8, codes.shape[-1]), values, rounds_activations=True)


def keep_readable(model: nn.Module) -> None:
    """Keep bitsandbytes from converting 4-bit weights after loading.

    On CPUs with AVX512 it converts their layout in the first call, and ``state_dict`` does not restore all of it: the
    scales stay transposed, and every later run is wrong.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def quantized_weights(model: nn.Module) -> Iterator[tuple[str, QuantizedWeight]]:
    """The quantized weights of a model, by the names of their modules."""
    for name, module in model.named_modules():
        if (found := quantized_weight(module)) is not None:
            yield name, found


def facts_of(model: nn.Module) -> dict[str, Any]:
    """The facts of a quantized model for its manifest; none for a plain model."""
    found = list(quantized_weights(model))
    kinds = {f"{name}.weight" if name else "weight": one.kind for name, one in found}
    return quantization_facts(kinds, rounds_activations=any(one.rounds_activations for _, one in found))


# --- a plain model with the weights of a quantized one ------------------------------------------------


def take_weights(model: nn.Module, path: str, tell: Tell) -> dict[str, Any]:
    """Copy the weights of a quantized candidate into a model, as far as quantization explains them; returns the facts.

    Raises ``CaptureError`` if the candidate holds no quantized weights, or if quantization explains none of them.
    """
    candidate, rounding = open_dump(Path(path)), Rounding()
    targets = dict(model.named_parameters())
    for name, values in round_as(_dump_of(targets), candidate, rounding):
        with torch.no_grad():
            targets[name].copy_(torch.from_numpy(values.astype("float32")))
    if not rounding.taken:
        raise CaptureError(f"--quantized-as {printable(path)}: {_why_nothing(rounding)}")
    tell(Note(f"runs with the {rounding.sentence} of {printable(path)}"))
    if rounding.left:
        some = ", ".join(map(printable, rounding.left[:_NAMED])) + (", …" if len(rounding.left) > _NAMED else "")
        tell(Note(f"not what quantization makes of the reference's, and left as they are: {some}"))
    return {
        "path": path, "weights": rounding.sentence, "left": rounding.left,
        "layers": sorted(name.removesuffix(".weight") for name in rounding.taken),
        "rounds_activations": rounds_activations(rounding.kinds) or said_to_round_activations(candidate.facts),
    }  # fmt: skip


def _why_nothing(rounding: Rounding) -> str:
    if rounding.left:
        return f"none of its weights is what quantization makes of the reference's ({len(rounding.left)} compared)"
    return "holds no quantized weights; give a checkpoint or a GGUF file that does, or a dump captured with --weights"


def _dump_of(parameters: dict[str, nn.Parameter]) -> Dump:
    """The parameters of a model as a dump, without copying those on the host: each weight is compared before it is
    replaced.
    """
    arrays = ((name, as_array(parameter.detach().cpu())) for name, parameter in parameters.items())
    entries = tuple(entry(parameter_name(name), MemoryTensor(array)) for name, array in arrays)
    return Dump(Path("reference"), "arrays", entries, ordered=True).with_parameters_apart()
