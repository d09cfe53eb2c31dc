"""Models that accelerate spread over devices: where a module computes, and the values of offloaded weights.

accelerate's hook on a module moves its inputs to a device. For an offloaded module it also loads the weights before
each call and drops them after it. In between such weights are on the meta device and hold nothing; their values are in
the hook's ``weights_map``, on the CPU or on the disk. Hooks are recognized by their attributes, so that accelerate need
not be imported.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_HOOK, _FORWARD = "_hf_hook", "_old_forward"


def hooks_of(module: nn.Module) -> Iterator[Any]:
    """accelerate's hooks on a module."""
    waiting = [getattr(module, _HOOK, None)]
    while waiting:
        if (hook := waiting.pop(0)) is not None:
            yield hook
            waiting[:0] = getattr(hook, "hooks", ())  # several in one


def own_forward(module: nn.Module) -> str:
    """The attribute that holds a module's own forward: accelerate may have put another in front of it."""
    return _FORWARD if hasattr(module, _HOOK) and hasattr(module, _FORWARD) else "forward"


def execution_device(module: nn.Module) -> torch.device | None:
    """The device where accelerate runs a module; None if accelerate does not control it."""
    for hook in hooks_of(module):
        if (device := getattr(hook, "execution_device", None)) is not None:
            return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return None


def compute_device(module: nn.Module) -> torch.device | None:
    """The device where a module computes: as accelerate says, else that of its first weight; None if unknown."""
    if (device := execution_device(module)) is not None:
        return device
    for part in module.modules():
        if (device := execution_device(part)) is not None:
            return device
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
            if not tensor.is_meta:
                return tensor.device
    return None


class _OffloadedWeight(NamedTuple):
    """A weight that is loaded when it is needed."""

    held: Any
    name: str


class Weights:
    """The weights and persistent buffers of a model, including the values of offloaded ones."""

    def __init__(self, model: nn.Module) -> None:
        state = model.state_dict(keep_vars=True)
        self.tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
        """As the model has them; offloaded ones have only shape and type."""
        is_offloaded = any(tensor.is_meta for tensor in self.tensors.values())
        self._offloaded = dict(_offloaded(model)) if is_offloaded else {}

    def value(self, name: str) -> Tensor:
        """The value of a weight, loaded if it is offloaded. It stays on the meta device if nothing has its value."""
        tensor, waiting = self.tensors[name], self._offloaded.get(name)
        if waiting is None or not tensor.is_meta:
            return tensor
        try:
            return torch.as_tensor(waiting.held[waiting.name]).to(tensor.dtype)
        except KeyError:
            return tensor

    def empty(self) -> list[str]:
        """Weights without values that no hook will load."""
        return [name for name, tensor in self.tensors.items() if tensor.is_meta and name not in self._offloaded]

    def values(self) -> dict[str, Tensor]:
        """The values of all weights, by name."""
        return {name: self.value(name) for name in self.tensors}


def _offloaded(model: nn.Module) -> Iterator[tuple[str, _OffloadedWeight]]:
    for prefix, module in model.named_modules():
        for hook in hooks_of(module):
            if (held := getattr(hook, "weights_map", None)) is not None:
                for name in module.state_dict(keep_vars=True):
                    yield f"{prefix}.{name}" if prefix else name, _OffloadedWeight(held, name)


def on_cpu(module: nn.Module) -> nn.Module:
    """A module on the CPU, without accelerate's hooks: the module itself if it is that already, else a copy."""
    tensors = [*module.parameters(), *module.buffers()]
    is_hooked = any(hasattr(part, _HOOK) for part in module.modules())
    if not is_hooked and all(tensor.device.type == "cpu" for tensor in tensors):
        return module
    made = _copied(module, tensors)
    for part in made.modules():
        if hasattr(part, _FORWARD):
            part.forward = getattr(part, _FORWARD)
            delattr(part, _FORWARD)
        vars(part).pop(_HOOK, None)
    _load(made, Weights(module))
    return made


def _copied(module: nn.Module, tensors: list[Tensor]) -> nn.Module:
    """Copy a module with its tensors directly on the CPU: the device may have no room for a second set."""
    memo: dict[int, Any] = {id(hook): None for part in module.modules() for hook in hooks_of(part)}
    for tensor in tensors:
        if not tensor.is_meta:
            plain = tensor.detach().cpu()
            is_weight = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(plain, requires_grad=False) if is_weight else plain
    made: nn.Module = copy.deepcopy(module, memo)
    return made


def _load(module: nn.Module, weights: Weights) -> None:
    """Fill in the values of weights that had none."""
    for name, tensor in weights.tensors.items():
        if tensor.is_meta:
            path, _, own = name.rpartition(".")
            part, value = module.get_submodule(path), weights.value(name).detach().cpu()
            if own in part._parameters:
                part._parameters[own] = nn.Parameter(value, requires_grad=False)
            else:
                part._buffers[own] = value
