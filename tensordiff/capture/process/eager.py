"""Captures and injects a model that calls its layers one after the other, with numpy arrays at their ports.

This is the whole capture for engines that can see every call as it happens. Such an engine loads a model and calls a
``Watch`` around each layer. What is written, counted, injected and reported is decided here::

    inputs = watch.inputs("model.blocks.0", {"input_0": x})
    y = block(inputs["input_0"])
    y = watch.outputs("model.blocks.0", {"output": y})["output"]
"""

from __future__ import annotations

import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from tensordiff.capture.events import Done, Phase, Tell, ThrottledProgress
from tensordiff.capture.injection.injector import InjectionPort, Injector, plan_injection
from tensordiff.capture.injection.passes import Pass
from tensordiff.capture.injection.report import InjectionReport
from tensordiff.capture.injection.sources import SpecOnly
from tensordiff.capture.job import REPLAY, Job, replayed_dump
from tensordiff.capture.process.disk_space import check_job_size
from tensordiff.capture.process.layers import Selection, entry_key, find_layer, leaves
from tensordiff.capture.process.output import Output, done, open_output
from tensordiff.capture.settings import Injection
from tensordiff.dump import Entry
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import CallKey, EntryKey, Origin, Spec
from tensordiff.dump.names import parameter_name
from tensordiff.errors import CaptureError, printable

Ports = Mapping[str, Array]
"""The tensors of a call by port: ``input_0``, ``input_mask``, ``output``, ``output_1``."""


class EagerModel(Protocol):
    """A loaded model."""

    framework: str
    """Its name in the manifest."""

    def layers(self) -> Iterable[str]:
        """The names of all layers: ``model``, and dotted names that begin with it."""

    def run(self, watch: Watch) -> None:
        """Run from the beginning, calling ``watch`` around each layer. Every run must give the same numbers."""

    def facts(self) -> Mapping[str, Any]:
        """Facts for the manifest: versions, device, dtype, prompt, token_ids, flags, model, weights_hash."""


@runtime_checkable
class HoldsParameters(Protocol):
    """A model whose parameters can be read, for ``--weights``."""

    def parameters(self) -> Iterable[tuple[str, Array]]:
        """The names and values of the parameters; quantized ones dequantized."""


class TensorSink(Protocol):
    """Takes the tensors that a watch sees."""

    def __call__(self, call: CallKey, port: str, array: Array, origin: Origin) -> None:
        """Take a tensor; the array may be overwritten as soon as this returns."""


class Watch:
    """Records the calls of one run, and replaces their tensors if the run is injected."""

    def __init__(self, sink: TensorSink, injector: Injector | None = None, injection_pass: Pass | None = None) -> None:
        self._sink, self._injector, self._pass = sink, injector, injection_pass
        self._step = 0
        self._counts: Counter[tuple[int, str]] = Counter()
        self._running: list[tuple[CallKey, Origin]] = []

    def inputs(self, layer: str, ports: Ports, origin: Origin | None = None) -> dict[str, Array]:
        """Record a layer's inputs before it is called; returns the inputs to call it with."""
        self._counts[self._step, layer] += 1
        call = CallKey(layer, self._step, self._counts[self._step, layer])
        self._running.append((call, origin or Origin()))
        return self._see(call, ports, self._injector.inputs if self._injector else None)

    def outputs(self, layer: str, ports: Ports) -> dict[str, Array]:
        """Record a layer's outputs; returns the outputs to give to its caller."""
        call, _ = self._running[-1]
        if call.layer != layer:
            raise ValueError(f"{layer} gave its outputs while {call.layer} was running")
        seen = self._see(call, ports, self._injector.outputs if self._injector else None)
        self._running.pop()
        return seen

    def next_step(self) -> None:
        """Begin another step: the next token, for example."""
        self._step += 1

    def _see(self, call: CallKey, ports: Ports, inject: Callable[..., dict[str, Array]] | None) -> dict[str, Array]:
        tensors = dict(ports)
        if inject is not None and self._pass is not None:
            injection_ports = {port: InjectionPort(Spec(array.shape, array.dtype)) for port, array in ports.items()}
            tensors |= inject(self._pass, call, injection_ports)
        _, origin = self._running[-1]
        for port, array in tensors.items():
            injected = self._injector.report.names(call, port) if self._injector else None
            self._sink(call, port, array, origin._replace(injected=injected))
        return tensors


def run_eagerly(model: EagerModel, job: Job, tell: Tell, *, operations_of: str | None = None) -> Done:
    """Do what a job asks for with a model: capture it, inject into it, or replay one of its layers.

    ``operations_of`` is set if the model reports the operations of that layer instead of its layers.
    """
    selection, replayed = Selection.from_settings(job.settings), {}
    injection, layer = job.settings.inject, None
    if operations_of is not None:
        selection = Selection.only(operations_of, within="(/.*)?", inputs=not job.settings.no_inputs)
        injection = injection and replace(injection, at=operations_of)
    if job.task == REPLAY:
        layer = find_layer(str(job.more["layer"]), model.layers())
        # everything is written: alignment needs the names of the layers around it
        injection = replace(replayed_dump(job), at=layer)
    check_job_size(job, None, tell)
    with open_output(job, model.framework) as output:
        writer, report = _Writer(output, model, selection, tell), None
        try:
            if injection is None:
                tell(Phase("running"))
                model.run(Watch(writer))
                if job.settings.weights and operations_of is None:
                    tell(Phase("writing weights"))
                    _write_parameters(model, job, output)
            else:
                report = _run_injected(model, injection, output, writer, tell)
        finally:
            output.facts |= model.facts()
        notes = [*([report.sentence()] if report else []), *output.budget.notes()]
        output.facts["notes"] = notes or None
        if report is not None and injection is not None:
            output.facts["injection"] = report.as_json(injection)
            replayed = {} if layer is None else {"layer": report.reference_layer(layer)}
        if not output.entries:
            raise CaptureError(
                f"{printable(job.source)}: nothing was written; {'; '.join(notes) or 'no layer matches'}"
            )
        tell(Phase("writing"))
    return done(job, output, output.facts | replayed, tell)


def _write_parameters(model: EagerModel, job: Job, output: Output) -> None:
    if not isinstance(model, HoldsParameters):
        raise CaptureError(f"--weights: {job.source.kind}: sources do not show what they hold; leave it out")
    for name, array in model.parameters():
        output.add_parameter(EntryKey(parameter_name(name), 0, 1), array, Origin())


def _run_injected(
    model: EagerModel, injection: Injection, output: Output, writer: _Writer, tell: Tell
) -> InjectionReport:
    listing, injector = _plan(model, injection, tell)
    for injection_pass in injector.passes():
        tell(Phase(injection_pass.title))
        output.begin_pass()
        model.run(Watch(writer.only(injection_pass.written), injector, injection_pass))
    output.order = [entry.key for entry in listing.entries]
    return injector.report


def _plan(model: EagerModel, injection: Injection, tell: Tell) -> tuple[_Listing, Injector]:
    """Run once without writing anything, to see which tensors there are."""
    tell(Phase("listing tensors"))
    listing = _Listing()
    model.run(Watch(listing))
    return listing, Injector(plan_injection(injection, listing.entries, listing.aliases))


class _Writer:
    """Writes the tensors that are selected."""

    def __init__(self, output: Output, model: EagerModel, selection: Selection, tell: Tell) -> None:
        self._output, self._selection = output, selection
        self._leaves = leaves(model.layers())
        self._progress = ThrottledProgress(tell)

    def __call__(self, call: CallKey, port: str, array: Array, origin: Origin) -> None:
        if self._selection.takes(call.layer, port, is_leaf=call.layer in self._leaves):
            self._output.add(entry_key(call, port), array, origin)
            self._progress.advance(call.layer)

    def only(self, layers: frozenset[str]) -> TensorSink:
        """A sink that writes only these layers."""

        def write(call: CallKey, port: str, array: Array, origin: Origin) -> None:
            if call.layer in layers:
                self(call, port, array, origin)

        return write


class _Listing:
    """Lists the entries of a run, without their values."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.aliases: dict[EntryKey, EntryKey] = {}
        """Inputs that are the same array as an earlier entry, unchanged since."""
        self._first: dict[int, tuple[weakref.ref[Array], int, EntryKey]] = {}

    def __call__(self, call: CallKey, port: str, array: Array, origin: Origin) -> None:
        key, stored = entry_key(call, port), SpecOnly(Spec(array.shape, array.dtype))
        self.entries.append(Entry(key.name, call.layer, port, call.call, call.step, stored, origin))
        checksum = zlib.crc32(array.tobytes())
        before = self._first.get(id(array))
        if before is None or before[0]() is not array or before[1] != checksum:
            self._first[id(array)] = (weakref.ref(array), checksum, key)
        elif port.startswith("input"):
            self.aliases[key] = before[2]
