"""Running a model once and keeping what its modules were given and gave, as ``tensordiff.capture`` would write it.

The hooks, names and steps are those of ``tensordiff.capture``; only the values stay in memory, because the museum makes
thousands of such runs. A test holds the two to the same entries and the same verdict.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from studies.captures import Dumped
from studies.museum.architectures import Architecture
from studies.museum.questions import Question, ask
from tensordiff.capture.engines.torch import facts
from tensordiff.capture.engines.torch.devices.flags import flags
from tensordiff.capture.engines.torch.hooks import CallTensor, Recorder
from tensordiff.capture.engines.torch.tensors import to_array, why_not_copied
from tensordiff.capture.process.layers import ROOT
from tensordiff.dump.model import Dump, Entry, MemoryTensor, Origin

_CACHED = re.compile(r"past_key_values|cache_params|layer_past")


@dataclass
class _Memory:
    """Keeps every tensor."""

    entries: list[Entry] = field(default_factory=list)

    def see(self, seen: CallTensor) -> None:
        if why_not_copied(seen.tensor) is None:
            values = to_array(seen.tensor.detach().clone())
            call, module = seen.call, seen.call.module
            origin = Origin(type(module).__name__, *facts.forward_location(type(module)))
            self.entries.append(
                Entry(seen.key.name, call.layer, seen.port, call.call, call.step, MemoryTensor(values), origin)
            )  # fmt: skip


def record(name: str, model: Any, question: Question, plant: Callable[[Any], None] | None = None) -> Dump:
    """A dump of a run, in memory. A bug is planted after the hooks, which then see what modules hand on unchanged."""
    sink = _Memory()
    recorder = Recorder(sink, counts_steps=True)
    recorder.attach(model)
    try:
        if plant is not None:
            plant(model)
        ask(model, question)
    finally:
        recorder.detach()
    about = {
        "framework": "torch",
        "dtype": facts.dtype_of(model),
        "flags": flags(model),
        "model": facts.about_model(model),
    }
    return Dump(Path(name), "tensordiff", tuple(sink.entries), ordered=True, facts=about)


def layer_of(path: str) -> str:
    """What a dump calls the module at a path of a model."""
    return f"{ROOT}.{path}" if path else ROOT


def is_cached(entry: Entry) -> bool:
    """Whether an entry is part of a cache."""
    return _CACHED.search(entry.port) is not None


def part_of(dump: Dump, dumped: Dumped, architecture: Architecture) -> Dump:
    """What a dump of this kind holds: everything, all outputs, or blocks and what the model gives."""
    if dumped == "everything":
        return dump
    blocks = re.compile(rf"{ROOT}(?:\.{architecture.blocks})?")
    kept = (
        entry
        for entry in dump.entries
        if not entry.is_input and (dumped == "outputs" or (blocks.fullmatch(entry.layer) and not is_cached(entry)))
    )
    return replace(dump, entries=tuple(kept))
