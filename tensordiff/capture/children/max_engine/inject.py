"""Running a compiled model on the reference's inputs: which values go in where, pass by pass.

What answers what is decided where it is for every framework, in ``donors``; which layers are given theirs in the
same pass, in ``where``. A pass costs one run of the compiled graph and no compilation. An input that has no way in
or no answer keeps the run's own value, and the dump says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensordiff.capture.children.donors import Donors, find_donors, value_or_why
from tensordiff.capture.children.max_engine.graph import Book, Given, Place, Slot
from tensordiff.capture.children.where import Layers, Pass, passes
from tensordiff.capture.settings import Injection
from tensordiff.dump import Entry
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Held, Origin
from tensordiff.dump.names import parse_name
from tensordiff.dump.writer import Place as EntryPlace
from tensordiff.errors import CaptureError, printable

Noted = Sequence[tuple[Place, Array]]
Steps = Mapping[int, Given]
Runs = Callable[[Steps], Iterable[Noted]]
"""Run all steps, given this; what was noted in each."""


@dataclass
class Injected:
    """An injected run: what was noted, and what every layer was given or kept."""

    steps: list[Noted] = field(default_factory=list)
    put: dict[tuple[int, Place], str] = field(default_factory=dict)
    kept: dict[tuple[int, Place], str] = field(default_factory=dict)
    passes: int = 0

    def names(self, step: int, place: Place) -> tuple[str, ...] | None:
        """The reference's entries that a tensor holds, or its layer was given."""
        if place.port.startswith("input"):
            return (self.put[step, place],) if (step, place) in self.put else None
        found = [name for (when, where), name in self.put.items() if when == step and _is_one_call(where, place)]
        return tuple(found) or None

    def answered(self, layer: str) -> str:
        """What the reference calls a layer: the one whose recorded input it was given."""
        names = (name for (_, place), name in self.put.items() if place.layer == layer)
        return parse_name(next(names, layer)).layer

    def sentence(self) -> str:
        """All of it in short."""
        return f"{len(self.put)} inputs were the reference's, {len(self.kept)} the run's own; passes: {self.passes}"

    def as_json(self, injection: Injection) -> dict[str, Any]:
        """All of it, for the manifest."""
        layers: dict[str, Any] = {}
        for what, table in (("injected", self.put), ("kept", self.kept)):
            for (step, place), text in table.items():
                found = layers.setdefault(_called(step, place), {"injected": {}, "kept": {}, "isolated": False})
                found[what][place.port] = text
        for found in layers.values():
            found["isolated"] = bool(found["injected"])
        about = {"reference": injection.dump, "at": injection.at, "rules": injection.rules, "passes": self.passes}
        return {**about, "beside": {"weights": "the candidate's own"}, "layers": layers}


def _is_one_call(one: Place, other: Place) -> bool:
    return (one.layer, one.call) == (other.layer, other.call)


def _called(step: int, place: Place) -> str:
    name = f"{place.layer}({place.call})" if place.call > 1 else place.layer
    return f"{name} step {step}" if step else name


def injected_run(injection: Injection, plain: Sequence[Noted], books: Sequence[Book], run: Runs) -> Injected:
    """Run a model again, on the reference's inputs. ``plain`` is what it did on its own."""
    entries = [entry for step, noted in enumerate(plain) for entry in _entries(step, noted)]
    slots = {slot.place: slot for book in books for slot in book.slots}
    steps = range(len(plain))
    answers = find_donors(injection, entries, _same(slots.values(), steps))
    layers = Layers.of(entries, answers.canonical)
    planned = [_inputs_only(one, layers) for one in passes(injection.at, layers)]
    result = Injected(steps=list(plain), passes=len(planned))
    for book in books:
        result.kept |= {(step, each.place): each.why for each in book.refused for step in steps}
    for one in planned:
        given = _given(result, one, slots, answers, plain)
        for step, noted in enumerate(run(given)):
            result.steps[step] = _merged(result.steps[step], noted, one.written)
    if not result.put:
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
            donor = answers.get(EntryPlace(place.name, step, place.call))
            value = value_or_why(donor)
            if donor is None or isinstance(value, str):
                result.kept[step, place] = str(value)
            elif value.shape != own.shape:
                result.kept[step, place] = f"{donor.name} is of shape {list(value.shape)}, not {list(own.shape)}"
            else:
                given.setdefault(step, {})[place] = value
                result.put[step, place] = donor.name
    return given


def _merged(before: Noted, now: Noted, layers: frozenset[str]) -> Noted:
    """What this pass was for is taken from it; the order is that of execution, the same in all."""
    pairs = zip(before, now, strict=True)
    return [new if new[0].layer in layers else old for old, new in pairs]


def _entries(step: int, noted: Noted) -> Iterable[Entry]:
    for place, array in noted:
        origin = Origin(place.written.module_class)
        yield Entry(place.name, place.layer, place.port, place.call, step, Held(array), origin)


def _same(slots: Iterable[Slot], steps: Iterable[int]) -> dict[EntryPlace, EntryPlace]:
    """Inputs that are the very tensor which stands elsewhere too."""
    return {
        EntryPlace(slot.place.name, step, slot.place.call): EntryPlace(slot.origin.name, step, slot.origin.call)
        for slot in slots
        if slot.origin is not None
        for step in steps
    }
