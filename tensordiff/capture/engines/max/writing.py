"""What was noted in a run, into a dump: the layers that were asked for, in order, step by step."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tensordiff.capture.engines.max.inject import Injected, Noted
from tensordiff.capture.engines.max.model import Tell
from tensordiff.capture.engines.max.places import Place
from tensordiff.capture.events import Note
from tensordiff.capture.process.disk_space import Budget
from tensordiff.capture.settings import Settings
from tensordiff.dump.writer import DumpWriter


@dataclass(frozen=True)
class Selection:
    """Which of the noted tensors are written."""

    layers: re.Pattern[str] | None = None
    leaves: bool = False
    inputs: bool = True
    max_bytes: int | None = None

    @classmethod
    def of(cls, settings: Settings) -> Selection:
        """What the settings ask for."""
        layers = re.compile(settings.layers) if settings.layers is not None else None
        return cls(layers, settings.leaves, not settings.no_inputs, settings.max_bytes)

    def of_noted(self, noted: Noted) -> Noted:
        """What is to be written of a step."""
        parents = {parent for place, _ in noted for parent in _above(place.layer)} if self.leaves else set[str]()
        return [(place, array) for place, array in noted if self._takes(place) and place.layer not in parents]

    def _takes(self, place: Place) -> bool:
        if not self.inputs and place.port.startswith("input"):
            return False
        return self.layers is None or self.layers.search(place.layer) is not None


def _above(layer: str) -> Iterable[str]:
    while "." in layer:
        layer = layer.rpartition(".")[0]
        yield layer


def write_steps(
    writer: DumpWriter, steps: Iterable[Noted], selection: Selection, injected: Injected | None, tell: Tell
) -> int:
    """Write all steps; gives how many tensors that were."""
    count, budget = 0, Budget(selection.max_bytes)
    for step, noted in enumerate(steps):
        for place, array in selection.of_noted(noted):
            if not budget.allows(array.nbytes):
                continue
            written = place.written
            writer.add(
                place.name, array, step=step, module_class=written.module_class, source_file=written.source_file,
                source_line=written.source_line, injected=injected.names(step, place) if injected else None,
            )  # fmt: skip
            count += 1
    for note in budget.notes():
        tell(Note(note))
    return count
