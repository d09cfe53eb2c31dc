"""Runs a torch program on the reference's inputs.

A first pass lists the calls and their tensors and writes nothing. The following passes call layers with the reference's
tensors, as ``capture.injection`` decides. Here the tensors are found in a module's arguments and replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tensordiff.capture.engines.torch import facts as run_facts
from tensordiff.capture.engines.torch.capture import (
    all_facts,
    begin,
    nondeterminism_notes,
    open_writer,
    refuse_empty_dump,
    run_steps,
    tell_size,
)
from tensordiff.capture.engines.torch.compiled import silent_layer_notes
from tensordiff.capture.engines.torch.hooks import Arguments, Call, CallTensor, Recorder, Sink
from tensordiff.capture.engines.torch.program import Program, Step
from tensordiff.capture.engines.torch.tensors import (
    find,
    find_arguments,
    spec_of,
    swap,
    swap_arguments,
    to_device,
    to_tensor,
    why_not_copied,
    with_strides,
)
from tensordiff.capture.engines.torch.writing.sinks import ListingSink, WritingSink
from tensordiff.capture.events import Done, Note, Phase, Tell
from tensordiff.capture.injection.injector import InjectionPlan, InjectionPort, Injector, plan_injection
from tensordiff.capture.injection.passes import Pass
from tensordiff.capture.job import Job
from tensordiff.capture.process.layers import Selection
from tensordiff.capture.process.output import done
from tensordiff.capture.settings import Injection
from tensordiff.dump.dtypes import Array
from tensordiff.errors import CaptureError


def capture_injected(program: Program, job: Job, tell: Tell) -> Done:
    """Run a program on the inputs of another run, and write it down."""
    injection = job.settings.inject
    if injection is None:
        raise CaptureError("--inject DUMP was not given, so there is nothing to inject")
    steps, step = begin(program, job.settings)
    tell_size(job, step, tell)
    listing, plan = list_run(injection, steps, step, job, tell)
    with open_writer(job) as writing:
        sink, injector = WritingSink(writing.background, writing.output.budget), Injector(plan)
        for injection_pass in injector.passes():
            steps, step = begin(program, job.settings)
            patch = InjectionPatch(injector, injection_pass)
            recorder = Recorder(
                _LayerFilter(sink, injection_pass.written), Selection.from_settings(job.settings), patch
            )
            writing.begin_pass()
            run_steps(recorder, steps, step, job, tell, injection_pass.title)
        writing.output.order = [entry.key for entry in listing.entries]
        writing.facts |= all_facts(program, step.model, job.settings) | {"calls": recorder.calls()}
        notes = [
            injector.report.sentence(),
            *sink.notes(),
            *silent_layer_notes(recorder),
            *nondeterminism_notes(recorder),
        ]
        report_json = injector.report.as_json(injection, random_numbers(step))
        writing.facts |= {"weights_hash": run_facts.weights_hash(step.model), "notes": notes, "injection": report_json}
        refuse_empty_dump(job, sink, recorder, sink.notes())
        tell(Phase("writing"))
    count = injector.report.passes
    tell(Note(f"{count} pass{'es' if count > 1 else ''}"))
    return done(job, sink, writing.facts, tell)


def list_run(
    injection: Injection, steps: Any, step: Step, job: Job, tell: Tell, layer: str | None = None
) -> tuple[ListingSink, InjectionPlan]:
    """Run a first pass that writes nothing; returns the entries it found, and the injection plan for them."""
    listing = ListingSink()
    run_steps(Recorder(listing), steps, step, job, tell, "listing tensors")
    return listing, plan_injection(injection, listing.entries, listing.aliases, layer=layer)


def random_numbers(step: Step) -> dict[str, str]:
    """Where the random numbers of an injected run came from, for its report."""
    drawn = "the run's own, and drawn: the model is in training mode"
    return {"random numbers": drawn if step.model.training else "none are drawn in eval mode"}


@dataclass
class _LayerFilter:
    """Passes on the tensors of some layers only."""

    sink: Sink
    layers: frozenset[str]

    def see(self, item: CallTensor) -> None:
        if item.call.layer in self.layers:
            self.sink.see(item)


@dataclass
class InjectionPatch:
    """Replaces a run's own tensors by the reference's, in one pass."""

    injector: Injector
    injection_pass: Pass

    def arguments(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """What a layer is to be called with."""
        if call.layer not in self.injection_pass.inputs:
            return args, kwargs
        found = find_arguments(args, kwargs, cache_layer=call.cache_layer)
        ports = {port: _port(tensor) for port, tensor in found.tensors.items()}
        ports |= {port: InjectionPort(None, f"a {kind}, which is no tensor") for port, kind in _objects(found.shape)}
        values = self.injector.inputs(self.injection_pass, call.key, ports)
        if not values:
            return args, kwargs
        return swap_arguments(args, kwargs, _tensors(values, found.tensors), cache_layer=call.cache_layer)

    def output(self, call: Call, output: Any) -> Any:
        """What a layer is to return."""
        if call.layer not in self.injection_pass.outputs:
            return output
        own = find(output, "output").tensors
        values = self.injector.outputs(
            self.injection_pass, call.key, {port: _port(tensor) for port, tensor in own.items()}
        )
        return swap(output, "output", _tensors(values, own)) if values else output

    def names(self, call: Call, port: str) -> tuple[str, ...] | None:
        """The reference's entries that a tensor holds, or that its call was given."""
        return self.injector.report.names(call.key, port)


def _port(tensor: Tensor) -> InjectionPort:
    return InjectionPort(spec_of(tensor), why_not_copied(tensor))


def _tensors(values: Mapping[str, Array], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    replacements = _Replacements()
    for port, value in values.items():
        replacements.add(port, value, own[port])
    return replacements.tensors


@dataclass
class _Replacements:
    """The tensors to put in. If one tensor was at several ports, one replacement is used for all, if its values allow.

    Modules check for this: attention whose query and key are the same tensor computes both at once, and rounds
    differently.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    _made: list[tuple[Array, Tensor, Tensor]] = field(default_factory=list)

    def add(self, port: str, value: Array, own: Tensor) -> None:
        """Make a tensor of these values with the device and strides of the run's own."""
        for before, replaced, made in self._made:
            if replaced is own and before.tobytes() == value.tobytes():
                self.tensors[port] = made
                return
        # Convert the type first: the device may not support the reference's type.
        given = to_device(to_tensor(value).to(own.dtype), own.device)
        self.tensors[port] = given if own.is_contiguous() else with_strides(given, own.stride())
        self._made.append((value, own, self.tensors[port]))


def _objects(shape: Any, port: str = "input") -> list[tuple[str, str]]:
    """Arguments that are not tensors and contain none that can be found, by port, with their class."""
    if not isinstance(shape, dict):
        return []
    if set(shape) == {"args", "kwargs"}:
        parts = {**{str(k): part for k, part in enumerate(shape["args"])}, **shape["kwargs"]}
        return [found for key, part in parts.items() for found in _objects(part, f"{port}_{key}")]
    return [(port, str(shape["object"]))] if "object" in shape else []
