"""``onnx:FILE``: an exported graph, run by onnxruntime.

What a job asks for is read here and done by the parts in ``onnx_engine``: the graph is run with its values as outputs
and nothing optimized, and the layers are those of the model that it was exported from, as its nodes say. No code comes
with a graph, and none is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnxruntime

from tensordiff.capture.engines.onnx import facts as told
from tensordiff.capture.engines.onnx.failures import Stopped
from tensordiff.capture.engines.onnx.graph import Graph, Kind, Known, infer
from tensordiff.capture.engines.onnx.inject import Injecting, place_of
from tensordiff.capture.engines.onnx.inputs import Asked, make_inputs
from tensordiff.capture.engines.onnx.layers import Call, find_calls, with_neighbours
from tensordiff.capture.engines.onnx.model import Model, load, seed
from tensordiff.capture.engines.onnx.ports import Port, Ports, find_layer, ops_of
from tensordiff.capture.engines.onnx.scopes import Scope, scopes
from tensordiff.capture.engines.onnx.session import Engine, placement
from tensordiff.capture.engines.onnx.writing import Reading, Selection, Sink, Tell, Writing, left, optimized, size_of
from tensordiff.capture.events import Done, Note, Phase
from tensordiff.capture.job import Job
from tensordiff.capture.process.answer import done, first_facts
from tensordiff.capture.process.disk_space import Budget, tell_room
from tensordiff.capture.settings import Injection, Settings
from tensordiff.dump import Dump, open_dump
from tensordiff.dump.writer import DumpWriter
from tensordiff.errors import CaptureError, TensordiffError, printable

REPLAY = "replay"


def run(job: Job, tell: Tell) -> Done:
    """Run an ``onnx:`` job."""
    _refuse(job)
    if job.task == REPLAY:
        job = _replaying(job)
    tell(Phase("loading", job.source.target))
    reference = open_dump(Path(job.settings.inject.dump)) if job.settings.inject else None
    subject = Subject.of(job, reference, tell)
    if job.settings.inject is not None:
        return _capture_injected(job, job.settings.inject, subject, tell)
    return _capture(job, subject, tell)


def _replaying(job: Job) -> Job:
    """A replay is an injected run of one layer, on what the dump to be replayed recorded."""
    if job.more.get("bundle") is not None:
        raise CaptureError(f"{printable(job.source)}: a layer of a graph has no bundle; leave -o out")
    if int(job.more.get("step", 0)):
        raise CaptureError(f"{printable(job.source)}: a graph is run once; replay step 0")
    return replace(
        job, settings=replace(job.settings, inject=Injection(str(job.more["dump"])), ops=None, optimized=False)
    )


@dataclass(frozen=True)
class Subject:
    """A model, what it is given, and the layers in it."""

    model: Model
    asked: Asked
    engine: Engine
    scopes: list[Scope]
    root: Call

    @classmethod
    def of(cls, job: Job, reference: Dump | None, tell: Tell) -> Subject:
        """What a job is about."""
        settings, model = job.settings, load(job.source.target)
        seed(model, settings.seed)
        asked = make_inputs(model, settings, reference)
        for note in asked.notes:
            tell(Note(note))
        placed = placement(settings.device, onnxruntime.get_available_providers(), exact=settings.deterministic)
        known = infer(model, {name: feed.array.shape for name, feed in asked.feeds.items()})
        engine = Engine(model, Graph.of(model, known), asked.feeds, placed, settings.deterministic)
        tell(Phase("looking", f"{len(model.nodes)} nodes"))
        engine.graph = Graph.of(model, known | _measured(engine))
        found = with_neighbours(engine.graph, scopes(model.nodes, model.weight_names))
        return cls(model, asked, engine, found, find_calls(engine.graph, found))

    @property
    def layers(self) -> list[str]:
        """The names of all layers."""
        return [call.layer for call in self.root.walk()]

    @property
    def ports(self) -> list[Port]:
        """All tensors of all layers, in execution order."""
        return Ports(self.engine.graph, self.scopes).of(self.root)

    def facts(self, settings: Settings) -> dict[str, Any]:
        """What is known when it ran."""
        return {
            "versions": told.versions(),
            "device": self.engine.placed.device,
            "dtype": told.dtype_of(self.model),
            "prompt": self.asked.prompt,
            "token_ids": self.asked.token_ids,
            "config_overrides": {},
            "flags": told.flags(self.engine, is_optimized=settings.optimized),
            "model": told.about_model(self.model, self.root),
        }


def _measured(engine: Engine) -> dict[str, Known]:
    """What shape inference could not tell, from a run that keeps nothing."""
    graph = engine.graph
    values = (name for node in graph.nodes for name in node.output if name and graph.kind(name) is not Kind.CONSTANT)
    unknown = [name for name in values if graph.about(name).nbytes is None]
    try:
        return engine.shapes(unknown) if unknown else {}
    except Stopped:
        return {}  # the run proper will stop there too, and say so


def _capture(job: Job, subject: Subject, tell: Tell) -> Done:
    """Run a graph once, and write what its layers were given and gave."""
    ports = _wanted(job, subject, tell)
    _tell_size(job, subject, size_of(ports, Reading(subject.engine)), tell)
    with open_writer(job) as written, _reading(job, subject) as reading:
        sink = Sink(written.writer, Budget(job.settings.max_bytes))
        tell(Phase("running", f"{len(subject.engine.graph.nodes)} nodes"))
        there = left(ports, subject.engine.graph, reading)
        fused = [f"{len(ports) - len(there)} tensors are not there in the optimized graph"] if there != ports else []
        try:
            with _stopping(job):
                Writing(reading, sink, tell).write(there)
        finally:
            written.facts |= subject.facts(job.settings)
        tell(Phase("writing"))
        notes = [*fused, *sink.notes()]
        written.facts |= {"weights_hash": told.weights_hash(subject.model), "notes": notes or None}
    return done(job, sink, written.facts, tell)


def _reading(job: Job, subject: Subject) -> AbstractContextManager[Reading]:
    """The graph as it was exported, unless it is wanted as onnxruntime optimizes it."""
    return optimized(subject.engine) if job.settings.optimized else nullcontext(Reading(subject.engine))


def _capture_injected(job: Job, injection: Injection, subject: Subject, tell: Tell) -> Done:
    """Run a graph on the inputs of another run, and write it down."""
    layer = find_layer(str(job.more["layer"]), subject.layers) if job.task == REPLAY else None
    if layer is not None:
        injection = replace(injection, at=layer)
    ports, selection = subject.ports, _selection(job, layer)
    injecting = Injecting(injection, subject.engine, subject.root, ports)
    report, chosen = injecting.report, [port for port in ports if selection.takes(port)]
    _tell_size(job, subject, size_of(chosen, Reading(subject.engine)), tell)
    with open_writer(job) as written:
        sink = Sink(written.writer, Budget(job.settings.max_bytes))
        try:
            for number, (reading, found) in enumerate(injecting.readings()):
                tell(Phase(f"injecting, pass {number + 1} of {report.passes}"))
                written.writer.begin_part()
                with _stopping(job):
                    Writing(reading, sink, tell, report.names).write([port for port in found if selection.takes(port)])
        finally:
            written.facts |= subject.facts(job.settings)
        written.writer.arrange(place_of(port) for port in ports)
        notes = [report.sentence(), *sink.notes()]
        written.facts |= {"weights_hash": told.weights_hash(subject.model), "notes": notes}
        written.facts["injection"] = report.as_json()
    answered = {} if layer is None else {"layer": report.answered(layer)}
    return done(job, sink, written.facts | answered, tell)


def _selection(job: Job, layer: str | None) -> Selection:
    return Selection.of(job.settings) if layer is None else Selection(f"^{re.escape(layer)}$")


def _wanted(job: Job, subject: Subject, tell: Tell) -> list[Port]:
    if job.settings.ops is not None:
        layer, found = ops_of(subject.engine.graph, subject.root, subject.scopes, job.settings.ops)
        tell(Note(f"{len({port.call for port in found})} operations in {printable(layer)}"))
        return found
    selection = Selection.of(job.settings)
    return [port for port in subject.ports if selection.takes(port)]


def _tell_size(job: Job, subject: Subject, nbytes: int, tell: Tell) -> None:
    """Say what is about to run and how much will be written; refuses where that will not fit."""
    about = told.about_model(subject.model, subject.root)
    tell(Note(f"{printable(about['class'] or 'a graph')}, {printable(subject.model.path)}"))
    tell_room(job, nbytes, tell)


@contextmanager
def _stopping(job: Job) -> Iterator[None]:
    """A node that cannot be computed ends the run; what was reached is there."""
    try:
        yield
    except Stopped as stopped:
        raise CaptureError(f"{stopped}; the layers it reached lie in {printable(job.output)}") from stopped


@dataclass
class Written:
    """A dump being written."""

    writer: DumpWriter
    facts: dict[str, Any] = field(default_factory=dict)
    """What to say of the run when it is over."""


@contextmanager
def open_writer(job: Job) -> Iterator[Written]:
    """A dump; what the block says of it is added at the end, good or bad."""
    first = first_facts(job, "onnxruntime")
    with DumpWriter(job.output, first, overwrite=job.settings.force, durable=False) as writer:
        written = Written(writer)
        try:
            yield written
        except BaseException as error:
            _add_error(written, error)
            raise
        writer.add_facts(**written.facts)


def _add_error(written: Written, error: BaseException) -> None:
    try:
        written.writer.add_facts(**{**written.facts, "error": printable(str(error) or type(error).__name__)})
    except TensordiffError:
        return  # the disk is full or gone: that is the error, and it is on its way


def _refuse(job: Job) -> None:
    """Settings that say nothing to a graph: all of it was decided when it was exported."""
    settings = job.settings
    exported = "that was decided when the graph was exported"
    given: dict[str, tuple[Any, str]] = {
        "--dtype": (settings.dtype, exported), "--weights-dtype": (settings.weights_dtype, exported),
        "--num-hidden-layers": (settings.num_hidden_layers, exported), "--config": (settings.config or None, exported),
        "--attn-implementation": (settings.attn_implementation, exported),
        "--revision": (settings.revision, "a file has none"),
        "--image": (settings.image, "give its pixels with --inputs FILE.safetensors"),
        "--steps": (settings.steps if settings.steps > 1 else None, "a graph is run once"),
        "--prefer-module-v3": (settings.prefer_module_v3 or None, "it is about max: sources"),
    }  # fmt: skip
    if settings.optimized:
        exact = "what is fused has no parts: it is for a plain capture"
        given |= {"--inject": (settings.inject, exact), "--ops": (settings.ops, exact)}
    for option, (value, why) in given.items():
        if value is not None:
            raise CaptureError(f"{printable(job.source)}: {option} is not for onnx: sources; {why}")
