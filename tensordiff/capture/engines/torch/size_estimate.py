"""Estimates a dump's size before anything is run, from the modules of a model and its first inputs.

Nothing is run: a forward may print, count, sleep or keep its inputs, and must not be called twice. A tensor is seen as
features at a number of positions: tokens, samples, pixels. Linear layers change the features, convolutions and pooling
also the positions, and most other modules neither. Modules are mostly defined in the order they run. If a module takes
a different number of features than the previous one gives, it is assumed to read the last tensor with that number.
Eager attention also returns heads times tokens squared. The estimate is right within a factor of about three, which is
enough to refuse a capture in time; it is None if no estimate is possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd, _AvgPoolNd, _MaxPoolNd

from tensordiff.capture.engines.torch.facts import dtype_of
from tensordiff.capture.engines.torch.hooks import is_leaf
from tensordiff.capture.engines.torch.program import Step
from tensordiff.capture.engines.torch.tensors import find_arguments
from tensordiff.capture.process.layers import ROOT, Selection

_POOLS = (_AvgPoolNd, _MaxPoolNd)
_ADAPTIVE = (_AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd)
_HOLDERS = (nn.ModuleList, nn.ModuleDict)  # never called


class UnknownSize(Exception):
    """The size of a module's input cannot be told."""


class Flow(NamedTuple):
    """The size of what flows between two modules."""

    batch: int
    features: int
    places: tuple[int, ...]

    @property
    def extent(self) -> int:
        """The number of positions of one item of the batch."""
        return math.prod(self.places)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.batch * self.features * self.extent


class LayerFlow(NamedTuple):
    """A module, with the sizes of its input and output."""

    name: str
    module: nn.Module
    takes: Flow
    gives: Flow


def layer_flows(model: nn.Module, inputs: Sequence[Tensor]) -> Iterator[LayerFlow]:
    """Every module that is called, with the sizes of its input and output; raises ``UnknownSize`` if they cannot be
    told.
    """
    largest = max(inputs, key=lambda tensor: tensor.numel(), default=torch.empty(1))
    walk = _Walk(inputs)
    walk.through("", model, flow_of(largest))
    return iter(walk.found.values())


def flow_of(tensor: Tensor) -> Flow:
    """The size of an input tensor, as a model sees it."""
    shape = tuple(tensor.shape) or (1,)
    if not tensor.is_floating_point():
        return Flow(shape[0], 1, (math.prod(shape[1:]),))
    if len(shape) >= 4:
        return Flow(shape[0], shape[1], shape[2:])
    return Flow(shape[0] if len(shape) > 1 else 1, shape[-1], shape[1:-1])


class _Walk:
    """One walk through a model."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.inputs = inputs
        self.found: dict[nn.Module, LayerFlow] = {}
        self._last: dict[int, Flow] = {}
        """The last flow with each number of features."""

    def through(self, name: str, module: nn.Module, flow: Flow) -> Flow:
        """The output of a module."""
        if isinstance(module, torch.jit.ScriptModule):
            return flow
        takes, gives = self._of_torch_module(name, module, flow) or self._of_parts(name, module, _merged(module, flow))
        self._last[gives.features] = gives
        if not isinstance(module, _HOLDERS):
            self.found.setdefault(module, LayerFlow(name, module, takes, gives))
        return gives

    def _of_parts(self, name: str, module: nn.Module, flow: Flow) -> tuple[Flow, Flow]:
        """The input of a module's first part, and the output of its last one."""
        takes = None
        for child, part in module.named_children():
            gives = self.through(f"{name}.{child}" if name else child, part, flow)
            takes, flow = takes or (self.found[part].takes if part in self.found else flow), gives
        takes = takes or flow
        # Attention returns something for every position, even if it looks at fewer of them.
        return takes, flow._replace(places=takes.places) if "attention" in type(module).__name__.lower() else flow

    def _of_torch_module(self, name: str, module: nn.Module, flow: Flow) -> tuple[Flow, Flow] | None:
        """The input and output of a module of torch itself; None if they depend on its parts."""
        if isinstance(module, _ConvNd):
            flow = self._into(module, flow)
            return flow, flow._replace(features=module.out_channels, places=_convolved(module, flow.places))
        if (sizes := _matrix_sizes(module)) is not None:
            flow = self._into_linear(sizes[0], flow)
            return flow, flow._replace(features=sizes[1])
        if (features := _normalized(module)) is not None:
            return (self._with(features, flow),) * 2
        if (features := _embedded(module)) is not None:
            flow = flow if _is_of_positions(name, module) else self._ids(flow)
            return flow._replace(features=1), flow._replace(features=features)
        return (flow, _reshaped(module, flow)) if next(module.children(), None) is None else None

    def _ids(self, flow: Flow) -> Flow:
        ids = [tensor for tensor in self.inputs if not tensor.is_floating_point()]
        return max(map(flow_of, ids), key=lambda one: one.size, default=flow)

    def _with(self, features: int, flow: Flow) -> Flow:
        """The last flow with so many features."""
        if features in (flow.features, 0):
            return flow
        return self._last.get(features, flow._replace(features=features))

    def _into_linear(self, features: int, flow: Flow) -> Flow:
        """The input of a linear layer, which may be flattened."""
        is_flat = features == flow.features * flow.extent != flow.features
        return Flow(flow.batch, features, ()) if is_flat else self._with(features, flow)

    def _into(self, conv: Any, flow: Flow) -> Flow:
        """The input of a convolution."""
        features, axes = conv.in_channels, len(conv.kernel_size)
        given = [one for tensor in self.inputs for one in _as_conv_inputs(tensor, axes)]
        for one in (flow, self._last.get(features, flow), *given):
            if one.features == features and len(one.places) == axes:
                return one
        if len(flow.places) == axes:
            return flow._replace(features=features)
        return self._patches(conv)

    def _patches(self, conv: Any) -> Flow:
        """The input of a convolution over patches that were cut out before, each by itself."""
        size = conv.in_channels * math.prod(conv.kernel_size)
        if conv.kernel_size != conv.stride:
            raise UnknownSize(type(conv).__name__)
        elements = max((tensor.numel() for tensor in self.inputs if tensor.is_floating_point()), default=0)
        return Flow(math.ceil(elements / size), conv.in_channels, conv.kernel_size)


def _as_conv_inputs(tensor: Tensor, axes: int) -> Iterator[Flow]:
    """The ways to pass an input to a convolution: without a batch, without channels, as a video."""
    shape = tuple(tensor.shape)
    if not tensor.is_floating_point():
        return
    if len(shape) == axes + 2:
        yield Flow(shape[0], shape[1], shape[2:])
    elif len(shape) == axes + 1:
        yield Flow(1, shape[0], shape[1:])
        yield Flow(shape[0], 1, shape[1:])
    elif len(shape) == axes + 3:
        yield Flow(shape[0] * shape[1], shape[2], shape[3:])


def _matrix_sizes(module: nn.Module) -> tuple[int, int] | None:
    """The features that a linear layer takes and gives: torch's, or one of vLLM's."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    takes, gives = (getattr(module, name, None) for name in ("input_size", "output_size"))
    return (takes, gives) if isinstance(takes, int) and isinstance(gives, int) else None


def _embedded(module: nn.Module) -> int | None:
    """The features that an embedding gives: torch's, or one of vLLM's, which has the same attributes."""
    rows, features = (getattr(module, name, None) for name in ("num_embeddings", "embedding_dim"))
    return features if isinstance(rows, int) and isinstance(features, int) else None


def _normalized(module: nn.Module) -> int | None:
    """The number of features that a norm takes, by its attributes."""
    found: int | None = None
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        found = module.normalized_shape[-1]
    elif isinstance(module, _BatchNorm):
        found = module.num_features
    elif isinstance(module, nn.GroupNorm):
        found = module.num_channels
    return found


def _merged(module: nn.Module, flow: Flow) -> Flow:
    """The flow after a module merges patches, as Swin does: fewer positions, each with the features of several."""
    linear = next((part for part in module.modules() if isinstance(part, nn.Linear)), None)
    if linear is None or "merg" not in type(module).__name__.lower():
        return flow
    times = max(linear.in_features // flow.features, 1)
    return Flow(flow.batch, flow.features * times, (flow.extent // times,))


def _is_of_positions(name: str, module: nn.Module) -> bool:
    return "pos" in name.rpartition(".")[2].lower() or "position" in type(module).__name__.lower()


def _reshaped(module: Any, flow: Flow) -> Flow:
    """The output of a module without parts."""
    axes = len(flow.places)
    if isinstance(module, _POOLS):
        return flow._replace(places=_pooled(module, flow.places))
    if isinstance(module, _ADAPTIVE):
        sizes = zip(_each(module.output_size, axes), flow.places, strict=True)
        return flow._replace(places=tuple(before if size is None else size for size, before in sizes))
    if isinstance(module, nn.Upsample):
        return flow._replace(places=_grown(module, flow.places))
    if isinstance(module, nn.Flatten):
        return Flow(flow.batch, flow.features * flow.extent, ())
    return flow


def _convolved(conv: Any, places: tuple[int, ...]) -> tuple[int, ...]:
    if conv.padding == "same":
        return places
    padding = (0,) * len(places) if conv.padding == "valid" else conv.padding
    if isinstance(conv, _ConvTransposeNd):
        return tuple(
            (n - 1) * s - 2 * p + d * (k - 1) + more + 1
            for n, s, p, d, k, more in zip(
                places, conv.stride, padding, conv.dilation, conv.kernel_size, conv.output_padding, strict=True
            )
        )
    return _strided(places, conv.kernel_size, conv.stride, padding, conv.dilation)


def _pooled(pool: Any, places: tuple[int, ...]) -> tuple[int, ...]:
    sizes = (pool.kernel_size, pool.stride, pool.padding, getattr(pool, "dilation", 1))
    return _strided(places, *(_each(size, len(places)) for size in sizes))


def _strided(places: Sequence[int], kernel: Any, stride: Any, padding: Any, dilation: Any) -> tuple[int, ...]:
    """torch's formula. A model on which it would fail is left to fail when it runs."""
    every = zip(places, kernel, stride, padding, dilation, strict=True)
    return tuple(max((n + 2 * p - d * (k - 1) - 1) // s + 1, 1) for n, k, s, p, d in every)


def _grown(upsample: nn.Upsample, places: tuple[int, ...]) -> tuple[int, ...]:
    if upsample.size is not None:
        return tuple(_each(upsample.size, len(places)))
    factors = _each(upsample.scale_factor, len(places))
    return tuple(int(n * factor) for n, factor in zip(places, factors, strict=True))


def _each(value: Any, axes: int) -> tuple[Any, ...]:
    """One value for each axis."""
    return tuple(value)[-axes:] if isinstance(value, tuple | list) and len(value) >= axes else (value,) * axes


def estimate(step: Step, steps: int, selection: Selection) -> int | None:
    """The bytes that a run will write, roughly; None if unknown."""
    inputs = list(find_arguments(step.args, step.kwargs).tensors.values())
    item: int = getattr(torch, dtype_of(step.model)).itemsize
    try:
        found = [
            one
            for one in layer_flows(step.model, inputs)
            if selection.takes_layer(_layer(one), is_leaf=is_leaf(one.module))
        ]
    except UnknownSize:
        return None
    return item * sum(int(_elements(one, selection) * _more(one, steps)) for one in found)


def _layer(one: LayerFlow) -> str:
    return f"{ROOT}.{one.name}" if one.name else ROOT


def _elements(one: LayerFlow, selection: Selection) -> int:
    """The elements of a module's output and, if they are written, of its inputs."""
    return one.gives.size + (one.takes.size if selection.inputs else 0) + _attention(one)


def _more(one: LayerFlow, steps: int) -> float:
    """A factor for further steps, which have one token each."""
    return 1 + (steps - 1) / max(one.gives.extent, 1)


def _attention(one: LayerFlow) -> int:
    """The elements of the attention weights that eager attention returns besides its output."""
    config: Any = getattr(one.module, "config", None)
    heads = getattr(config, "num_attention_heads", None)
    is_attention = "attention" in type(one.module).__name__.lower() and not any(
        "attention" in type(child).__name__.lower() for child in one.module.children()
    )
    eager = getattr(config, "_attn_implementation", None) == "eager"
    return one.gives.batch * heads * one.gives.extent**2 if is_attention and eager and isinstance(heads, int) else 0
