"""What a torch model holds once it is loaded: its parameters and the buffers that a checkpoint would keep."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from tensordiff.capture.engines.torch.tensors import why_not_copied
from tensordiff.capture.engines.torch.writing import BackgroundWriter
from tensordiff.capture.process.disk_space import Budget
from tensordiff.dump.model import EntryKey, Origin
from tensordiff.dump.names import parameter_name


def parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors, one that is tied under each of its names."""
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor):
            yield name, value.detach()


def parameter_bytes(model: nn.Module) -> int:
    """How much all of them take."""
    return sum(tensor.nbytes for _, tensor in parameters(model) if not tensor.is_meta)


def write_parameters(model: nn.Module, writer: BackgroundWriter, budget: Budget) -> None:
    """Write all of them, until the budget is spent."""
    for name, tensor in parameters(model):
        if (why := why_not_copied(tensor)) is not None:
            budget.leave_out(why)
        elif budget.allows(tensor.nbytes):
            writer.put(EntryKey(parameter_name(name), 0, 1), Origin(), tensor)
