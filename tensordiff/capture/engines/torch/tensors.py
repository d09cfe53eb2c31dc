"""Tensors in the arguments and results of a module: finding and naming them, copying them, converting them to arrays.

A tensor is copied when a hook sees it, because the model may overwrite it right afterwards: see ``writing``. Ports are
named as MAX's print hook names them: ``input_0``, ``input_hidden_states``, ``output_1_0``.
"""

from __future__ import annotations

import copy as copying
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tensordiff.capture.engines.torch import caches
from tensordiff.dump.dtypes import DTYPES, Array
from tensordiff.dump.model import Spec
from tensordiff.errors import CaptureError, printable

Shape = Any
"""The structure of a value, as JSON: see ``TensorTree``."""
_AS_BITS = {1: torch.uint8, 2: torch.int16}
_DEEPEST = 8
_SCALARS = (bool, int, float, str)
_PLAIN = (Tensor, torch.nn.Parameter)
_WRITTEN: dict[Any, str] = {
    dtype: name for name in DTYPES if isinstance(dtype := getattr(torch, name, None), torch.dtype)
}
"""The name that dumps use for each of torch's types."""
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_NUMPY_S = {dtype for dtype, name in _WRITTEN.items() if hasattr(np, name)}


class TensorTree(NamedTuple):
    """The tensors of a value, and the structure they were in."""

    tensors: dict[str, Tensor]
    shape: Shape
    """``{"tensor": port}``, ``{"tuple": […]}``, ``{"list": […]}``, ``{"dict": {…}}``, ``{"dtype": name}``, ``{"device":
    name}``, ``{"object": class}`` or a plain value. A ``tensor`` may also have ``is``, the earlier port of the same
    tensor, or its ``strides``. The containers may have ``class``, if it is not a plain one, and ``keys``, if these are
    not strings; a cache has ``filled``.
    """


def find(value: Any, port: str, *, cache_layer: int | None = None, whole_caches: bool = False) -> TensorTree:
    """Find the tensors of a value. Only one layer of a cache is taken, unless ``whole_caches``."""
    walk = _Walk({}, cache_layer, whole_caches, ())
    return TensorTree(walk.tensors, walk.shape(value, port, 0))


def find_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], *, cache_layer: int | None = None, whole_caches: bool = False
) -> TensorTree:
    """Find the tensors in a module's arguments."""
    walk = _Walk({}, cache_layer, whole_caches, (*args, *kwargs.values()))
    shape = {
        "args": [walk.shape(value, f"input_{k}", 0) for k, value in enumerate(args)],
        "kwargs": {key: walk.shape(value, f"input_{key}", 0) for key, value in kwargs.items()},
    }
    return TensorTree(walk.tensors, shape)


def _looks_elsewhere(values: tuple[Any, ...]) -> bool:
    """Whether a module is given a second sequence. It is an encoder's, and its part of the cache matters too."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    return len([tensor for tensor in tensors if tensor.dim() == 3 and tensor.is_floating_point()]) > 1


class _Walk(NamedTuple):
    """One walk through a value."""

    tensors: dict[str, Tensor]
    cache_layer: int | None
    whole_caches: bool
    beside: tuple[Any, ...]
    """The module's arguments, including a cache."""

    def shape(self, value: Any, port: str, depth: int) -> Shape:
        if isinstance(value, Tensor):
            port = self._free(port) if port in self.tensors else port
            shape = self._of_tensor(value, port)
            self.tensors[port] = value
            return shape
        if value is None or isinstance(value, _SCALARS):
            return value
        if caches.is_cache(value):
            self.tensors.update(self._of_cache(value, port))
            return {"object": type(value).__name__, "filled": caches.is_filled(value, self.cache_layer)}
        if isinstance(value, torch.dtype | torch.device):
            return {type(value).__name__: str(value).removeprefix("torch.")}
        if depth == _DEEPEST or (parts := _parts(value)) is None:
            return {"object": type(value).__name__}
        return self._together(value, {key: self.shape(part, f"{port}_{key}", depth + 1) for key, part in parts})

    def _free(self, port: str) -> str:
        """Another name for a port that is taken: ``{"a_b": x, "a": {"b": y}}`` has two ports of the same name."""
        return next(name for k in count(2) if (name := f"{port}_{k}") not in self.tensors)

    def _of_tensor(self, value: Tensor, port: str) -> Shape:
        for before, tensor in self.tensors.items():
            if tensor is value:
                return {"tensor": port, "is": before}
        if value.layout is not torch.strided or value.is_nested or value.is_contiguous():
            return {"tensor": port}
        return {"tensor": port, "strides": list(value.stride())}

    @staticmethod
    def _together(value: Any, shapes: dict[str, Shape]) -> Shape:
        kind = "tuple" if isinstance(value, tuple) else "list" if isinstance(value, list) else "dict"
        shape: dict[str, Shape] = {kind: shapes if kind == "dict" else list(shapes.values())}
        if type(value) not in (tuple, list, dict):
            shape["class"] = f"{type(value).__module__}:{type(value).__qualname__}"
        if isinstance(value, Mapping) and not all(type(key) is str for key in value):
            shape["keys"] = list(value)
        return shape

    def _of_cache(self, cache: Any, port: str) -> Iterator[tuple[str, Tensor]]:
        if self.whole_caches:
            for number in caches.layers_of(cache):
                yield from ((f"{port}_{number}_{name}", held) for name, held in caches.states(cache, number).items())
        elif self.cache_layer is not None:
            for name, held in caches.states(cache, self.cache_layer).items():
                if not name.startswith(caches.CROSS) or _looks_elsewhere(self.beside):
                    yield f"{port}_{name}", held


def swap(value: Any, port: str, put: Mapping[str, Tensor], *, cache_layer: int | None = None) -> Any:
    """The same value with other tensors at some ports; the value itself if nothing in it changes."""
    if isinstance(value, Tensor):
        return put.get(port, value)
    if caches.is_cache(value):
        if cache_layer is not None:
            named = {name: f"{port}_{name}" for name in caches.NAMES}
            caches.fill(value, cache_layer, {name: put[at] for name, at in named.items() if at in put})
        return value
    if value is None or isinstance(value, _SCALARS) or (parts := _parts(value)) is None:
        return value
    before = dict(parts)
    after = {key: swap(part, f"{port}_{key}", put, cache_layer=cache_layer) for key, part in before.items()}
    return value if all(after[key] is before[key] for key in before) else _remade(value, after)


def _remade(value: Any, parts: dict[str, Any]) -> Any:
    """A value of the same kind with other parts; everything else in it stays as it is."""
    if isinstance(value, tuple):
        return type(value)(*parts.values()) if hasattr(value, "_fields") else type(value)(parts.values())
    made = copying.copy(value)
    if isinstance(value, list):
        made[:] = parts.values()
    elif isinstance(value, Mapping):
        for key in value:
            made[key] = parts[str(key)]
    else:
        for name, part in parts.items():
            object.__setattr__(made, name, part)  # it may be frozen
    return made


def swap_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], put: Mapping[str, Tensor], *, cache_layer: int | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with other tensors at some ports."""
    return (
        tuple(swap(value, f"input_{k}", put, cache_layer=cache_layer) for k, value in enumerate(args)),
        {key: swap(value, f"input_{key}", put, cache_layer=cache_layer) for key, value in kwargs.items()},
    )


def _parts(value: Any) -> Iterator[tuple[str, Any]] | None:
    """The named parts of a container; None if the value is not a container that can be searched."""
    if isinstance(value, Mapping):
        return ((str(key), part) for key, part in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return zip(value._fields, value, strict=True)
    if isinstance(value, tuple | list):
        return ((str(k), part) for k, part in enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    return None


def why_not_copied(tensor: Tensor) -> str | None:
    """Why a tensor's values cannot be copied, or None."""
    if _is_wrapped(tensor):
        return "it stands for many within torch.vmap or torch.func, and has no values of its own"
    if tensor.dtype in _WRITTEN and type(tensor) in _PLAIN and tensor.layout == torch.strided and not tensor.is_meta:
        return None  # the common case, quickly
    if tensor.is_meta:
        return "it lies on the meta device and has no values"
    if tensor.is_quantized or tensor.is_nested or tensor.layout != torch.strided:
        return f"it is {'quantized' if tensor.is_quantized else 'nested or sparse'}, and has no plain values"
    if dtype_name(tensor.dtype) not in DTYPES:
        return f"its type {dtype_name(tensor.dtype)} is not written"
    return None


def spec_of(tensor: Tensor) -> Spec | None:
    """Shape and type as dumps have them; None if dumps have no such type."""
    if tensor.is_nested or tensor.dtype not in _WRITTEN:
        return None
    return Spec(tuple(tensor.shape), DTYPES[_WRITTEN[tensor.dtype]])


def resolved(tensor: Tensor) -> Tensor:
    """A tensor as plain values: without a gradient, with a pending conjugation or negation applied, with shards
    gathered.
    """
    if tensor.requires_grad:
        tensor = tensor.detach()
    if type(tensor) not in _PLAIN:
        tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.as_subclass(Tensor)
    if tensor.is_conj():
        tensor = tensor.resolve_conj()
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def dtype_name(dtype: torch.dtype) -> str:
    """A torch type by the name that dumps use."""
    return _WRITTEN.get(dtype) or str(dtype).removeprefix("torch.")


def to_array(tensor: Tensor) -> Array:
    """A tensor as a contiguous array, including types that numpy lacks.

    Waits for a device; copies only if necessary.
    """
    return as_array(resolved(tensor).cpu().contiguous())


def as_array(tensor: Tensor) -> Array:
    """A tensor on the host as an array of any layout, without a copy."""
    if tensor.dtype in _NUMPY_S:
        found: Array = tensor.numpy()
        return found
    name = dtype_name(tensor.dtype)
    if name not in DTYPES:
        raise CaptureError(f"tensors of type {name} are not written")
    # numpy has no such type, so the bits are taken and given the type.
    raw = tensor.view(_AS_BITS[tensor.element_size()]).numpy()
    return np.asarray(raw.view(DTYPES[name]))


def to_tensor(array: Array) -> Tensor:
    """An array as a tensor of its own, including types that numpy lacks."""
    name = array.dtype.name
    plain = np.array(array, order="C")
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CaptureError(f"torch has no type {printable(name)}")
    if hasattr(np, name) or name == "bool":
        return torch.from_numpy(plain)
    bits = plain.reshape(-1).view(np.dtype(f"int{8 * plain.itemsize}") if plain.itemsize > 1 else np.uint8)
    return torch.from_numpy(bits).view(dtype).reshape(plain.shape)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a tensor to a device. Apple's has no float64, for which torch raises, so float32 is used there.

    This follows torch's documentation of mps; the tests run on machines without such a device.
    """
    if device.type == "mps" and tensor.dtype is torch.float64:
        tensor = tensor.to(torch.float32)
    return tensor.to(device)


def with_strides(values: Tensor, strides: Sequence[int]) -> Tensor:
    """A copy with the strides of another tensor of this shape: with other strides, kernels may add up in another order.

    If elements of the other tensor share memory and these values differ there, the copy is contiguous.
    """
    shared = [axis for axis, stride in enumerate(strides) if stride == 0]
    narrow = values
    for axis in shared:
        narrow = narrow.narrow(axis, 0, min(1, values.shape[axis]))
    if _overlap(narrow.shape, strides) or (shared and not _same_bits(narrow.expand(values.shape), values)):
        return values.clone(memory_format=torch.contiguous_format)
    held = torch.empty_strided(narrow.shape, strides, dtype=values.dtype, device=values.device)
    return held.copy_(narrow).expand(values.shape)


def _overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements may share memory."""
    end = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if stride < end:
            return True
        end += (size - 1) * stride
    return False


def _same_bits(one: Tensor, other: Tensor) -> bool:
    ours, theirs = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return bool(torch.equal(ours, theirs))
