"""Which tensor of the reference goes where in the candidate, and how it is laid out there.

Alignment decides this, with its rules and presets: the candidate's recorded entries are aligned with the reference as a
dump would be, and the views of each pair are applied in reverse. An input that the reference did not record may still
have a source: if it is the same tensor as another layer's output, that layer's recorded output is used.
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
    """A tensor of which only shape and type are known: what an engine lists before it injects."""

    spec: Spec

    def read(self) -> Array:
        """Raises ``CaptureError``: there are no values."""
        raise CaptureError("only the shape and type of this tensor were kept")


class InjectionSource(NamedTuple):
    """An entry of the reference whose values go to one tensor of the candidate."""

    pair: Pair
    key: EntryKey
    """The candidate's tensor, or the identical tensor of an earlier entry."""

    @property
    def name(self) -> str:
        """The name of the reference's entry."""
        return self.pair.reference.name

    def array(self) -> Array:
        """The reference's values in the candidate's layout; raises ``CaptureError`` if that is impossible."""
        if isinstance(self.pair.candidate.stored, ComputedTensor):
            return split_computed(self.pair.candidate.stored, self.pair.reference.read())[self.key]
        values, wanted = self.pair.reference.read(), self.pair.candidate.spec
        if reconcile(values.shape, wanted.shape) is None:
            raise CaptureError(f"{self.name} is of shape {list(values.shape)}, and {list(wanted.shape)} is wanted")
        return values.reshape(wanted.shape)


def split_computed(stored: ComputedTensor, values: Array) -> dict[EntryKey, Array]:
    """Split the values of a computed entry among the entries it is computed from.

    Every element of those is numbered, and the expression is evaluated on the numbers. If the result contains each
    number once, the expression only moves elements, and the numbers tell where each one came from. Of a sum of entries,
    the first one gets the whole value and the others zeros: that is how engines carry a residual separately from what
    is added to it.
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
    """Whether an expression is a plain sum of entries, each used once."""
    expression = stored.expression
    if not isinstance(expression, Call) or expression.function != "sum":
        return False
    return len(stored.entries) == len(expression.tensors) and all(isinstance(one, Name) for one in expression.tensors)


@dataclass(frozen=True)
class InjectionSources:
    """The entries of the reference, by the candidate's tensor that they go to."""

    by_key: Mapping[EntryKey, InjectionSource]
    canonical: Mapping[str, str]
    """The candidate's layers by their canonical name."""
    steps: tuple[int, int] = (1, 1)
    """The number of steps of the reference, and of the run."""

    def value(self, key: EntryKey, wanted: Spec) -> tuple[str, Array] | str:
        """The entry for a tensor of the candidate and its values in that tensor's type; or why there are none."""
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
    """Align the candidate's entries with the reference. ``aliases`` tells which inputs are another entry's tensor."""
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
