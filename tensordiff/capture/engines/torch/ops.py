"""Inside a layer: every operation that runs during a module's call, without editing any source.

Operations are recorded where torch dispatches them, so functions that are not modules are recorded too. They are named
``layer/op_03_aten.mm``, with the line of the model's own code that called them, found in the stack without the frames
of torch and tensordiff. The results of functions in that code (rope, an attention interface) are recorded as
``layer/fn_00_apply_rotary_pos_emb``. Weights are not written.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

import tensordiff
from tensordiff.capture.engines.torch import facts as run_facts
from tensordiff.capture.engines.torch.capture import all_facts, begin, open_writer, run_steps, tell_size
from tensordiff.capture.engines.torch.devices.offload import hooks_of, own_forward
from tensordiff.capture.engines.torch.facts import CodeLocation, plain_parts, short_path
from tensordiff.capture.engines.torch.hooks import Call, CallTensor, Recorder, layer_names
from tensordiff.capture.engines.torch.inject import InjectionPatch, list_run, random_numbers
from tensordiff.capture.engines.torch.program import Program, Step
from tensordiff.capture.engines.torch.tensors import find, find_arguments
from tensordiff.capture.engines.torch.writing.sinks import WritingSink
from tensordiff.capture.events import Done, Note, Phase, Tell
from tensordiff.capture.injection.injector import Injector
from tensordiff.capture.job import Job
from tensordiff.capture.process.layers import ROOT, Selection, find_layer
from tensordiff.capture.process.output import done
from tensordiff.errors import CaptureError

_TORCH, _OURS = Path(torch.__file__).parent, Path(tensordiff.__file__).parent
_ACCELERATE = find_spec("accelerate")
_PYTHON = Path(sysconfig.get_paths()["stdlib"])
_DEEPEST = 24


@lru_cache(maxsize=4096)
def _is_model_file(file: str) -> bool:
    path = Path(file)
    if not path.is_absolute() or path.is_relative_to(_TORCH) or path.is_relative_to(_OURS) or _is_accelerate(file):
        return False
    return not path.is_relative_to(_PYTHON) or "site-packages" in path.parts


@lru_cache(maxsize=4096)
def _is_accelerate(file: str) -> bool:
    if _ACCELERATE is None or _ACCELERATE.origin is None:
        return False
    return Path(file).is_relative_to(Path(_ACCELERATE.origin).parent)


def _is_placement(frame: FrameType | None) -> bool:
    """Whether accelerate called an operation: it loads weights and moves tensors between devices."""
    while frame is not None and not is_of_model(frame.f_code):
        if _is_accelerate(frame.f_code.co_filename):
            return frame.f_code.co_name != "new_forward"  # new_forward calls the module's own forward
        frame = frame.f_back
    return False


def is_of_model(code: CodeType) -> bool:
    """Whether code belongs to the model: not to torch, tensordiff, accelerate or Python."""
    return _is_model_file(code.co_filename)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The nearest frame of the model's own code."""
    while frame is not None and not is_of_model(frame.f_code):
        frame = frame.f_back
    return frame


@dataclass
class Stacks:
    """Stacks of operations and functions, with each frame stored once."""

    outermost: FrameType | None = None
    """The frame that called the layer; frames beyond it are not stored."""
    frames: dict[str, int] = field(default_factory=dict)
    of: dict[str, list[int]] = field(default_factory=dict)

    def add(self, name: str, frame: FrameType | None, inside: str) -> CodeLocation:
        """Store the stack of an operation or function; returns the nearest location in the model's code."""
        found, near = self._walk(frame), user_frame(frame)
        if name not in self.of:
            texts = [f"within {inside}", *found]
            self.of[name] = [self.frames.setdefault(text, len(self.frames)) for text in texts]
        return (
            CodeLocation(short_path(near.f_code.co_filename), near.f_lineno)
            if near is not None
            else CodeLocation(None, None)
        )

    def _walk(self, frame: FrameType | None) -> list[str]:
        found: list[str] = []
        while frame is not None and frame is not self.outermost and len(found) < _DEEPEST:
            if is_of_model(frame.f_code):
                code = frame.f_code
                found.append(f"{short_path(code.co_filename)}:{frame.f_lineno} {code.co_qualname}")
            frame = frame.f_back
        return found

    def as_json(self) -> dict[str, Any]:
        """For the manifest: every frame once, and by name the indices of its frames, nearest first."""
        return {"frames": list(self.frames), "of": self.of}


_INTERNAL = {"aten.detach", "aten.alias", "aten.lift_fresh"}
"""Operations that torch runs for its own bookkeeping."""


def capture_ops(program: Program, job: Job, tell: Tell) -> Done:
    """Run a program and write every operation within one of its layers."""
    settings = job.settings
    steps, step = begin(program, settings)
    layer = find_layer(settings.ops or ROOT, layer_names(step.model))
    within = Selection.only(layer, within=r"(\..*)?", inputs=not settings.no_inputs)
    tell_size(job, step, tell, within, _OPERATIONS_FACTOR)
    patch = _injection_patch(layer, steps, step, job, tell)
    if patch is not None:
        steps, step = begin(program, settings)
    with open_writer(job) as writing:
        sink = WritingSink(writing.background, writing.output.budget)
        recorder = Recorder(sink, Selection(_NO_LAYER), patch)
        watch = LayerWatch(
            layer, recorder, sink, _storages(_weights(step.model, recurse=True)), inputs=not settings.no_inputs
        )
        with watch.on(step.model):
            run_steps(recorder, steps, step, job, tell, f"running, watching {layer}")
        writing.facts |= all_facts(program, step.model, settings) | _injected(patch, job, step)
        notes = [*([patch.injector.report.sentence()] if patch else []), *sink.notes()]
        writing.facts |= {"stacks": watch.stacks.as_json(), "notes": notes or None}
        writing.facts["weights_hash"] = run_facts.weights_hash(step.model)
        if not watch.count:
            raise CaptureError(f"{layer}: did not run, so there is nothing to see in it")
        tell(Phase("writing"))
    tell(Note(f"{watch.count} operations in {layer}"))
    return done(job, sink, writing.facts, tell)


_NO_LAYER = r"(?!)"  # an expression that matches no layer: hooks only count calls here
_OPERATIONS_FACTOR = 4  # a guess: bytes of the operations' inputs and outputs, per byte of those of the modules


def _injection_patch(layer: str, steps: Any, step: Step, job: Job, tell: Tell) -> InjectionPatch | None:
    """The patch that gives the layer the reference's inputs, if requested; planned in a pass of its own."""
    injection = job.settings.inject
    if injection is None:
        return None
    _, plan = list_run(injection, steps, step, job, tell, layer)
    (only,) = plan.passes
    return InjectionPatch(Injector(plan), only)


def _injected(patch: InjectionPatch | None, job: Job, step: Step) -> dict[str, Any]:
    injection = job.settings.inject
    if patch is None or injection is None:
        return {}
    return {"injection": patch.injector.report.as_json(injection, random_numbers(step))}


def _storages(tensors: Iterable[Tensor]) -> set[int]:
    """The addresses of weights, to tell them from activations. A quantized weight consists of several tensors."""
    parts = (part for tensor in tensors for _, part in plain_parts("", tensor))
    return {part.untyped_storage().data_ptr() for part in parts if not part.is_meta and not is_lazy(part)} - {0}


def _weights(module: nn.Module, *, recurse: bool) -> Iterator[Tensor]:
    yield from module.parameters(recurse=recurse)
    yield from module.buffers(recurse=recurse)


@dataclass
class LayerWatch:
    """Watches one layer, for as long as ``on`` lasts."""

    layer: str
    recorder: Recorder
    sink: WritingSink
    weights: set[int]
    inputs: bool = True
    stacks: Stacks = field(default_factory=Stacks)
    count: int = 0
    is_on: bool = False
    """Whether the layer is running: a module that calls itself is watched from its outermost call."""

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Watch the layer whenever it is called."""
        name = self.layer.removeprefix(ROOT).removeprefix(".")
        module = model.get_submodule(name)
        attribute = own_forward(module)  # what accelerate does before and after it is no operation of the model
        forward = getattr(module, attribute)
        setattr(module, attribute, self._watched(forward))
        try:
            yield
        finally:
            if attribute in vars(module):
                delattr(module, attribute)
            if getattr(module, attribute, None) != forward:
                setattr(module, attribute, forward)  # it had one of its own

    def _watched(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self.is_on:
                return forward(*args, **kwargs)
            with self._start(sys._getframe()), _OperationRecorder(self), _record_returns(self):
                return forward(*args, **kwargs)

        return watched

    @contextmanager
    def _start(self, frame: FrameType) -> Iterator[None]:
        self.stacks.outermost, self.is_on = frame, True
        self._ops = self._functions = 0
        try:
            yield
        finally:
            self.is_on = False

    def see(self, kind: str, about: str, tensors: dict[str, Tensor], frame: FrameType | None, *, number: int) -> None:
        """Write tensors of one operation or function."""
        watched, running = self.recorder.call_of(self.layer), self.recorder.running
        call = Call(f"{self.layer}/{kind}_{number:02d}_{about}", None, watched.step, watched.call)
        place = self.stacks.add(call.layer, frame, (running or watched).layer)
        for port, tensor in tensors.items():
            self.sink.see(CallTensor(call, port, tensor, about=about, place=place))

    def next_op(self) -> int:
        """The number of an operation, from 0 at every call of the layer."""
        self._ops += 1
        self.count += 1
        return self._ops - 1

    def next_function(self) -> int:
        """The number of a function, from 0 at every call of the layer."""
        self._functions += 1
        return self._functions - 1

    def is_activation(self, tensor: Tensor) -> bool:
        """Whether a tensor is neither a weight nor a view of one."""
        where = _storages([tensor])
        if not where or not where & self.weights:
            running = self.recorder.running
            # The weights of an offloaded module are at other addresses in each call.
            return running is None or running.module is None or not where & self._loaded(running.module)
        return False

    @staticmethod
    def _loaded(module: nn.Module) -> set[int]:
        return _storages(_weights(module, recurse=False)) if any(True for _ in hooks_of(module)) else set()


class _OperationRecorder(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    """Records every operation as torch dispatches it."""

    def __init__(self, watch: LayerWatch) -> None:
        super().__init__()
        self.watch = watch

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from importing its compiler, which takes seconds; nothing is compiled in a capture."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = str(func).removesuffix(".default")
        if name in _INTERNAL or _is_placement(sys._getframe(1)):
            return func(*args, **(kwargs or {}))
        number, frame, watch = self.watch.next_op(), sys._getframe(1), self.watch
        if watch.inputs:
            inputs = find_arguments(args, kwargs or {}).tensors
            watch.see("op", name, _activations(watch, inputs), frame, number=number)
        result = func(*args, **(kwargs or {}))
        watch.see("op", name, _activations(watch, find(result, "output").tensors), frame, number=number)
        return result


def _activations(watch: LayerWatch, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {port: tensor for port, tensor in tensors.items() if watch.is_activation(tensor)}


@contextmanager
def _record_returns(watch: LayerWatch) -> Iterator[None]:
    """Record what functions of the model's own code return, while the layer runs."""

    def profile(frame: FrameType, event: str, given: Any) -> None:
        if event == "return" and given is not None and _is_function(frame.f_code):
            with torch.utils._python_dispatch._disable_current_modes():
                tensors = _activations(watch, find(given, "output").tensors)
                if tensors:
                    number = watch.next_function()
                    watch.see("fn", frame.f_code.co_name, tensors, user_frame(frame), number=number)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)


def _is_function(code: CodeType) -> bool:
    """Whether this is a function of the model's code that hooks cannot see."""
    return code.co_name not in ("forward", "__call__", "watched") and code.co_name[0] not in "<_" and is_of_model(code)
