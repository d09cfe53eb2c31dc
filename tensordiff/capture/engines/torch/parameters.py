"""The parameters of a loaded torch model, and the buffers that a checkpoint would keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from tensordiff.capture.engines.torch.devices.offload import Weights
from tensordiff.capture.engines.torch.quantized import QuantizedWeight, quantized_weights
from tensordiff.capture.engines.torch.tensors import why_not_copied
from tensordiff.capture.engines.torch.writing.writer import BackgroundWriter
from tensordiff.capture.process.disk_space import Budget
from tensordiff.dump.model import EntryKey, Origin
from tensordiff.dump.names import parameter_name


def parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors; a tied tensor appears under each of its names, a quantized one dequantized."""
    quantized, weights = dict(quantized_weights(model)), Weights(model)
    for name in weights.tensors:
        if not _belongs_to(quantized, name):
            yield name, weights.value(name).detach()
    for name, weight in quantized.items():
        yield f"{name}.weight", weight.values


def _belongs_to(quantized: Mapping[str, QuantizedWeight], name: str) -> bool:
    """Whether a tensor is a quantized weight, or its codes or scales: anything in such a module except its bias."""
    stem, _, rest = name.rpartition(".")
    while stem and stem not in quantized:
        stem, _, last = stem.rpartition(".")
        rest = f"{last}.{rest}"
    return bool(stem) and rest != "bias"


def parameter_bytes(model: nn.Module) -> int:
    """The total size of the parameters."""
    return sum(tensor.nbytes for tensor in Weights(model).tensors.values())


def write_parameters(model: nn.Module, writer: BackgroundWriter, budget: Budget) -> None:
    """Write the parameters, until the budget is spent."""
    for name, tensor in parameters(model):
        if (why := why_not_copied(tensor)) is not None:
            budget.leave_out(why)
        elif budget.allows(tensor.nbytes):
            writer.put(EntryKey(parameter_name(name), 0, 1), Origin(), tensor)
