"""Checks before each capture of a reusable child that the model is the same as in the first capture of the process.

A model may change while it runs (statistics of a norm, a cache in a buffer, a counter), and a user's function may keep
state between two calls. So the values of all weights and buffers, the plain attributes and the number of hooks of all
modules, the flags of torch and, if a function made them, the inputs are compared with those of the first capture.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tensordiff.capture.engines.torch.devices.flags import flags as torch_flags
from tensordiff.capture.engines.torch.facts import plain_parts
from tensordiff.capture.engines.torch.program import Program, Step, Steps
from tensordiff.capture.engines.torch.tensors import find_arguments, resolved
from tensordiff.capture.engines.torch.writing.ring import tensor_pieces
from tensordiff.capture.process.reusable_engine import StateChanged
from tensordiff.errors import printable

State = dict[str, Any]
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_ELSEWHERE = ("_parameters", "_buffers", "_modules")
_HOOKS = "_hooks"
_DEEPEST = 3
_AT_ONCE = 1 << 22  # bytes that are summed at once, which takes twenty times as many on the device
_FACTOR, _MODULUS = 1_000_003, (1 << 61) - 1


class StateCheck:
    """The state at the beginning of the first capture."""

    def __init__(self, *, with_inputs: bool) -> None:
        self.with_inputs = with_inputs
        self._first: State | None = None

    def watch(self, program: Program) -> Program:
        """A program whose first step is checked when it begins."""
        return _CheckedProgram(program, self)

    def check(self, step: Step) -> None:
        """Remember the first step of the first capture; refuse that of a later one if it differs."""
        state = state_of(step, with_inputs=self.with_inputs)
        first = self._first = state if self._first is None else self._first
        for name in {**first, **state}:
            if first.get(name) != state.get(name):
                raise StateChanged(f"{printable(name)}: is not what it was when the process was new")


class _CheckedProgram:
    """A program whose first step is checked."""

    def __init__(self, program: Program, state_check: StateCheck) -> None:
        self._program, self._state_check = program, state_check
        self._is_new = True

    def steps(self) -> Steps:
        """The program's own steps."""
        steps = self._program.steps()
        try:
            step = next(steps)
            if self._is_new:
                self._state_check.check(step)
            self._is_new = False
            while True:
                step = steps.send((yield step))
        except StopIteration:
            return

    def facts(self) -> Mapping[str, Any]:
        """The program's own facts."""
        return self._program.facts()


def state_of(step: Step, *, with_inputs: bool) -> State:
    """Everything that is compared, by name."""
    flags = {**torch_flags(step.model), "default dtype": torch.get_default_dtype(), "grad": torch.is_grad_enabled()}
    state = {f"torch's {name}": value for name, value in flags.items()}
    for name, module in step.model.named_modules(prefix="model"):
        state |= {f"{name}.{key}": value for key, value in _of_module(module)}
    if with_inputs:
        found = find_arguments(step.args, step.kwargs, whole_caches=True)
        state |= {port: _values(tensor) for port, tensor in found.tensors.items()}
        state["inputs"] = found.shape
    return state


def _of_module(module: nn.Module) -> Iterator[tuple[str, Any]]:
    yield "class", type(module).__qualname__
    tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    yield from ((name, _values(tensor)) for name, tensor in tensors)
    for key, value in vars(module).items():
        if key not in _ELSEWHERE:
            yield key, _spelled(_in_order(module, key) if _HOOKS in key and isinstance(value, Mapping) else value)


def _in_order(module: nn.Module, name: str) -> dict[int, Any]:
    """Hooks, or data about some of them, by position: torch numbers hooks by a counter over all models."""
    attributes = vars(module)
    known = attributes[name]
    places = {
        number: place for place, number in enumerate(attributes.get(f"{name.partition(_HOOKS)[0]}{_HOOKS}", known))
    }
    return {places.get(number, number): value for number, value in known.items()}


def _spelled(value: Any, depth: int = 0) -> Any:
    """A value in a form that can be compared; values that are not plain are represented by their class."""
    if isinstance(value, Tensor):
        return _values(value)
    if isinstance(value, _PLAIN):
        return repr(value)
    if depth < _DEEPEST and isinstance(value, Mapping):
        return {str(key): _spelled(part, depth + 1) for key, part in value.items()}
    if depth < _DEEPEST and isinstance(value, list | tuple):
        return [_spelled(part, depth + 1) for part in value]
    return type(value).__qualname__


def _values(tensor: Tensor) -> Any:
    """A checksum of a tensor's values."""
    if is_lazy(tensor):
        return "nothing yet"
    about = str(tensor.dtype), tuple(tensor.shape), str(tensor.device)
    if hasattr(tensor, "__tensor_flatten__"):
        return (*about, *((name, _values(part)) for name, part in plain_parts("", tensor)))
    if tensor.device.type == "meta":
        return about
    if tensor.layout != torch.strided or tensor.is_quantized:
        return object()  # unknown values are never equal
    plain = resolved(tensor)
    if not plain.is_cpu:
        return (*about, *_sums_on_device(plain))
    return (*about, zlib.crc32(plain.contiguous().reshape(-1).view(torch.uint8).numpy()))


def _sums_on_device(tensor: Tensor) -> list[int]:
    """A checksum of a tensor that is computed on its device: weights are too large to copy for every capture.

    It has two sums of the bits, the second weighted by position, so that swapped values are noticed. Integers wrap
    around, so the order of addition does not matter.
    """
    sums = [0, 0]
    for part in tensor_pieces(tensor, _AT_ONCE):
        bits = part.contiguous().reshape(-1).view(torch.uint8).to(torch.int64)
        places = torch.arange(1, len(bits) + 1, device=bits.device)
        for number, total in enumerate((bits.sum(), (bits * places).sum())):
            sums[number] = (sums[number] * _FACTOR + int(total)) % _MODULUS
    return sums
