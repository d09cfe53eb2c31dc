"""``onnx:FILE``: an exported graph, run by onnxruntime.

The graph is run with its values as outputs and without optimizations. The layers are those of the model it was exported
from, as its nodes record them. A graph contains no code, and none is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnxruntime

from tensordiff.capture.engines.onnx import facts as run_facts
from tensordiff.capture.engines.onnx.failures import NodeFailure
from tensordiff.capture.engines.onnx.graph import Graph, Kind, ValueInfo, infer
from tensordiff.capture.engines.onnx.inject import InjectedGraph
from tensordiff.capture.engines.onnx.inputs import GraphInputs, make_inputs
from tensordiff.capture.engines.onnx.layers import Call, find_calls, with_neighbours
from tensordiff.capture.engines.onnx.model import Model, load, seed
from tensordiff.capture.engines.onnx.ports import Port, Ports, ops_of
from tensordiff.capture.engines.onnx.scopes import Scope, scopes
from tensordiff.capture.engines.onnx.session import GraphRunner, placement
from tensordiff.capture.engines.onnx.writing import (
    PortWriter,
    ValueReader,
    optimized,
    parameter_bytes,
    remaining_ports,
    size_of,
    write_parameters,
)
from tensordiff.capture.events import Done, Note, Phase, Tell
from tensordiff.capture.job import REPLAY, Job, replay_as_injection
from tensordiff.capture.process.disk_space import check_job_size
from tensordiff.capture.process.layers import Selection, find_layer
from tensordiff.capture.process.output import done, open_output, partial_dump_clause
from tensordiff.capture.settings import Injection, Settings
from tensordiff.dump import Dump, open_dump
from tensordiff.errors import CaptureError, printable

FRAMEWORK = "onnxruntime"


def run(job: Job, tell: Tell) -> Done:
    """Run an ``onnx:`` job."""
    _refuse_fused(job)
    if job.task == REPLAY:
        job = replay_as_injection(job)
    tell(Phase("loading", job.source.target))
    reference = open_dump(Path(job.settings.inject.dump)) if job.settings.inject else None
    loaded = LoadedGraph.of(job, reference, tell)
    if job.settings.inject is not None:
        return _capture_injected(job, job.settings.inject, loaded, tell)
    return _capture(job, loaded, tell)


@dataclass(frozen=True)
class LoadedGraph:
    """A model, its inputs, and the layers in it."""

    model: Model
    inputs: GraphInputs
    runner: GraphRunner
    scopes: list[Scope]
    root: Call

    @classmethod
    def of(cls, job: Job, reference: Dump | None, tell: Tell) -> LoadedGraph:
        """Load what a job names."""
        settings = job.settings
        placed = placement(settings.device, onnxruntime.get_available_providers(), exact=settings.deterministic)
        model = load(job.source.target)
        seed(model, settings.seed)
        inputs = make_inputs(model, settings, reference)
        for note in inputs.notes:
            tell(Note(note))
        known = infer(model, {name: feed.array.shape for name, feed in inputs.feeds.items()})
        runner = GraphRunner(model, Graph.of(model, known), inputs.feeds, placed, settings.deterministic)
        tell(Phase("listing tensors", f"{len(model.nodes)} nodes"))
        runner.graph = Graph.of(model, known | _measured(runner))
        found = with_neighbours(runner.graph, scopes(model.nodes, model.weight_names))
        return cls(model, inputs, runner, found, find_calls(runner.graph, found))

    @property
    def layers(self) -> list[str]:
        """The names of all layers."""
        return [call.layer for call in self.root.walk()]

    @property
    def ports(self) -> list[Port]:
        """All tensors of all layers, in execution order."""
        return Ports(self.runner.graph, self.scopes).of(self.root)

    def facts(self, settings: Settings) -> dict[str, Any]:
        """The facts that are known once it ran."""
        return {
            "versions": run_facts.versions(),
            "device": self.runner.placed.device,
            "dtype": run_facts.dtype_of(self.model),
            "prompt": self.inputs.prompt,
            "token_ids": self.inputs.token_ids,
            "config_overrides": {},
            "flags": run_facts.flags(self.runner, is_optimized=settings.optimized),
            "model": run_facts.about_model(self.model, self.root),
            **run_facts.about_gpu(self.runner),
        }


def _measured(runner: GraphRunner) -> dict[str, ValueInfo]:
    """Types and shapes that inference could not tell, from a run that keeps no values."""
    graph = runner.graph
    values = (name for node in graph.nodes for name in node.output if name and graph.kind(name) is not Kind.CONSTANT)
    unknown = [name for name in values if graph.info(name).nbytes is None]
    try:
        return runner.shapes(unknown) if unknown else {}
    except NodeFailure:
        return {}  # the actual run will fail there too, and report it


def _capture(job: Job, loaded: LoadedGraph, tell: Tell) -> Done:
    """Run a graph once, and write the inputs and outputs of its layers."""
    ports = _wanted(job, loaded, tell)
    more = parameter_bytes(loaded.model) if job.settings.weights else 0
    _tell_size(job, loaded, size_of(ports, ValueReader(loaded.runner)) + more, tell)
    with open_output(job, FRAMEWORK) as output, _reading(job, loaded) as reading:
        tell(Phase("running", f"{len(loaded.runner.graph.nodes)} nodes"))
        there = remaining_ports(ports, loaded.runner.graph, reading)
        fused = [f"{len(ports) - len(there)} tensors are not there in the optimized graph"] if there != ports else []
        try:
            with _node_failures(job):
                PortWriter(reading, output, tell).write(there)
        finally:
            output.facts |= loaded.facts(job.settings)
        if job.settings.weights:
            tell(Phase("writing weights"))
            write_parameters(loaded.model, output)
        tell(Phase("writing"))
        notes = [*fused, *output.budget.notes()]
        output.facts |= {"weights_hash": run_facts.weights_hash(loaded.model), "notes": notes or None}
    return done(job, output, output.facts, tell)


def _reading(job: Job, loaded: LoadedGraph) -> AbstractContextManager[ValueReader]:
    """Reads from the graph as exported or, if asked, as onnxruntime optimizes it."""
    return optimized(loaded.runner) if job.settings.optimized else nullcontext(ValueReader(loaded.runner))


def _capture_injected(job: Job, injection: Injection, loaded: LoadedGraph, tell: Tell) -> Done:
    """Run a graph on the inputs of another run, and write it down."""
    layer = find_layer(str(job.more["layer"]), loaded.layers) if job.task == REPLAY else None
    selection = Selection.from_settings(job.settings)
    if layer is not None:
        injection, selection = replace(injection, at=layer), Selection.only(layer)
    ports = loaded.ports
    injected = InjectedGraph(injection, loaded.runner, loaded.root, ports)
    _tell_size(job, loaded, size_of(_selected(ports, selection), ValueReader(loaded.runner)), tell)
    with open_output(job, FRAMEWORK) as output:
        try:
            for reading, written in injected.readings(tell):
                output.begin_pass()
                with _node_failures(job):
                    PortWriter(reading, output, tell, injected.report.names).write(_selected(written, selection))
        finally:
            output.facts |= loaded.facts(job.settings)
        output.order = [port.key for port in ports]
        notes = [injected.report.sentence(), *output.budget.notes()]
        output.facts |= {"weights_hash": run_facts.weights_hash(loaded.model), "notes": notes}
        output.facts["injection"] = injected.report.as_json(injection)
    replayed = {} if layer is None else {"layer": injected.report.reference_layer(layer)}
    return done(job, output, output.facts | replayed, tell)


def _selected(ports: Sequence[Port], selection: Selection) -> list[Port]:
    return [port for port in ports if selection.takes(port.call.layer, port.port, is_leaf=not port.call.parts)]


def _wanted(job: Job, loaded: LoadedGraph, tell: Tell) -> list[Port]:
    if job.settings.ops is not None:
        layer, found = ops_of(loaded.runner.graph, loaded.root, loaded.scopes, job.settings.ops)
        tell(Note(f"{len({port.call for port in found})} operations in {printable(layer)}"))
        return found
    return _selected(loaded.ports, Selection.from_settings(job.settings))


def _tell_size(job: Job, loaded: LoadedGraph, nbytes: int, tell: Tell) -> None:
    """Say what is about to run and how much will be written; refuses what will not fit."""
    model_facts = run_facts.about_model(loaded.model, loaded.root)
    tell(Note(f"{printable(model_facts['class'] or 'a graph')}, {printable(loaded.model.path)}"))
    check_job_size(job, nbytes, tell)


@contextmanager
def _node_failures(job: Job) -> Iterator[None]:
    """Turn the failure of a node into the error of the run; what was computed before it is kept."""
    try:
        yield
    except NodeFailure as stopped:
        raise CaptureError(f"{stopped}{partial_dump_clause(job)}") from stopped


def _refuse_fused(job: Job) -> None:
    """Refuse options that need the nodes of the exported graph together with ``--optimized``."""
    for name in ("inject", "ops"):
        if job.settings.optimized and getattr(job.settings, name) is not None:
            raise CaptureError(
                f"{printable(job.source)}: --{name} is not for onnx: sources with --optimized; "
                "what is fused has no parts: it is for a plain capture"
            )
