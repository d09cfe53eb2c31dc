"""Which of the reference's tensors goes where in the candidate, and how it is laid out there.

The core's own alignment decides, rules and presets included: what the candidate was seen to have in a first pass
is aligned with the reference as a dump would be. The views of a pair are then gone backwards. An input that the
reference did not record may still be had: where it is the very tensor that another layer gave, that layer's
recorded output will do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tensordiff.align import AlignmentPlan, Pair, align
from tensordiff.align.expression import evaluate
from tensordiff.align.index import ComputedTensor, parts_of
from tensordiff.align.rules.file import RulesFile, read_rules_file, read_text
from tensordiff.align.views import reconcile
from tensordiff.capture.settings import Injection
from tensordiff.dump import Dump, Entry, open_dump
from tensordiff.dump.dtypes import Array, is_float
from tensordiff.dump.model import EntryKey
from tensordiff.errors import CaptureError, DumpError, TensordiffError, printable

UNANSWERED = "no entry of the reference answers it"


class Donor(NamedTuple):
    """An entry of the reference for one place of the candidate."""

    pair: Pair
    place: EntryKey

    @property
    def name(self) -> str:
        """The reference's entry, as its dump calls it."""
        return self.pair.reference.name

    def array(self) -> Array:
        """The reference's values as the candidate lays them out; raises a sentence where that cannot be."""
        if isinstance(self.pair.candidate.stored, ComputedTensor):
            return scattered(self.pair.candidate.stored, self.pair.reference.read())[self.place]
        found, wanted = self.pair.reference.read(), self.pair.candidate.spec
        if reconcile(found.shape, wanted.shape) is None:
            raise CaptureError(f"{self.name} is of shape {list(found.shape)}, and {list(wanted.shape)} is wanted")
        if is_float(found.dtype) != is_float(wanted.dtype):
            raise CaptureError(f"{self.name} is {found.dtype.name}, and {wanted.dtype.name} is wanted")
        return found.reshape(wanted.shape)


def scattered(stored: ComputedTensor, values: Array) -> dict[EntryKey, Array]:
    """A computed entry's values, put back into the entries it is computed from.

    Every element of those is numbered and the expression worked out on the numbers: where that gives each number
    once, it only moves elements about, and where each went is where it must come back from.
    """
    numbered, start = {}, 0
    for name, entry in stored.entries.items():
        size = entry.spec.size
        numbered[name] = np.arange(start, start + size, dtype=np.float64).reshape(entry.spec.shape)
        start += size
    where = evaluate(stored.expression, lambda name: numbered[name]).reshape(-1)
    if where.size != start or not np.array_equal(np.sort(where), np.arange(start)):
        raise CaptureError(f"{stored.expression} cannot be gone backwards")
    flat = np.empty(start, values.dtype)
    flat[where.astype(np.int64)] = values.reshape(-1)
    return {place_of(stored.entries[name]): flat[one.astype(np.int64)] for name, one in numbered.items()}


def place_of(entry: Entry) -> EntryKey:
    """What tells an entry from others."""
    return EntryKey(entry.name, entry.step, entry.call)


@dataclass(frozen=True)
class Donors:
    """The reference's entries by the candidate's place they go to."""

    by_place: Mapping[EntryKey, Donor]
    canonical: Mapping[str, str]
    """The candidate's layers by the name both sides would use."""

    def get(self, place: EntryKey) -> Donor | None:
        """What goes there, if anything."""
        return self.by_place.get(place)


def find_donors(injection: Injection, seen: list[Entry], same: Mapping[EntryKey, EntryKey]) -> Donors:
    """Align what was seen of the candidate with the reference. ``same`` says which inputs are another's tensor."""
    reference = _open(injection)
    candidate = Dump(Path("candidate"), "seen", tuple(seen), ordered=True)
    plan = AlignmentPlan.for_dumps(reference, candidate, _rules(injection))
    alignment = align(reference, candidate, plan)
    if not alignment.pairs:
        raise CaptureError(
            f"{printable(injection.dump)}: nothing in it answers a layer of the candidate; is it of the same model?"
        )
    donors = {donor.place: donor for pair in alignment.pairs for donor in _donors(pair)}
    for place, source in same.items():
        if place not in donors and (donor := donors.get(source)) is not None:
            donors[place] = donor._replace(place=source)
    names = {plan.rules.canonical(e.layer, "candidate", e.origin and e.origin.module_class): e.layer for e in seen}
    return Donors(donors, names)


def isolates(float_inputs: Mapping[str, int], injected: Collection[str]) -> bool:
    """Whether a call's output depends only on injected values: its largest floating point input was injected.

    ``float_inputs`` has the number of elements of each floating point input of the call, ``injected`` the ports that
    were given the reference's values. Masks, angles and scales are smaller than the activations: a call that was given
    only those still carries the error of the layers before it, and says nothing about itself.
    """
    if not float_inputs:
        return bool(injected)
    return max(float_inputs, key=lambda port: float_inputs[port]) in injected


def _donors(pair: Pair) -> Iterator[Donor]:
    for part in parts_of(pair.candidate):
        yield Donor(pair, place_of(part))


def _open(injection: Injection) -> Dump:
    reference = open_dump(Path(injection.dump))
    if not reference.entries:
        raise CaptureError(f"{printable(injection.dump)}: holds no tensor that could be injected")
    return reference


def _rules(injection: Injection) -> RulesFile:
    if injection.rules_text is not None:
        return read_text(injection.rules_text, injection.rules or "rules")
    return read_rules_file(Path(injection.rules)) if injection.rules else RulesFile()


def value_or_why(donor: Donor | None) -> Array | str:
    """A donor's values, or why there are none."""
    if donor is None:
        return UNANSWERED
    try:
        return donor.array()
    except (DumpError, TensordiffError) as error:
        return str(error)
