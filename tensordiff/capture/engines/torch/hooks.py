"""Hooks on every module of a model, which record its inputs and outputs.

Inputs are recorded before the module runs and outputs after it, so entries are in execution order, and a model that
raises leaves the inputs of the layer that raised. Calls are counted by layer and step. A module that several others
share gets the name that the calling one has for it. A ``Sink`` takes the tensors, a ``Patch`` replaces them. Hooks are
removed however the run ends. A model may run in several threads at once: each has its own stack of running calls.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from tensordiff.capture.engines.torch.facts import CodeLocation
from tensordiff.capture.engines.torch.tensors import Shape, TensorTree, find, find_arguments
from tensordiff.capture.process.layers import ROOT, Selection, entry_name
from tensordiff.dump.model import CallKey, EntryKey

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_HOLDERS = nn.ModuleList | nn.ModuleDict
"""Containers of modules, which are never called."""
_ENCODER = json.JSONEncoder(allow_nan=False)  # created once: creating one costs more than using it
_MOST_UNSORTED = 4096  # how many calls are collected before their shapes are deduplicated


def layer_names(model: nn.Module) -> list[str]:
    """The names of a model's layers; a shared module has one for each module that holds it."""
    return [name for name, _ in model.named_modules(prefix=ROOT, remove_duplicate=False)]


def _names_by_caller(model: nn.Module) -> dict[int, dict[str, str]]:
    """For modules that several others share, by id: the name that each holder has for it, by the holder's name."""
    found: dict[int, dict[str, str]] = {}
    modules = dict(model.named_modules(prefix=ROOT, remove_duplicate=False))
    for name, module in modules.items():
        if isinstance(module, _HOLDERS):
            continue
        found.setdefault(id(module), {})[_caller(modules, name)] = name
    return {module: names for module, names in found.items() if len(names) > 1}


def _caller(modules: Mapping[str, nn.Module], name: str) -> str:
    """The module that calls another: its parent, skipping containers."""
    parent = name.rpartition(".")[0]
    while parent and isinstance(modules[parent], _HOLDERS):
        parent = parent.rpartition(".")[0]
    return parent


def is_recomputing() -> bool:
    """Whether a backward is running: modules that are called meanwhile recompute what a checkpoint did not keep."""
    return bool(torch._C._current_graph_task_id() != -1)


def is_leaf(module: nn.Module) -> bool:
    """Whether a module contains no others."""
    return next(module.children(), None) is None


def cache_layer_of(module: nn.Module | None) -> int | None:
    """The layer of a cache that a module reads, if the module says so."""
    number = getattr(module, "layer_idx", None)
    return number if isinstance(number, int) else None


class Call(NamedTuple):
    """One call of one module."""

    layer: str
    module: nn.Module | None
    step: int
    call: int

    @property
    def cache_layer(self) -> int | None:
        """The layer of a cache that the module reads, if the module says so."""
        return cache_layer_of(self.module)

    @property
    def key(self) -> CallKey:
        """Identifies this call."""
        return CallKey(self.layer, self.step, self.call)

    def entry_name(self, port: str) -> str:
        """The name of one of this call's tensors in a dump."""
        return entry_name(self.layer, self.call, port)


class CallTensor(NamedTuple):
    """One tensor of one call."""

    call: Call
    port: str
    tensor: Tensor
    injected: tuple[str, ...] | None = None
    about: str | None = None
    """What made it, if not a module: the name of an operation or a function."""
    place: CodeLocation | None = None
    """Where that operation or function was called."""

    @property
    def key(self) -> EntryKey:
        """The key of its entry in a dump."""
        return EntryKey(self.call.entry_name(self.port), self.call.step, self.call.call)


class Sink(Protocol):
    """Takes the tensors."""

    def see(self, item: CallTensor) -> None:
        """Take a tensor; it may be overwritten as soon as this returns."""


class Patch(Protocol):
    """Replaces tensors of a run."""

    def arguments(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """What the module is to be called with."""

    def output(self, call: Call, output: Any) -> Any:
        """What the module is to return."""

    def names(self, call: Call, port: str) -> tuple[str, ...] | None:
        """The entries of the reference that a tensor holds, or that its call was given."""


class _Running(NamedTuple):
    call: Call
    handled: BaseException | None
    """The exception that was being handled when the call began, in some ``except`` around it."""


class _Thread(threading.local):
    """The running calls of one thread, the innermost last, and the innermost layer that an exception came out of."""

    def __init__(self) -> None:
        self.running: list[_Running] = []
        self.raised_in: str | None = None


@dataclass
class Recorder:
    """Hooks on a model, from ``attach`` to ``detach``."""

    sink: Sink
    selection: Selection = field(default_factory=Selection)
    patch: Patch | None = None
    step: int = 0
    counts_steps: bool = False
    """Whether every further call of the whole model is a step of its own."""
    finished: Callable[[str], None] | None = None
    """Called with the name of each layer after it ran."""
    fired: set[str] = field(default_factory=set)
    hooked: set[str] = field(default_factory=set)
    scripted: int = 0
    """The number of TorchScript modules, which take no hooks."""
    nondeterministic: set[str] = field(default_factory=set)
    """Operations without a deterministic form, if one was requested."""

    def __post_init__(self) -> None:
        self._handles: list[Any] = []
        self._counts: dict[tuple[str, int], count[int]] = {}
        self._thread = _Thread()
        self._stepping = threading.Lock()
        self._root: nn.Module | None = None
        self._kinds: list[Shape] = []
        self._numbers: dict[str, int] = {}
        """The index of each kind of call, by its JSON."""
        self._kind_of: dict[str, int] = {}
        self._made: list[tuple[Call, Shape]] = []

    def attach(self, model: nn.Module) -> None:
        """Hook every module of a model, and unhook the previous one."""
        self.detach()
        self._root = model
        shared = _names_by_caller(model)
        for name, module in model.named_modules():
            if isinstance(module, _HOLDERS):
                continue
            if isinstance(module, torch.jit.ScriptModule):
                self.scripted += 1
                continue  # they take no such hooks
            layer = f"{ROOT}.{name}" if name else ROOT
            names = shared.get(id(module), {})
            takes = {one: self.selection.takes_layer(one, is_leaf=is_leaf(module)) for one in (layer, *names.values())}
            self.hooked.add(layer)
            before, after = self._before(layer, names, module, takes), self._after(layer, module, takes)
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            self._handles.append(module.register_forward_hook(after, with_kwargs=True, always_call=True))

    def detach(self) -> None:
        """Remove every hook."""
        while self._handles:
            self._handles.pop().remove()
        self._thread = _Thread()

    @property
    def running(self) -> Call | None:
        """The innermost running call."""
        running = self._thread.running
        return running[-1].call if running else None

    @property
    def raised_in(self) -> str | None:
        """The innermost layer that an exception came out of, until another layer is called."""
        return self._thread.raised_in

    def call_of(self, layer: str) -> Call:
        """The running call of a layer."""
        found: Call = next(one.call for one in reversed(self._thread.running) if one.call.layer == layer)
        return found

    @property
    def root(self) -> nn.Module | None:
        """The hooked model."""
        return self._root

    @property
    def silent(self) -> set[str]:
        """Layers whose hooks never fired."""
        return self.hooked - self.fired

    def calls(self) -> dict[str, Any]:
        """How modules were called, each kind of call once, so that a replay can call them the same way."""
        self._sort_kinds()
        return {"kinds": self._kinds, "of": self._kind_of}

    def tap(self, name: str, value: Any) -> None:
        """Record a value that the user named within a forward; its name begins with the running module's."""
        if is_recomputing():
            return
        running = self.running
        call = self._count(f"{running.layer}/{name}" if running else name, None)
        with _disable_current_modes():  # looking at the value must not count as an operation of the model
            for port, tensor in find(value, "output").tensors.items():
                self.sink.see(CallTensor(call, port, tensor))

    # --- within hooks

    def _before(
        self, layer: str, names: Mapping[str, str], module: nn.Module, takes: Mapping[str, bool]
    ) -> Callable[..., Arguments | None]:
        """The hook that runs before a module. ``names`` are a shared module's names, by the module that calls it."""
        is_root, cache_layer = module is self._root, cache_layer_of(module)

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
            if is_recomputing():
                return None
            call = self._enter(self._name_for_caller(layer, names) if names else layer, module)
            if self.patch is not None:
                args, kwargs = self.patch.arguments(call, args, kwargs)
            self._thread.running.append(_Running(call, sys.exc_info()[1]))
            if takes[call.layer] and self.selection.inputs:
                self._see_inputs(call, find_arguments(args, kwargs, cache_layer=cache_layer, whole_caches=is_root))
            return None if self.patch is None else (args, kwargs)

        return hook

    def _after(self, layer: str, module: nn.Module, takes: Mapping[str, bool]) -> Callable[..., Any]:
        is_root = module is self._root

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:  # noqa: ARG001
            left = self._leave(module)
            if left is None:
                return None
            call = left.call
            if self.patch is not None:
                output = self.patch.output(call, output)
            self.fired.add(layer)
            if self.finished is not None:
                self.finished(call.layer)
            if takes[call.layer]:
                for port, tensor in find(output, "output", whole_caches=is_root).tensors.items():
                    self.sink.see(CallTensor(call, port, tensor, self._injected(call, port)))
            return None if self.patch is None else output

        return hook

    def _name_for_caller(self, layer: str, names: Mapping[str, str]) -> str:
        """The name that the innermost running holder of a shared module has for it; else its first name."""
        return next((names[one.call.layer] for one in reversed(self._thread.running) if one.call.layer in names), layer)

    def _enter(self, layer: str, module: nn.Module) -> Call:
        if self.counts_steps and module is self._root:
            with self._stepping:
                self.step += (ROOT, self.step) in self._counts
                return self._count(layer, module, self.step)
        return self._count(layer, module)

    def _count(self, layer: str, module: nn.Module | None, step: int | None = None) -> Call:
        """Count one more call of a layer, in the step of its caller: another thread may have begun the next step
        already.
        """
        thread = self._thread
        thread.raised_in = None
        if step is None:
            step = thread.running[-1].call.step if thread.running else self.step
        place = layer, step
        numbers = self._counts.get(place) or self._counts.setdefault(place, count(1))
        return Call(layer, module, step, next(numbers))

    def _leave(self, module: nn.Module) -> _Running | None:
        """The call that a module ends; None if the module raised, or began before it was hooked."""
        thread = self._thread
        if not any(one.call.module is module for one in reversed(thread.running)):
            return None
        while (ended := thread.running.pop()).call.module is not module:
            pass  # left by something that hooks do not see, such as Ctrl-C
        if sys.exc_info()[1] is ended.handled:
            return ended
        thread.raised_in = thread.raised_in or ended.call.layer
        return None

    def _injected(self, call: Call, port: str) -> tuple[str, ...] | None:
        return None if self.patch is None else self.patch.names(call, port)

    def _see_inputs(self, call: Call, found: TensorTree) -> None:
        self._made.append((call, found.shape))
        if len(self._made) >= _MOST_UNSORTED:
            self._sort_kinds()
        for port, tensor in found.tensors.items():
            self.sink.see(CallTensor(call, port, tensor, self._injected(call, port)))

    def _sort_kinds(self) -> None:
        """Keep each kind of call once. This is done for many calls at a time, because the model waits for its hooks."""
        made, self._made = self._made, []
        for call, shape in made:
            with suppress(TypeError, ValueError):  # JSON cannot hold a value; this call cannot be replayed then
                number = self._numbers.setdefault(_ENCODER.encode(shape), len(self._kinds))
                if number == len(self._kinds):
                    self._kinds.append(shape)
                self._kind_of[f"{call.layer}#{call.step}#{call.call}"] = number
