"""The arguments of a recorded call, rebuilt from its dump, as often as needed.

The dump records the structure of a call's arguments besides its tensors, see ``tensors.TensorTree``. A cache is rebuilt
from what the modules that read it found in it. If a dump lacks something (an object of the model's own, a function, a
tensor that was left out), the call is refused: a layer that is called differently returns something else, which would
look like an error of the layer.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tensordiff.capture.engines.torch import caches
from tensordiff.capture.engines.torch import facts as run_facts
from tensordiff.capture.engines.torch.devices.offload import compute_device
from tensordiff.capture.engines.torch.hooks import Call, cache_layer_of
from tensordiff.capture.engines.torch.program import first_device
from tensordiff.capture.engines.torch.tensors import to_device, to_tensor, with_strides
from tensordiff.capture.process.layers import ROOT
from tensordiff.dump import Dump, Entry
from tensordiff.errors import CaptureError, printable

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Held = dict[int, dict[str, Entry]]
"""The content of a cache: by number of its layers, the entries by the names in ``caches``."""


class RecordedCall(NamedTuple):
    """One call of a layer, as a dump has it."""

    call: Call
    inputs: dict[str, Entry]
    outputs: dict[str, Entry]
    shape: Any


class RebuiltCall(NamedTuple):
    """The arguments of a call, rebuilt."""

    tensors: dict[str, Tensor]
    """By port; the content of a cache by the names of its entries."""
    shape: Any
    caches: dict[str, Held]
    """By port."""
    config: Any
    device: torch.device
    notes: list[str]

    def on_cpu(self) -> RebuiltCall:
        """The same call on the CPU, whatever device it was rebuilt for."""
        tensors = {name: tensor.cpu() for name, tensor in self.tensors.items()}
        return self._replace(tensors=tensors, device=torch.device("cpu"))

    def fresh(self) -> dict[str, Tensor]:
        """Copies of the tensors: a layer may write to its inputs."""
        strides = {str(one["tensor"]): one["strides"] for _, one in leaves(self.shape) if "strides" in one}
        return {
            name: with_strides(tensor, strides[name]) if name in strides else tensor.clone()
            for name, tensor in self.tensors.items()
        }

    def arguments(self, given: Mapping[str, Tensor]) -> Arguments:
        """The arguments made of these tensors."""
        args = tuple(self._value(part, f"input_{k}", given) for k, part in enumerate(self.shape["args"]))
        return args, {key: self._value(part, f"input_{key}", given) for key, part in self.shape["kwargs"].items()}

    def _value(self, shape: Any, port: str, given: Mapping[str, Tensor]) -> Any:
        match shape:
            case {"tensor": name}:
                return given[shape.get("is", name)]
            case {"tuple": list(parts)} | {"list": list(parts)}:
                made = [self._value(part, f"{port}_{k}", given) for k, part in enumerate(parts)]
                return _sequence(shape, made)
            case {"dict": dict(parts)}:
                values = [self._value(part, f"{port}_{key}", given) for key, part in parts.items()]
                return _mapping(shape, dict(zip(shape.get("keys", parts), values, strict=True)))
            case {"dtype": str(name)}:
                return _dtype(name)
            case {"device": _}:
                return self.device
            case {"object": str(kind)}:
                held = self.caches[port].items()
                states = {number: {name: given[e.name] for name, e in layer.items()} for number, layer in held}
                return caches.rebuilt(kind, states, self.config)
        return shape


def leaves(shape: Any, port: str = "input") -> Iterator[tuple[str, dict[str, Any]]]:
    """The leaves of a shape, by port; plain values are left out."""
    match shape:
        case {"args": list(args), "kwargs": dict(kwargs)}:
            parts = {**{str(k): part for k, part in enumerate(args)}, **kwargs}
        case {"tuple": list(inner)} | {"list": list(inner)}:
            parts = {str(k): part for k, part in enumerate(inner)}
        case {"dict": dict(inner)}:
            parts = inner
        case dict():
            yield port, shape
            return
        case _:
            return
    for key, part in parts.items():
        yield from leaves(part, f"{port}_{key}")


def _dtype(name: str) -> torch.dtype:
    """A dtype by its name. A dump may contain any name, so other attributes of torch are refused."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise CaptureError(f"one of its arguments was the type {printable(name)}, and torch has no such type")
    return found


def _sequence(shape: Mapping[str, Any], parts: list[Any]) -> Any:
    if (found := _class(shape, tuple | list)) is None:
        return tuple(parts) if "tuple" in shape else parts
    return found._make(parts) if hasattr(found, "_make") else found(parts)


def _mapping(shape: Mapping[str, Any], parts: dict[Any, Any]) -> Any:
    found = _class(shape, Mapping)
    if found is None:
        return parts
    if hasattr(found, "to_tuple"):  # an output of transformers is both a dataclass and a mapping
        return found(**parts)
    if issubclass(found, Mapping):
        return found(None, parts) if issubclass(found, defaultdict) else found(parts)
    made = object.__new__(found)
    for name, part in parts.items():
        object.__setattr__(made, name, part)  # it may be frozen
    return made


def _class(shape: Mapping[str, Any], kind: Any) -> Any:
    """The class of a container that is not a plain one: only of the right kind, and only if the program imported it."""
    if (said := shape.get("class")) is None:
        return None
    module, _, path = str(said).partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and (issubclass(found, kind) or (kind is Mapping and dataclasses.is_dataclass(found))):
        return found
    raise CaptureError(f"one of its arguments was a {printable(path)}, and there is no such class to make one of")


def rebuild(dump: Dump, recorded: RecordedCall, model: nn.Module, layer: str) -> RebuiltCall:
    """Rebuild the arguments of a call for a layer of a model; raises ``CaptureError`` if that is impossible."""
    module = model.get_submodule(_path(layer))
    entries: dict[str, Entry] = {}
    held: dict[str, Held] = {}
    for port, shape in leaves(recorded.shape):
        if "tensor" in shape:
            entries |= {} if "is" in shape else {str(shape["tensor"]): _written(recorded, str(shape["tensor"]))}
        elif "object" in shape:
            held[port] = _cached(dump, recorded, model, layer, port, shape)
            entries |= {entry.name: entry for states in held[port].values() for entry in states.values()}
    device, wanted = compute_device(module) or first_device(model), _Types(dump, model)
    devices = _cache_devices(held, model, device)
    tensors = {
        name: to_device(wanted.cast(to_tensor(entry.read())), devices.get(name, device))
        for name, entry in entries.items()
    }
    config = getattr(module, "config", getattr(model, "config", None))
    return RebuiltCall(tensors, recorded.shape, held, config, device, wanted.notes())


def _cache_devices(held: Mapping[str, Held], model: nn.Module, device: torch.device) -> dict[str, torch.device]:
    """The device for each entry of a cache: that of the module that reads it."""
    readers = {
        number: compute_device(module) or device
        for module in model.modules()
        if (number := cache_layer_of(module)) is not None
    }
    return {
        entry.name: readers.get(number, device)
        for cache in held.values()
        for number, states in cache.items()
        for entry in states.values()
    }


def _path(layer: str) -> str:
    return layer.removeprefix(ROOT).removeprefix(".")


def _written(recorded: RecordedCall, port: str) -> Entry:
    if port not in recorded.inputs:
        raise CaptureError(f"{printable(port)} was not written")
    return recorded.inputs[port]


class _Types:
    """Casts inputs for a model of another dtype: tensors of the dtype of the dump's model get the dtype of this one."""

    def __init__(self, dump: Dump, model: nn.Module) -> None:
        self.before, self.now = str(dump.facts.get("dtype")), run_facts.dtype_of(model)
        self.is_used = False

    def cast(self, tensor: Tensor) -> Tensor:
        if self.before == self.now or not tensor.is_floating_point() or str(tensor.dtype) != f"torch.{self.before}":
            return tensor
        self.is_used = True
        return tensor.to(getattr(torch, self.now))

    def notes(self) -> list[str]:
        return [f"its {self.before} inputs are given as {self.now}, the type of this model"] if self.is_used else []


# --- caches


def _cached(
    dump: Dump, recorded: RecordedCall, model: nn.Module, layer: str, port: str, shape: Mapping[str, Any]
) -> Held:
    """The content of a cache, from the modules that read it; the first to read a layer saw what the call was given."""
    kind = str(shape["object"])
    if not kind.endswith("Cache"):
        raise CaptureError(f"{port} was a {printable(kind)}, which a dump does not hold")
    if not _is_filled(shape, recorded.call):
        return {}
    if _path(layer) == "":
        return _whole(dump, recorded, port)
    found: Held = {}
    for name, module in model.get_submodule(_path(layer)).named_modules():
        if (number := cache_layer_of(module)) is not None:
            call = recorded.call._replace(layer=".".join(filter(None, (recorded.call.layer, name))))
            for part, entry in _read_by(dump, call).items():
                found.setdefault(number, {}).setdefault(part, entry)
    return found


def _is_filled(shape: Mapping[str, Any], call: Call) -> bool:
    return bool(shape.get("filled", call.step > 0))  # older dumps do not say


def _whole(dump: Dump, recorded: RecordedCall, port: str) -> Held:
    """The content of the whole model's own cache, of which every layer was written."""
    if any("left out" in str(note) for note in _notes(dump)):
        raise CaptureError("what its cache held may not be there: tensors were left out of the dump")
    found: Held = {}
    for entry in recorded.inputs.values():
        number, _, name = entry.port.removeprefix(f"{port}_").partition("_")
        if entry.port.startswith(f"{port}_") and number.isdecimal() and name in caches.NAMES:
            found.setdefault(int(number), {})[name] = entry
    return found


def _notes(dump: Dump) -> list[Any]:
    notes: Any = dump.facts.get("notes")
    return notes if isinstance(notes, list) else []


def _read_by(dump: Dump, call: Call) -> dict[str, Entry]:
    """What a module found in the layer of a cache that it reads."""
    shape = shape_of(dump, call)
    if shape is None:
        raise CaptureError(f"what its cache held is not there: {printable(call.layer)} was captured without its inputs")
    ports = [(port, one) for port, one in leaves(shape) if str(one.get("object")).endswith("Cache")]
    entries = {e.port: e for e in dump.entries if (e.layer, e.step, e.call) == (call.layer, call.step, call.call)}
    found = {
        name: entries[f"{port}_{name}"] for port, _ in ports for name in caches.NAMES if f"{port}_{name}" in entries
    }
    if not found and any(_is_filled(one, call) for _, one in ports):
        raise CaptureError(f"what its cache held is not there: of {printable(call.layer)} it was not written")
    return found


def shape_of(dump: Dump, call: Call) -> Any:
    """The structure of a call's arguments, if the dump has it."""
    calls: Any = dump.facts.get("calls") or {}
    number = calls.get("of", {}).get(f"{call.layer}#{call.step}#{call.call}")
    return calls["kinds"][number] if isinstance(number, int) else None
