"""Running a compiled model on the reference's inputs: which values go in where, pass by pass.

What answers what is decided where it is for every framework, in ``donors``; which layers are given theirs in the
same pass, in ``where``. A pass costs one run of the compiled graph and no compilation. An input that has no way in
or no answer keeps the run's own value, and the dump says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

from tensordiff.capture.engines.max.places import Given, Inlets, Place, Slot
from tensordiff.capture.injection.passes import Layers, Pass, passes
from tensordiff.capture.injection.sources import Donors, find_donors, isolates, value_or_why
from tensordiff.capture.settings import Injection
from tensordiff.dump import Entry
from tensordiff.dump.dtypes import Array, is_float
from tensordiff.dump.model import EntryKey, MemoryTensor, Origin
from tensordiff.dump.names import parse_name
from tensordiff.errors import CaptureError, printable

Noted = Sequence[tuple[Place, Array]]
Steps = Mapping[int, Given]
Runs = Callable[[Steps], Iterable[Noted]]
"""Run all steps, given this; what was noted in each."""


class Call(NamedTuple):
    """One call of a layer."""

    step: int
    layer: str
    number: int
    """Which of the layer's calls in that step."""

    def __str__(self) -> str:
        """For a person: the number and the step only where there are several."""
        name = f"{self.layer}({self.number})" if self.number > 1 else self.layer
        return f"{name} step {self.step}" if self.step else name


Ports = dict[Call, dict[str, str]]
"""A sentence or a name for some of the ports of every call."""


@dataclass
class Injected:
    """An injected run: what was noted, and what every layer was given or kept."""

    steps: list[Noted]
    put: Ports = field(default_factory=dict)
    """The reference's entries that stood in for the run's own inputs."""
    kept: Ports = field(default_factory=dict)
    """Why other inputs were the run's own."""
    float_inputs: dict[Call, dict[str, int]] = field(default_factory=dict)
    """The number of elements of every floating point input that an error could come in by."""
    passes: int = 0

    def is_isolated(self, call: Call) -> bool:
        """Whether what a call gave depends on nothing that the run itself computed before."""
        return isolates(self.float_inputs.get(call, {}), self.put.get(call, {}))

    def names(self, step: int, place: Place) -> tuple[str, ...] | None:
        """The reference's entries that a tensor holds, or its layer was given."""
        call = call_of(step, place)
        put = self.put.get(call, {})
        if place.port.startswith("input"):
            return (put[place.port],) if place.port in put else None
        return tuple(put.values()) if self.is_isolated(call) else None

    def answered(self, layer: str) -> str:
        """What the reference calls a layer: the one whose recorded input it was given."""
        names = (name for call, put in self.put.items() if call.layer == layer for name in put.values())
        return parse_name(next(names, layer)).layer

    def sentence(self) -> str:
        """All of it in short."""
        put, kept = (sum(map(len, table.values())) for table in (self.put, self.kept))
        return f"{put} inputs were the reference's, {kept} the run's own; passes: {self.passes}"

    def as_json(self, injection: Injection) -> dict[str, Any]:
        """All of it, for the manifest."""
        layers = {
            str(call): {
                "injected": self.put.get(call, {}), "kept": self.kept.get(call, {}),
                "isolated": self.is_isolated(call),
            }
            for call in {**self.put, **self.kept}
        }  # fmt: skip
        about = {"reference": injection.dump, "at": injection.at, "rules": injection.rules, "passes": self.passes}
        return {**about, "beside": {"weights": "the candidate's own"}, "layers": layers}


def call_of(step: int, place: Place) -> Call:
    """The call that a tensor was taken or given by."""
    return Call(step, place.layer, place.call)


def injected_run(injection: Injection, plain: Sequence[Noted], inlets: Inlets, run: Runs) -> Injected:
    """Run a model again, on the reference's inputs. ``plain`` is what it did on its own."""
    entries = [entry for step, noted in enumerate(plain) for entry in _entries(step, noted)]
    slots = {slot.place: slot for slot in inlets.slots}
    steps = range(len(plain))
    answers = find_donors(injection, entries, _same(slots.values(), steps))
    layers = Layers.of(entries, answers.canonical)
    planned = [_inputs_only(one, layers) for one in passes(injection.at, layers)]
    result = Injected(list(plain), float_inputs=_float_inputs(plain, inlets), passes=len(planned))
    for step, refused in product(steps, inlets.refused):
        result.kept.setdefault(call_of(step, refused.place), {})[refused.place.port] = refused.why
    for one in planned:
        given = _given(result, one, slots, answers, plain)
        for step, noted in enumerate(run(given)):
            result.steps[step] = _merged(result.steps[step], noted, one.written)
    if not any(result.put.values()):
        raise CaptureError(
            f"{printable(injection.dump)}: nothing of it goes into this model at {printable(injection.at)}; "
            "see what is paired with: tensordiff align"
        )
    return result


def _inputs_only(one: Pass, layers: Layers) -> Pass:
    """A range, with the means there are: all that begins in it is given its inputs, for outputs have no switch."""
    if not one.outputs:
        return one
    begun = [layers.begun[layer] for layer in one.inputs | one.outputs]
    within = frozenset(layer for layer, number in layers.begun.items() if min(begun) <= number <= max(begun))
    return Pass(within, written=one.written)


def _given(
    result: Injected, one: Pass, slots: Mapping[Place, Slot], answers: Donors, plain: Sequence[Noted]
) -> dict[int, dict[Place, Array]]:
    """What to give in a pass, by step."""
    given: dict[int, dict[Place, Array]] = {}
    for step, noted in enumerate(plain):
        for place, own in noted:
            if place.layer not in one.inputs or place not in slots:
                continue
            put, kept = (table.setdefault(call_of(step, place), {}) for table in (result.put, result.kept))
            donor = answers.get(EntryKey(place.name, step, place.call))
            value = value_or_why(donor)
            if donor is None or isinstance(value, str):
                kept[place.port] = str(value)
            elif value.shape != own.shape:
                kept[place.port] = f"{donor.name} is of shape {list(value.shape)}, not {list(own.shape)}"
            else:
                given.setdefault(step, {})[place] = value
                put[place.port] = donor.name
    return given


def _float_inputs(plain: Sequence[Noted], inlets: Inlets) -> dict[Call, dict[str, int]]:
    """The sizes of what may carry an error into a call; a constant, such as a table of frequencies, carries none."""
    constants = {each.place for each in inlets.refused if each.is_constant}
    sizes: dict[Call, dict[str, int]] = {}
    for step, noted in enumerate(plain):
        for place, array in noted:
            if place.port.startswith("input") and is_float(array.dtype) and place not in constants:
                sizes.setdefault(call_of(step, place), {})[place.port] = array.size
    return sizes


def _merged(before: Noted, now: Noted, layers: frozenset[str]) -> Noted:
    """What this pass was for is taken from it; the order is that of execution, the same in all."""
    pairs = zip(before, now, strict=True)
    return [new if new[0].layer in layers else old for old, new in pairs]


def _entries(step: int, noted: Noted) -> Iterable[Entry]:
    for place, array in noted:
        origin = Origin(place.written.module_class)
        yield Entry(place.name, place.layer, place.port, place.call, step, MemoryTensor(array), origin)


def _same(slots: Iterable[Slot], steps: Iterable[int]) -> dict[EntryKey, EntryKey]:
    """Inputs that are the very tensor which stands elsewhere too."""
    return {
        EntryKey(slot.place.name, step, slot.place.call): EntryKey(slot.origin.name, step, slot.origin.call)
        for slot in slots
        if slot.origin is not None
        for step in steps
    }
