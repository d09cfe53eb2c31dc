"""One layer alone: rebuilt with its weights, called as a dump says it was called, its outputs written as a dump.

How a layer was called is in the dump beside its tensors, see ``tensors.Found``. What cannot be written down (a
cache that holds something, an object of the model's own) is called without, and said. With a bundle, the layer is
exported, so that anyone can run it with torch alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tensordiff.align.rules import RuleSet
from tensordiff.capture.children.bundle import write_bundle
from tensordiff.capture.children.capturing import Tell, all_facts, begin, first_facts
from tensordiff.capture.children.facts import place_of
from tensordiff.capture.children.hooks import ROOT, Call
from tensordiff.capture.children.ops import find_layer
from tensordiff.capture.children.program import Program
from tensordiff.capture.children.tensors import copy, find, to_tensor
from tensordiff.capture.events import Done, Note, Phase
from tensordiff.capture.job import Job
from tensordiff.dump import Dump, Entry, open_dump
from tensordiff.dump.writer import DumpWriter
from tensordiff.errors import CaptureError, printable


class Recorded(NamedTuple):
    """One call of a layer, as a dump has it."""

    call: Call
    inputs: dict[str, Entry]
    outputs: dict[str, Entry]
    shape: Any


def replay(program: Program, job: Job, tell: Tell) -> Done:
    """Run one layer of a program on the inputs of a dump."""
    dump = open_dump(Path(str(job.more["dump"])))
    recorded = find_call(dump, str(job.more["layer"]), int(job.more["step"]), int(job.more["call"]))
    _, step = begin(program, job.settings)
    layer = _layer_of(step.model, recorded.call.layer)
    module = step.model.get_submodule(layer.removeprefix(ROOT).removeprefix(".")).eval()
    args, kwargs, notes = arguments(recorded, module)
    tell(Phase("replaying", layer))
    with torch.no_grad():
        output = module(*args, **kwargs)
    given = find(output, "output").tensors
    facts = first_facts(job) | all_facts(program, step.model, job.settings) | {"notes": notes or None}
    _write(job, facts, recorded, module, given)
    for note in notes:
        tell(Note(note))
    if (bundle := job.more.get("bundle")) is not None:
        tell(Phase("writing", str(bundle)))
        expected = {port: to_tensor(entry.read()) for port, entry in recorded.outputs.items()}
        for note in write_bundle(Path(str(bundle)), layer, module, args, kwargs, expected):
            tell(Note(note))
    return Done(job.output, len(given), {"layer": recorded.call.layer, "class": type(module).__name__, "notes": notes})


def find_call(dump: Dump, asked: str, step: int, number: int) -> Recorded:
    """The call of a layer that a person means."""
    layers = dict.fromkeys(entry.layer for entry in dump.entries)
    canonical = RuleSet()
    named = [layer for layer in layers if asked in (layer, layer.removeprefix(f"{ROOT}."))]
    named = named or [layer for layer in layers if canonical.canonical(layer, "reference") == asked]
    named = named or [layer for layer in layers if layer.endswith(f".{asked}")]
    if len(named) != 1:
        why = f"{len(named)} layers are called so; give one whole" if named else "it has no such layer; see inspect"
        raise CaptureError(f"{printable(dump.path)}: {printable(asked)}: {why}")
    call = Call(named[0], None, step, number)
    entries = [e for e in dump.entries if (e.layer, e.step, e.call) == (named[0], step, number)]
    inputs = {entry.port: entry for entry in entries if entry.is_input}
    outputs = {entry.port: entry for entry in entries if not entry.is_input}
    if not outputs:
        raise CaptureError(f"{printable(dump.path)}: {printable(named[0])} gave nothing in step {step}, call {number}")
    return Recorded(call, inputs, outputs, _shape(dump, call))


def _shape(dump: Dump, call: Call) -> Any:
    """How a layer was called, where its dump says so."""
    calls: Any = dump.facts.get("calls") or {}
    number = calls.get("of", {}).get(f"{call.layer}#{call.step}#{call.call}")
    if not isinstance(number, int):
        raise CaptureError(
            f"{printable(dump.path)}: does not say how {printable(call.layer)} was called; "
            "capture it with tensordiff capture, with its inputs"
        )
    return calls["kinds"][number]


def _layer_of(model: nn.Module, layer: str) -> str:
    """The model's own name for a layer of the dump."""
    names = [f"{ROOT}.{name}" if name else ROOT for name, _ in model.named_modules()]
    if layer in names:
        return layer
    rules = RuleSet()
    wanted = rules.canonical(layer, "reference")
    found = [name for name in names if rules.canonical(name, "candidate") == wanted]
    return found[0] if len(found) == 1 else find_layer(model, layer)


def arguments(recorded: Recorded, module: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any], list[str]]:
    """What to call a layer with, and what could not be had."""
    weight = next(module.parameters(), None)
    lost: list[str] = []

    def tensor(port: str) -> Tensor | None:
        if port not in recorded.inputs:
            lost.append(f"{port} was not written")
            return None
        found = to_tensor(recorded.inputs[port].read())
        if weight is None:
            return found
        return found.to(weight.device, weight.dtype if found.is_floating_point() else None)

    def value(shape: Any, port: str) -> Any:
        if not isinstance(shape, dict):
            return shape
        kind, inner = next(iter(shape.items()))
        match kind:
            case "tensor":
                return tensor(str(inner))
            case "tuple" | "list":
                parts = [value(part, f"{port}_{k}") for k, part in enumerate(inner)]
                return tuple(parts) if kind == "tuple" else parts
            case "dict":
                return {key: value(part, f"{port}_{key}") for key, part in inner.items()}
        if any(name.startswith(f"{port}_") for name in recorded.inputs):
            lost.append(f"{port} was a {inner} that held something, and is left out: the result will differ")
        return None

    args = tuple(value(shape, f"input_{k}") for k, shape in enumerate(recorded.shape["args"]))
    kwargs = {key: value(shape, f"input_{key}") for key, shape in recorded.shape["kwargs"].items()}
    return args, kwargs, lost


def _write(
    job: Job, facts: Mapping[str, Any], recorded: Recorded, module: nn.Module, given: Mapping[str, Tensor]
) -> None:
    """What came of it, as a dump that can be compared with the other."""
    names, call = [entry.name for entry in recorded.inputs.values()], recorded.call
    place = place_of(type(module))
    with DumpWriter(job.output, facts, overwrite=True) as writer:
        for port, entry in recorded.inputs.items():
            writer.add(call.entry_name(port), entry.read(), step=call.step, call=call.call, injected=[entry.name])
        for port, tensor in given.items():
            writer.add(
                call.entry_name(port), copy(tensor).array(), step=call.step, call=call.call, injected=names,
                module_class=type(module).__name__, source_file=place.file, source_line=place.line,
            )  # fmt: skip
