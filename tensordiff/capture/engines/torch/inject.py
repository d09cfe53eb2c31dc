"""Running the candidate on the reference's inputs.

A first pass sees which layers there are and with what they are called; nothing of it is written. Then one pass
or several, see ``where``, in which layers are called with what the reference's were. What a layer was given, what
it kept of its own and why, is in the dump: a cache, a mask, positions and random numbers are inputs too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tensordiff.capture.engines.torch import facts as told
from tensordiff.capture.engines.torch.capture import (
    Tell,
    all_facts,
    begin,
    open_writer,
    play,
    refuse_nothing,
    selection_of,
    tell_size,
)
from tensordiff.capture.engines.torch.compiled import why_silent
from tensordiff.capture.engines.torch.hooks import NOTHING, Arguments, Call, Put, Recorder, Seen, Sink
from tensordiff.capture.engines.torch.program import Program, Step
from tensordiff.capture.engines.torch.sinks import ListingSink, WritingSink
from tensordiff.capture.engines.torch.tensors import (
    find,
    find_arguments,
    laid_out,
    swap,
    swap_arguments,
    to_tensor,
)
from tensordiff.capture.events import Done, Note, Phase
from tensordiff.capture.injection.passes import Layers, Pass, passes
from tensordiff.capture.injection.sources import Donors, find_donors, isolates, value_or_why
from tensordiff.capture.job import Job
from tensordiff.capture.process.answer import done
from tensordiff.capture.process.disk_space import Budget
from tensordiff.capture.settings import Injection
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import EntryKey
from tensordiff.errors import CaptureError


def capture_injected(program: Program, job: Job, tell: Tell) -> Done:
    """Run a program on the inputs of another run, and write it down."""
    injection = job.settings.inject
    if injection is None:
        raise CaptureError("nothing was said of what to inject")
    steps, step = begin(program, job.settings)
    tell_size(job, step, tell)
    seen, donors = look(injection, steps, step, job, tell)
    planned = passes(injection.at, Layers.of(seen.entries, donors.canonical))
    with open_writer(job) as writing:
        sink = WritingSink(writing.background, Budget(job.settings.max_bytes))
        report = Report()
        for number, one in enumerate(planned):
            steps, step = begin(program, job.settings)
            patch = Injector(donors, one, report)
            recorder = Recorder(_Only(sink, one.written), selection_of(job.settings), patch)
            writing.begin_part()
            play(recorder, steps, step, job, tell, f"injecting, pass {number + 1} of {len(planned)}")
        writing.order = [EntryKey(entry.name, entry.step, entry.call) for entry in seen.entries]
        writing.facts |= all_facts(program, step.model, job.settings) | {"calls": recorder.calls()}
        notes = [report.sentence(), *sink.notes(), *why_silent(recorder)]
        found = report.as_json(injection, len(planned), training=step.model.training)
        writing.facts |= {"weights_hash": told.weights_hash(step.model), "notes": notes, "injection": found}
        refuse_nothing(job, sink, recorder, sink.notes())
        tell(Phase("writing"))
    tell(Note(f"{len(planned)} pass{'es' if len(planned) > 1 else ''}"))
    return done(job, sink, writing.facts, tell)


def look(injection: Injection, steps: Any, step: Step, job: Job, tell: Tell) -> tuple[ListingSink, Donors]:
    """A first pass, of which nothing is written: what there is, and what of the reference answers it."""
    seen = ListingSink()
    play(Recorder(seen), steps, step, job, tell, "looking")
    return seen, find_donors(injection, seen.entries, seen.same)


@dataclass
class _Only:
    """Lets through the layers that this pass is for."""

    sink: Sink
    layers: frozenset[str]

    def see(self, seen: Seen) -> None:
        if seen.call.layer in self.layers:
            self.sink.see(seen)


@dataclass
class Report:
    """What every layer was given and what it kept of its own."""

    injected: dict[str, dict[str, str]] = field(default_factory=dict)
    kept: dict[str, dict[str, str]] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)

    def note(self, call: Call, put: Mapping[str, str], kept: Mapping[str, str], *, isolates: bool) -> None:
        """Of one call."""
        name = called(call)
        self.injected.setdefault(name, {}).update(put)
        self.kept.setdefault(name, {}).update(kept)
        if isolates:
            self.whole.add(name)

    def sentence(self) -> str:
        """All of it in short."""
        count = len(self.injected)
        return f"{len(self.whole)} of {count} layers were given the reference's inputs"

    def as_json(self, injection: Injection, count: int, *, training: bool) -> dict[str, Any]:
        """All of it, for the manifest."""
        layers = {
            name: {"injected": put, "kept": self.kept.get(name, {}), "isolated": name in self.whole}
            for name, put in self.injected.items()
        }
        beside = {"weights": "the candidate's own", "random numbers": _of_chance(training)}
        about = {"reference": injection.dump, "at": injection.at, "rules": injection.rules, "passes": count}
        return {**about, "beside": beside, "layers": layers}


def _of_chance(training: bool) -> str:
    return "the run's own, and drawn: the model is in training mode" if training else "none are drawn in eval mode"


def called(call: Call) -> str:
    """One call for a person: the layer, which call where there are several, which step."""
    name = f"{call.layer}({call.call})" if call.call > 1 else call.layer
    return f"{name} step {call.step}" if call.step else name


@dataclass
class Injector:
    """Puts the reference's tensors in the place of a run's own, where a pass says so."""

    donors: Donors
    wanted: Pass
    report: Report

    def arguments(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Arguments, Put]:
        """What a layer is to be called with."""
        if call.layer not in self.wanted.inputs:
            return (args, kwargs), NOTHING
        found = find_arguments(args, kwargs, cache_layer=call.cache_layer)
        values, put, kept = self._values(call, found.tensors)
        kept |= {port: f"a {kind}, which is no tensor" for port, kind in _objects(found.shape)}
        is_isolated = isolates(_float_inputs(found.tensors), put)
        self.report.note(call, put, kept, isolates=is_isolated)
        swapped = swap_arguments(args, kwargs, values, cache_layer=call.cache_layer) if values else (args, kwargs)
        return swapped, Put(put, is_isolated)

    def output(self, call: Call, output: Any) -> tuple[Any, Put]:
        """What a layer is to give."""
        if call.layer not in self.wanted.outputs:
            return output, NOTHING
        values, put, kept = self._values(call, find(output, "output").tensors)
        self.report.note(call, put, kept, isolates=bool(put))
        return swap(output, "output", values), Put(put, bool(put))

    def _values(
        self, call: Call, own: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, str], dict[str, str]]:
        """The tensors to put in, their entries, and why others were kept, each by port."""
        values = _Values()
        put: dict[str, str] = {}
        kept: dict[str, str] = {}
        for port, tensor in own.items():
            donor = self.donors.get(EntryKey(call.entry_name(port), call.step, call.call))
            value = value_or_why(donor)
            if donor is None or isinstance(value, str):
                kept[port] = str(value)
            elif tuple(value.shape) != tuple(tensor.shape):
                kept[port] = f"{donor.name} is of shape {list(value.shape)}, and {list(tensor.shape)} is wanted now"
            else:
                values.add(port, value, tensor)
                put[port] = donor.name
        return values.tensors, put, kept


@dataclass
class _Values:
    """The tensors to put in; in the place of one that stood at several ports one again, if it may be.

    Modules look at that: attention whose query is its key computes both in one go, and rounds otherwise.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    _made: list[tuple[Array, Tensor, Tensor]] = field(default_factory=list)

    def add(self, port: str, value: Array, own: Tensor) -> None:
        """Put values into the place of a run's own tensor, with its type, device and strides."""
        for before, replaced, made in self._made:
            if replaced is own and before.tobytes() == value.tobytes():
                self.tensors[port] = made
                return
        cast = to_tensor(value).to(dtype=own.dtype, device=own.device)
        self.tensors[port] = cast if own.is_contiguous() else laid_out(cast, own.stride())
        self._made.append((value, own, self.tensors[port]))


def _float_inputs(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    return {port: tensor.numel() for port, tensor in tensors.items() if tensor.is_floating_point()}


def _objects(shape: Any, port: str = "input") -> list[tuple[str, str]]:
    """Arguments that are no tensors and hold none we look into, by port, with their class."""
    if not isinstance(shape, dict):
        return []
    if set(shape) == {"args", "kwargs"}:
        parts = {**{str(k): part for k, part in enumerate(shape["args"])}, **shape["kwargs"]}
        return [found for key, part in parts.items() for found in _objects(part, f"{port}_{key}")]
    return [(port, str(shape["object"]))] if "object" in shape else []
