"""The entries of a dump by their canonical names: every way of pairing looks entries up here.

Expressions become entries here, too. Their values are computed from other entries when they are read, so nothing after
alignment needs to know that ``cat(q, k, v)`` was never in a file.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tensordiff.align.expression import Expression, Name, bindings, evaluate, names, parse_view, plan, view_of
from tensordiff.align.expression.placeholder import placeholders_in
from tensordiff.align.expression.tree import Call
from tensordiff.align.rules.rule import RuleSet, Side
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Dump, Entry, Spec
from tensordiff.dump.names import NameParts, parse_name
from tensordiff.dump.ranks.joined_tensor import JoinedRanks
from tensordiff.util.slices import SlicedDict, dict_for, in_order, release

_NUMBER = re.compile(r"(?<![0-9])[0-9]{1,9}(?![0-9])")

Key = tuple[str, str, int]
"""Canonical layer, port, step."""


def distinct_layer_name(layer: str) -> str:
    """The canonical name of a layer that shares its name with a different tensor of the other side."""
    return f"{layer} (another tensor)"


def port_of(port: str) -> str:
    """A port's canonical name: the first of several outputs and an only output are the same port."""
    return "output" if port == "output_0" else port


@dataclass(frozen=True)
class Index:
    """One side's entries by their canonical names."""

    dump: Dump
    rules: RuleSet
    side: Side
    namesakes: frozenset[str] = frozenset()
    """Layers whose name means another tensor on the other side."""

    def canonical(self, entry: Entry) -> str:
        """The canonical name of an entry's layer."""
        layer, origin = entry.layer, entry.origin
        if layer in self.namesakes:
            return distinct_layer_name(layer)
        return self._rewrite(layer, origin and origin.module_class)

    @cached_property
    def _rewrite(self) -> Callable[[str, str | None], str]:
        return self.rules.rewriter(self.side)

    @cached_property
    def calls(self) -> dict[Key, list[Entry]] | SlicedDict[Key, list[Entry]]:
        """Entries by canonical layer, port and step, each in order of calls."""
        by_name: dict[Key, list[Entry]] | SlicedDict[Key, list[Entry]] = dict_for(len(self.dump))
        rewrite, namesakes = self._rewrite, self.namesakes
        for entry in self.dump.entries:
            _, layer, port, _, step, _, origin = entry
            name = distinct_layer_name(layer) if layer in namesakes else rewrite(layer, origin and origin.module_class)
            key = name, "output" if port == "output_0" else port, step
            if (calls := by_name.get(key)) is None:
                by_name[key] = [entry]
            else:
                calls.append(entry)
        for calls in in_order(by_name):
            if len(calls) > 1:  # rare; dumps without an order are sorted by name, the second call before the first
                calls.sort(key=lambda entry: entry.call)
        return by_name

    def members(self) -> Iterator[list[object]]:
        """The names and lists that were made for look-ups so far, to be freed in slices when the index is gone."""
        for made in [*vars(self).values()]:
            if isinstance(made, SlicedDict):
                yield from ([*made], [*made.in_order()])
            elif isinstance(made, dict):
                yield from ([*made], [*made.values()])

    @cached_property
    def own_names(self) -> dict[int, str]:
        """Distinct names, by id, for entries that share layer, port, step and call."""
        duplicates = [calls for calls in in_order(self.calls) if len(calls) > 1 and have_duplicate_calls(calls)]
        return {
            id(entry): name for calls in duplicates for entry, name in zip(calls, _distinct_names(calls), strict=True)
        }

    @cached_property
    def layers(self) -> dict[tuple[str, int], list[Entry]]:
        """Entries by canonical layer and step."""
        by_layer: dict[tuple[str, int], list[Entry]] = defaultdict(list)
        for entry in self.dump.entries:
            by_layer[self.canonical(entry), entry.step].append(entry)
        return by_layer

    @cached_property
    def steps(self) -> list[int]:
        """The steps of the run."""
        return sorted({entry.step for entry in self.dump.entries})

    def find(self, name: str, step: int) -> Entry | None:
        """The entry that a name in a map means, given as canonical or as in the dump."""
        parts = parse_name(name)
        if entry := self._own_calls.get((parts.layer, port_of(parts.port), step, parts.call)):
            return entry
        for layer in (parts.layer, self.rules.canonical(parts.layer, self.side)):
            calls: list[Entry] = self.calls.get((layer, port_of(parts.port), step), [])
            if entry := next((entry for entry in calls if _is_call(entry, parts, calls)), None):
                return entry
        return None

    @cached_property
    def _own_calls(self) -> dict[tuple[str, str, int, int], Entry]:
        """Entries by layer (as the dump names it), port, step and call; the first if there are several."""
        calls: dict[tuple[str, str, int, int], Entry] = {}
        for entry in self.dump.entries:
            calls.setdefault((entry.layer, port_of(entry.port), entry.step, entry.call), entry)
        for entry, parts in self._spelled:
            calls.setdefault((parts.layer, port_of(parts.port), entry.step, parts.call), entry)
        return calls

    @cached_property
    def _spelled(self) -> list[tuple[Entry, NameParts]]:
        """Entries called ``layer.out`` that are outputs of ``layer``, with what the name alone would mean; for maps."""
        outputs = (entry for entry in self.dump.entries if entry.port == "output" and entry.name.endswith("out"))
        spelled = ((entry, parse_name(entry.name)) for entry in outputs)
        return [(entry, parts) for entry, parts in spelled if parts.layer != entry.layer]

    def numbers(self, pattern: str, step: int) -> list[dict[str, int]]:
        """The numbers that the placeholders of a name may stand for, by the layers and calls that exist."""
        layer = parse_name(pattern).layer
        within = placeholders_in(layer)
        if len(within) == 1:
            one, at = within[0]
            if layer.endswith(")") and layer[at.start - 1 : at.start] == "(":
                texts = [str(call) for call in sorted(self._calls_of_layers.get((layer[: at.start - 1], step), ()))]
            else:
                texts = self._outlines.get((f"{layer[: at.start]}{{}}{layer[at.stop :]}", step), [])
            return [{one.letter: number} for number in map(one.number, texts) if number is not None]
        bound_numbers = (bindings(layer, name) for name, at in self._calls_of_layers if at == step)
        return [bound for bound in bound_numbers if bound is not None]

    @cached_property
    def _outlines(self) -> dict[tuple[str, int], list[str]]:
        """Names with one number replaced by ``{}``, and those numbers: a map with one placeholder is then a lookup."""
        outlines: dict[tuple[str, int], list[str]] = defaultdict(list)
        for name, step in self._calls_of_layers:
            for number in _NUMBER.finditer(name):
                outlines[f"{name[: number.start()]}{{}}{name[number.end() :]}", step].append(number[0])
        return outlines

    @cached_property
    def _calls_of_layers(self) -> dict[tuple[str, int], set[int]]:
        """The calls of each layer in each step, by its canonical name and by its name in the dump."""
        calls: dict[tuple[str, int], set[int]] = defaultdict(set)
        for (layer, step), entries in self.layers.items():
            calls[layer, step].update(entry.call for entry in entries)
        for entry in self.dump.entries:
            calls[entry.layer, entry.step].add(entry.call)
        for entry, parts in self._spelled:
            calls[parts.layer, entry.step].add(parts.call)
        return calls

    def release(self) -> None:
        """Free what was indexed; nothing may be looked up afterwards."""
        release(*(kept for kept in vars(self).values() if isinstance(kept, dict | SlicedDict)))

    def resolve(self, expression: Expression, step: int) -> Entry | None:
        """The entry that an expression means, plain or computed; None if one of its names is missing."""
        resolved = {name: self.find(name, step) for name in names(expression)}
        entries = {name: entry for name, entry in resolved.items() if entry is not None}
        if len(entries) < len(resolved) or not entries:
            return None
        if isinstance(expression, Name):
            return entries[expression.text]
        return computed(expression, entries)


def have_duplicate_calls(calls: Sequence[Entry]) -> bool:
    """Whether several entries mean the same call: ``attn``, ``attn_output`` and ``attn-output``."""
    return len({entry.call for entry in calls}) < len(calls)


def _distinct_names(calls: Sequence[Entry]) -> list[str]:
    by_layer = len({(entry.layer, entry.call) for entry in calls}) == len(calls)
    return [entry.layer if by_layer else entry.name for entry in calls]


def _is_call(entry: Entry, parts: NameParts, calls: list[Entry]) -> bool:
    return entry.call == parts.call or len(calls) == 1


@dataclass(frozen=True)
class ComputedTensor:
    """A tensor that an expression computes from entries."""

    expression: Expression
    entries: Mapping[str, Entry]
    view: str = ""
    """The text of the view, if the expression is a view of one entry."""

    @property
    def spec(self) -> Spec:
        """Shape and dtype, from headers."""
        return plan(self.expression, {name: entry.spec for name, entry in self.entries.items()})

    def read(self) -> Array:
        """The values, computed."""
        return evaluate(self.expression, lambda name: self.entries[name].read())


def computed(expression: Expression, entries: Mapping[str, Entry]) -> Entry:
    """An entry whose values are computed. Layer, step and call are those of its last part."""
    last = list(entries.values())[-1]
    return last._replace(name=str(expression), stored=ComputedTensor(expression, entries))


def viewed(entry: Entry, view: str) -> Entry:
    """An entry with a view applied; it keeps its name."""
    expression = view_of(parse_view(view), Name(entry.name))
    return entry._replace(stored=ComputedTensor(expression, {entry.name: entry}, view))


def view_on(entry: Entry) -> str:
    """The view applied to an entry, or the empty text."""
    return entry.stored.view if isinstance(entry.stored, ComputedTensor) else ""


def part_on(entry: Entry) -> str:
    """What a map takes of one tensor, or the empty text: ``last_token``, ``slice 0 64``."""
    stored = entry.stored
    if not isinstance(stored, ComputedTensor) or stored.view or len(stored.entries) != 1:
        return ""
    functions, left = [], stored.expression
    while isinstance(left, Call):
        functions.append(" ".join((left.function, *left.written_options())))
        left = left.tensors[0]
    return " | ".join(reversed(functions))


def ranks_of(entry: Entry) -> str:
    """How the ranks of a run make an entry, or the empty text: ``cat along 1 of 2 ranks``."""
    return str(entry.stored) if isinstance(entry.stored, JoinedRanks) else ""


def all_parts(entries: Iterable[Entry]) -> Iterator[Entry]:
    """``parts_of`` each of many entries."""
    for entry in entries:
        if isinstance(entry.stored, ComputedTensor):
            yield from parts_of(entry)
        else:  # nearly all
            yield entry


def parts_of(entry: Entry) -> Iterable[Entry]:
    """The entries of the dump behind an entry: itself, or those of its expression."""
    stored = entry.stored
    return stored.entries.values() if isinstance(stored, ComputedTensor) else (entry,)
