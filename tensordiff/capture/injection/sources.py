"""Which tensor of the reference goes where in the candidate, and how it is laid out there.

Alignment decides, with its rules and presets: what the candidate was seen to have is aligned with the reference as a
dump would be, and the views of each pair are applied backwards. An input that the reference did not record may still
have a source: where it is the very tensor that another layer gave, that layer's recorded output is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tensordiff.align import AlignmentPlan, Pair, align
from tensordiff.align.expression import Name, evaluate
from tensordiff.align.expression.tree import Call
from tensordiff.align.index import ComputedTensor, parts_of
from tensordiff.align.rules.file import RulesFile, parse_rules_text, read_rules_file
from tensordiff.align.views import reconcile
from tensordiff.capture.settings import Injection
from tensordiff.dump import Dump, Entry, open_dump
from tensordiff.dump.dtypes import Array, is_float
from tensordiff.dump.model import EntryKey, Spec
from tensordiff.errors import CaptureError, DumpError, TensordiffError, printable

UNANSWERED = "no entry of the reference answers it"


class SpecOnly(NamedTuple):
    """A tensor of which shape and type are known, and no values: what an engine lists before it injects."""

    spec: Spec

    def read(self) -> Array:
        """There is nothing to read."""
        raise CaptureError("only the shape and type of this tensor were kept")


class InjectionSource(NamedTuple):
    """An entry of the reference whose values go to one tensor of the candidate."""

    pair: Pair
    key: EntryKey
    """The candidate's tensor, or the one that it is identical with."""

    @property
    def name(self) -> str:
        """The reference's entry, as its dump calls it."""
        return self.pair.reference.name

    def array(self) -> Array:
        """The reference's values as the candidate lays them out; raises a sentence where that is impossible."""
        if isinstance(self.pair.candidate.stored, ComputedTensor):
            return split_computed(self.pair.candidate.stored, self.pair.reference.read())[self.key]
        values, wanted = self.pair.reference.read(), self.pair.candidate.spec
        if reconcile(values.shape, wanted.shape) is None:
            raise CaptureError(f"{self.name} is of shape {list(values.shape)}, and {list(wanted.shape)} is wanted")
        return values.reshape(wanted.shape)


def split_computed(stored: ComputedTensor, values: Array) -> dict[EntryKey, Array]:
    """The values of a computed entry, put back into the entries it is computed from.

    Every element of those is numbered, and the expression evaluated on the numbers. Where that gives each number once,
    the expression only moves elements, and the numbers say where each one came from. A sum of entries is given whole to
    the first of them, and the others are zero: that is how engines carry a residual apart from what is added to it.
    """
    if _is_sum(stored):
        whole, *others = stored.entries.values()
        zeros = {entry.key: np.zeros(entry.spec.shape, values.dtype) for entry in others}
        return {whole.key: values.reshape(whole.spec.shape), **zeros}
    numbered, start = {}, 0
    for name, entry in stored.entries.items():
        size = entry.spec.size
        numbered[name] = np.arange(start, start + size, dtype=np.float64).reshape(entry.spec.shape)
        start += size
    where = evaluate(stored.expression, lambda name: numbered[name]).reshape(-1)
    if where.size != start or not np.array_equal(np.sort(where), np.arange(start)):
        raise CaptureError(f"{stored.expression} cannot be inverted")
    flat = np.empty(start, values.dtype)
    flat[where.astype(np.int64)] = values.reshape(-1)
    return {stored.entries[name].key: flat[one.astype(np.int64)] for name, one in numbered.items()}


def _is_sum(stored: ComputedTensor) -> bool:
    """Whether an expression is a sum of entries as they are, each of them once."""
    expression = stored.expression
    if not isinstance(expression, Call) or expression.function != "sum":
        return False
    return len(stored.entries) == len(expression.tensors) and all(isinstance(one, Name) for one in expression.tensors)


@dataclass(frozen=True)
class InjectionSources:
    """The reference's entries by the candidate's tensor they go to."""

    by_key: Mapping[EntryKey, InjectionSource]
    canonical: Mapping[str, str]
    """The candidate's layers by the name that both sides would use."""
    steps: tuple[int, int] = (1, 1)
    """How many steps the reference has, and the run."""

    def value(self, key: EntryKey, wanted: Spec) -> tuple[str, Array] | str:
        """The entry for a tensor of the candidate and its values in the tensor's own type; or why there are none."""
        source = self.by_key.get(key)
        if source is None:
            return UNANSWERED
        try:
            values = source.array()
        except (DumpError, TensordiffError) as error:
            return str(error)
        if values.shape != wanted.shape:
            return f"{source.name} is of shape {list(values.shape)}, and {list(wanted.shape)} is wanted"
        if is_float(values.dtype) != is_float(wanted.dtype):
            return f"{source.name} is {values.dtype.name}, and {wanted.dtype.name} is wanted"
        return source.name, np.asarray(values, wanted.dtype, order="C")


def find_sources(
    injection: Injection, entries: Sequence[Entry], aliases: Mapping[EntryKey, EntryKey]
) -> InjectionSources:
    """Align the candidate's entries with the reference. ``aliases`` says which inputs are another entry's tensor."""
    reference = _open(injection)
    candidate = Dump(Path("candidate"), "seen", tuple(entries), ordered=True)
    plan = AlignmentPlan.for_dumps(reference, candidate, _rules(injection))
    alignment = align(reference, candidate, plan)
    if not alignment.pairs:
        raise CaptureError(
            f"{printable(injection.dump)}: nothing in it answers a layer of the candidate; is it of the same model?"
        )
    by_key = {source.key: source for pair in alignment.pairs for source in _sources(pair)}
    for key, alias in aliases.items():
        if key not in by_key and (source := by_key.get(alias)) is not None:
            by_key[key] = source._replace(key=alias)
    names = {plan.rules.canonical(e.layer, "candidate", e.origin and e.origin.module_class): e.layer for e in entries}
    return InjectionSources(by_key, names, (_steps(reference.entries), _steps(entries)))


def _steps(entries: Sequence[Entry]) -> int:
    return 1 + max((entry.step for entry in entries), default=0)


def _sources(pair: Pair) -> Iterator[InjectionSource]:
    for part in parts_of(pair.candidate):
        yield InjectionSource(pair, part.key)


def _open(injection: Injection) -> Dump:
    reference = open_dump(Path(injection.dump))
    if not reference.entries:
        raise CaptureError(f"{printable(injection.dump)}: holds no tensor that could be injected")
    return reference


def _rules(injection: Injection) -> RulesFile:
    if injection.rules_text is not None:
        return parse_rules_text(injection.rules_text, injection.rules or "rules")
    return read_rules_file(Path(injection.rules)) if injection.rules else RulesFile()
