"""One layer alone: rebuilt with its weights, called as a dump recorded it, with its outputs written as a dump.

``rebuild`` makes the arguments of the call. A layer that cannot be called in this way is refused, and so is one that
draws random numbers, because its output then says nothing about it. With a bundle, the layer is exported, so that
anyone can run it with only torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tensordiff.capture.engines.torch.capture import FRAMEWORK, all_facts, begin
from tensordiff.capture.engines.torch.devices.offload import compute_device
from tensordiff.capture.engines.torch.facts import forward_location
from tensordiff.capture.engines.torch.hooks import Call, layer_names
from tensordiff.capture.engines.torch.program import Program, first_device
from tensordiff.capture.engines.torch.replay.arguments import RebuiltCall, RecordedCall, rebuild, shape_of
from tensordiff.capture.engines.torch.replay.bundle import PlainLayer, Repro, write_bundle
from tensordiff.capture.engines.torch.tensors import to_array, to_tensor
from tensordiff.capture.events import Done, Note, Phase, Tell
from tensordiff.capture.job import Job
from tensordiff.capture.process.layers import ROOT, find_layer
from tensordiff.capture.process.output import first_facts
from tensordiff.dump import Dump, open_dump
from tensordiff.dump.native.writer import DumpWriter
from tensordiff.errors import CaptureError, first_line, printable


def replay(program: Program, job: Job, tell: Tell) -> Done:
    """Run one layer of a program on the inputs of a dump."""
    dump = open_dump(Path(str(job.more["dump"])))
    recorded = find_call(dump, str(job.more["layer"]), int(job.more["step"]), int(job.more["call"]))
    _, step = begin(program, job.settings)
    layer = find_layer(recorded.call.layer, layer_names(step.model))
    module = step.model.get_submodule(layer.removeprefix(ROOT).removeprefix("."))
    tell(Phase("replaying", layer))
    rebuilt, outputs = _run(dump, recorded, step.model, layer)
    notes = rebuilt.notes
    facts = first_facts(job, FRAMEWORK) | all_facts(program, step.model, job.settings) | {"notes": notes or None}
    _write(job, facts, recorded, module, outputs)
    for note in notes:
        tell(Note(note))
    if (bundle := job.more.get("bundle")) is not None:
        tell(Phase("writing", str(bundle)))
        expected = {port: to_tensor(entry.read()) for port, entry in recorded.outputs.items()}
        repro = Repro(layer, str(compute_device(module) or first_device(step.model)), module, rebuilt.on_cpu())
        for note in write_bundle(Path(str(bundle)), repro, expected, outputs):
            tell(Note(note))
    return Done(
        job.output, len(outputs), {"layer": recorded.call.layer, "class": type(module).__name__, "notes": notes}
    )


def _run(dump: Dump, recorded: RecordedCall, model: nn.Module, layer: str) -> tuple[RebuiltCall, dict[str, Tensor]]:
    """Call a layer as it was called in the dump; returns the call and its outputs."""
    module = model.get_submodule(layer.removeprefix(ROOT).removeprefix("."))
    try:
        rebuilt = rebuild(dump, recorded, model, layer)
        plain = PlainLayer(module, rebuilt.arguments, whole_caches=layer == ROOT)
        before = _rng_states()
        with torch.no_grad():
            outputs = plain(rebuilt.fresh())
    except CaptureError as error:
        raise CaptureError(f"{printable(layer)}: cannot be called as it was: {error}") from error
    except Exception as error:  # a model may raise anything
        reason = first_line(error)
        raise CaptureError(
            f"{printable(layer)}: called as it was, it raised {type(error).__name__}: {reason:.300}"
        ) from error
    if any(not torch.equal(one, other) for one, other in zip(before, _rng_states(), strict=True)):
        why = ", being in training mode" if module.training else ""
        raise CaptureError(
            f"{printable(layer)}: draws random numbers{why}, and a dump does not hold those that it drew; "
            "capture the model in eval mode"
        )
    return rebuilt, outputs


def _rng_states() -> list[Tensor]:
    """The states of the random number generators, to see whether a layer draws numbers."""
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else ())]
    # Apple's device has a generator of its own (see torch/mps/__init__.py; the tests run on machines without such a
    # device).
    return [*states, torch.mps.get_rng_state()] if torch.backends.mps.is_available() else states


def find_call(dump: Dump, name: str, step: int, number: int) -> RecordedCall:
    """The call of a layer that a user means."""
    try:
        layer = find_layer(name, (entry.layer for entry in dump.entries))
    except CaptureError as error:
        raise CaptureError(f"{printable(dump.path)}: {error}") from error
    call = Call(layer, None, step, number)
    entries = [e for e in dump.entries if e.call_key == call.key]
    inputs = {entry.port: entry for entry in entries if entry.is_input}
    outputs = {entry.port: entry for entry in entries if not entry.is_input}
    if not outputs:
        raise CaptureError(f"{printable(dump.path)}: {printable(layer)} gave nothing in step {step}, call {number}")
    if (shape := shape_of(dump, call)) is None:
        raise CaptureError(
            f"{printable(dump.path)}: does not say how {printable(call.layer)} was called; "
            "capture it with tensordiff capture, with its inputs"
        )
    return RecordedCall(call, inputs, outputs, shape)


def _write(
    job: Job, facts: Mapping[str, Any], recorded: RecordedCall, module: nn.Module, outputs: Mapping[str, Tensor]
) -> None:
    """Write the outputs as a dump that can be compared with the other one."""
    names, call = [entry.name for entry in recorded.inputs.values()], recorded.call
    place = forward_location(type(module))
    with DumpWriter(job.output, facts, overwrite=True) as writer:
        for port, entry in recorded.inputs.items():
            writer.add(call.entry_name(port), entry.read(), step=call.step, call=call.call, injected=[entry.name])
        for port, tensor in outputs.items():
            writer.add(
                call.entry_name(port), to_array(tensor), step=call.step, call=call.call, injected=names,
                module_class=type(module).__name__, source_file=place.file, source_line=place.line,
            )  # fmt: skip
