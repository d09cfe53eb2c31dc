"""Gradients of a torch run: inputs and outputs of the backward of every module call, and gradients of parameters.

The backward of a call is a layer of its own, named ``backward.`` and the module's name. Its input is the gradient of
the module's output (``input_grad_output``); its outputs are the gradients of the module's inputs
(``output_grad_input_0``) and parameters (``output_grad_weight``). Backward visits modules in reverse and ends a module
after its parts, so entries are in execution order and nest like those of the forward.

A tensor that several modules read has one gradient for all of them. So each module is given a view of its own, whose
gradient is only that module's share. A view changes no value and saves nothing for the backward.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tensordiff.capture.engines.torch.hooks import Arguments, Call, CallTensor, Recorder, is_leaf, is_recomputing
from tensordiff.capture.engines.torch.tensors import find, find_arguments, swap, swap_arguments
from tensordiff.capture.process.layers import ROOT
from tensordiff.dump.model import CallKey, EntryKey
from tensordiff.dump.names import BACKWARD
from tensordiff.errors import CaptureError, printable

_FEW = 3
_PORT_KINDS = ("input", "output")


@dataclass
class GradientRecorder:
    """Hooks for the gradients of a model, besides those of a ``Recorder``, from ``attach`` to ``detach``."""

    recorder: Recorder
    written: set[EntryKey] = field(default_factory=set)
    loss: str | None = None
    """What was differentiated, in words."""
    latest: str | None = None
    """The last gradient that was seen, to say where a backward failed."""

    def __post_init__(self) -> None:
        self._handles: list[Any] = []
        self._hooked: dict[int, weakref.ref[Tensor]] = {}
        self._awaited: dict[EntryKey, CallKey] = {}
        """Expected gradients of inputs, and the calls whose backward produces them."""
        self._given: set[CallKey] = set()
        """Calls whose backward was given a gradient."""
        self._parameters: list[str] = []
        self._reached: set[str] = set()
        """Parameters that got a gradient."""
        self._without_graph: defaultdict[nn.Module, list[Call]] = defaultdict(list)
        """Calls that ran without a graph: a reentrant checkpoint runs them again, the last first, with one."""
        self._running: list[tuple[nn.Module, Call]] = []
        self._repeated = self._frozen = 0
        self._model: nn.Module | None = None

    def attach(self, model: nn.Module) -> None:
        """Hook every module that the recorder has hooked, and every parameter."""
        self.detach()
        self._model = model
        for module in model.modules():
            if isinstance(module, nn.ModuleList | nn.ModuleDict | torch.jit.ScriptModule):
                continue
            self._handles.append(module.register_forward_pre_hook(self._before, with_kwargs=True))
            # Before the recorder's own hook, which forgets the call.
            self._handles.append(module.register_forward_hook(self._after, with_kwargs=True, prepend=True))
        self._hook_parameters(model)

    def detach(self) -> None:
        """Remove every hook."""
        while self._handles:
            self._handles.pop().remove()

    def notes(self) -> list[str]:
        """Notes about gradients that are missing though one might look for them."""
        notes = []
        if self._frozen:
            notes.append(f"{self._frozen} parameters are frozen (requires_grad=False) and have no gradient")
        if unreached := [name for name in self._parameters if name not in self._reached]:
            notes.append(
                f"{len(unreached)} parameters have no gradient, the loss not depending on them: {_some(unreached)}"
            )
        if unseen := self._unseen_inputs():
            why = "their modules do not use them, or change them in place"
            notes.append(f"the gradients of {len(unseen)} inputs were not seen ({_some(unseen)}): {why}")
        if self._repeated:
            notes.append(f"{self._repeated} gradients of a second backward of the same forward are not written")
        return notes

    def _unseen_inputs(self) -> list[str]:
        """Inputs without a gradient, of calls whose output has one."""
        return [key.name for key, call in self._awaited.items() if call in self._given and key not in self.written]

    # --- within hooks

    def _call(self, module: nn.Module) -> Call | None:
        """The call of a module that begins now; if a checkpoint runs it again, the original call."""
        if is_recomputing():
            calls = self._without_graph[module]
            return calls.pop() if calls else None
        running = self.recorder.running
        if running is None or running.module is not module:
            return None
        if not torch.is_grad_enabled():
            self._without_graph[module].append(running)
            return None
        return running

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        call = self._call(module)
        if call is None or not torch.is_grad_enabled():
            return None
        self._running.append((module, call))
        if not self.recorder.selection.takes_layer(call.layer, is_leaf=is_leaf(module)):
            return None
        views = {
            port: _view(tensor)
            for port, tensor in find_arguments(args, kwargs).tensors.items()
            if _has_gradient(tensor)
        }
        for port, view in views.items():
            self._hook(view, call, f"output_grad_{port}")
        return swap_arguments(args, kwargs, views) if views else None

    def _after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:  # noqa: ARG002
        if not any(module is other for other, _ in self._running):
            return None
        while (ended := self._running.pop())[0] is not module:
            pass  # it raised
        call = ended[1]
        if not self.recorder.selection.takes_layer(call.layer, is_leaf=is_leaf(module)):
            return None
        views: dict[str, Tensor] = {}
        for port, tensor in find(output, "output").tensors.items():
            if _has_gradient(tensor):
                # The module returns the output of its last part: take a view, so that the module's own gradient comes
                # first.
                view = views[port] = _view(tensor) if self._is_hooked(tensor) else tensor
                self._hook(view, call, f"input_grad_{port}")
        return swap(output, "output", views) if views else None

    def _hook(self, tensor: Tensor, call: Call, port: str) -> None:
        self._hooked[id(tensor)] = weakref.ref(tensor)
        tensor.register_hook(self._gradient_hook(call._replace(layer=f"{BACKWARD}{call.layer}"), port))

    def _is_hooked(self, tensor: Tensor) -> bool:
        found = self._hooked.get(id(tensor))
        return tensor.is_leaf or (found is not None and found() is tensor)

    def _gradient_hook(self, call: Call, port: str) -> Callable[[Tensor], None]:
        is_given = port.startswith("input")
        if not is_given:
            self._awaited[EntryKey(call.entry_name(port), call.step, call.call)] = call.key

        def see(gradient: Tensor | None) -> None:
            if gradient is None:
                return
            if is_given:
                self._given.add(call.key)
            self._see(CallTensor(call, port, gradient))

        return see

    def _see(self, item: CallTensor) -> None:
        if item.key in self.written:
            self._repeated += 1
            return
        self.written.add(item.key)
        self.latest = item.key.name
        if self.recorder.selection.inputs or not item.port.startswith("input"):
            self.recorder.sink.see(item)

    def _hook_parameters(self, model: nn.Module) -> None:
        self._frozen = 0
        self._parameters.clear()
        for layer, name, module, parameter in _owned_parameters(model):
            if not self.recorder.selection.takes_layer(layer, is_leaf=is_leaf(module)):
                continue
            if not parameter.requires_grad:
                self._frozen += 1
                continue
            port = f"output_grad_{'parameter_' if name.startswith(_PORT_KINDS) else ''}{name}"
            self._parameters.append(f"{layer}.{name}")
            self._handles.append(parameter.register_hook(self._parameter_hook(layer, name, module, port)))

    def _parameter_hook(self, layer: str, name: str, module: nn.Module, port: str) -> Callable[[Tensor], None]:
        """One gradient for all calls of a module in a step: torch adds them up."""

        def see(gradient: Tensor) -> None:
            self._reached.add(f"{layer}.{name}")
            call = Call(f"{BACKWARD}{layer}", module, self.recorder.step, 1)
            self._see(CallTensor(call, port, gradient))

        return see


def _owned_parameters(model: nn.Module) -> Iterator[tuple[str, str, nn.Module, nn.Parameter]]:
    """Each parameter once, tied ones by their first name, as (layer, name within it, module, tensor)."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen and parameter.dtype.is_floating_point:
                seen.add(id(parameter))
                yield (f"{ROOT}.{path}" if path else ROOT), name, module, parameter


def _some(names: list[str]) -> str:
    return ", ".join(names[:_FEW]) + (", …" if len(names) > _FEW else "")


def _has_gradient(tensor: Tensor) -> bool:
    """Whether a gradient flows back through a tensor."""
    return bool(tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex()))


def _view(tensor: Tensor) -> Tensor:
    return tensor.view_as(tensor)


# --- the loss -----------------------------------------------------------------------------------------

Loss = Callable[[Any], Tensor]
"""Computes a number from a model's output."""


def loss_of(output: Any, loss: Loss | None) -> tuple[Tensor, str]:
    """The number to differentiate, and its description: the user's loss, the model's, or the sum of its logits.

    The sum over a final LayerNorm or softmax is constant, and its gradients are noise; so outputs that are not logits
    are added up with varying weights.
    """
    if loss is not None:
        made = loss(output)
        if not isinstance(made, Tensor) or made.numel() != 1:
            raise CaptureError(f"the loss function gave {_described(made)}; it must return a tensor of one element")
        return made.reshape(()), "the function's own loss"
    tensors = {port: tensor for port, tensor in find(output, "output").tensors.items() if tensor.is_floating_point()}
    own = tensors.get("output_loss")
    if own is not None and own.numel() == 1:
        return own.reshape(()), "the model's own loss"
    if (logits := tensors.get("output_logits")) is not None:
        return logits.float().sum(), "the sum of logits"
    port, first = next(((port, tensor) for port, tensor in tensors.items() if tensor.requires_grad), (None, None))
    if first is None:
        return torch.zeros(()), ""
    pattern = torch.cos(torch.arange(1, first.numel() + 1, device=first.device, dtype=torch.float32))
    return (first.float().reshape(-1) * pattern).sum(), f"the sum of {port}, weighted by cos(1), cos(2), …"


def _described(value: Any) -> str:
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def differentiate(output: Any, model: nn.Module, loss: Loss | None, source: str) -> str:
    """Run the backward of a model's output; returns what was differentiated. Leaves no gradients in the model."""
    number, what = loss_of(output, loss)
    if not number.requires_grad:
        why = "all its parameters are frozen; call model.requires_grad_(True)"
        if any(parameter.requires_grad for parameter in model.parameters()):
            why = "it was computed under no_grad, or from what is detached; give a loss that depends on the parameters"
        raise CaptureError(f"{printable(source)}: {what or 'the output'} has no gradient: {why}")
    before = _take_gradients(model)
    try:
        number.backward()
    finally:
        for parameter, gradient in before.items():
            parameter.grad = gradient
    return what


def _take_gradients(model: nn.Module) -> Mapping[nn.Parameter, Tensor | None]:
    found = {parameter: parameter.grad for parameter in model.parameters()}
    for parameter in found:
        parameter.grad = None
    return found
