"""A dump's entries by the names that rules give them: where every way of pairing looks entries up.

Expressions become entries here too: an entry whose values are computed from others when they are
read, so that nothing after alignment needs to know that ``cat(q, k, v)`` never lay in a file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tensordiff.align.expression import Expression, Name, bindings, evaluate, names, parse_view, plan, view_of
from tensordiff.align.expression.tree import LONE_NUMBER, PLACEHOLDER
from tensordiff.align.rules.rule import RuleSet, Side
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Dump, Entry, Spec
from tensordiff.dump.names import NameParts, parse_name

Key = tuple[str, str, int]
"""Canonical layer, port, step."""


def port_of(port: str) -> str:
    """The first of several outputs and the only output are the same port."""
    return "output" if port == "output_0" else port


@dataclass(frozen=True)
class Index:
    """One side's entries under their canonical names."""

    dump: Dump
    rules: RuleSet
    side: Side

    def canonical(self, entry: Entry) -> str:
        """The layer's name as both sides would spell it."""
        return self.rules.canonical(entry.layer, self.side, entry.origin and entry.origin.module_class)

    @cached_property
    def calls(self) -> dict[Key, list[Entry]]:
        """Entries by layer, port and step; the calls of each in order."""
        found: dict[Key, list[Entry]] = defaultdict(list)
        rewrite = self.rules.rewriter(self.side)
        for entry in self.dump.entries:
            _, layer, port, _, step, _, origin = entry
            name = rewrite(layer, origin and origin.module_class)
            found[name, "output" if port == "output_0" else port, step].append(entry)
        for calls in found.values():
            if len(calls) > 1:  # few are; files without an order stand by name, the second call before the first
                calls.sort(key=lambda entry: entry.call)
        return found

    @cached_property
    def own_names(self) -> dict[int, str]:
        """What tells those apart, by id, that are one layer, port, step and call: the layer as it stands, or all."""
        crowds = [calls for calls in self.calls.values() if len(calls) > 1 and say_one_call_twice(calls)]
        return {id(entry): name for calls in crowds for entry, name in zip(calls, _told_apart(calls), strict=True)}

    @cached_property
    def layers(self) -> dict[tuple[str, int], list[Entry]]:
        """Entries by canonical layer and step."""
        found: dict[tuple[str, int], list[Entry]] = defaultdict(list)
        for entry in self.dump.entries:
            found[self.canonical(entry), entry.step].append(entry)
        return found

    @cached_property
    def steps(self) -> list[int]:
        """The steps of the run."""
        return sorted({entry.step for entry in self.dump.entries})

    def find(self, name: str, step: int) -> Entry | None:
        """The entry that a name in a mapping means: canonical or as it stands in the dump."""
        parts = parse_name(name)
        for layer in (parts.layer, self.rules.canonical(parts.layer, self.side)):
            calls = self.calls.get((layer, port_of(parts.port), step), [])
            if found := next((entry for entry in calls if _is_call(entry, parts, calls)), None):
                return found
        return None

    def numbers(self, pattern: str, step: int) -> list[dict[str, int]]:
        """What may stand for the placeholders of a name, by the layers there are."""
        layer = parse_name(pattern).layer
        if layer.count("{") == 1 and (only := PLACEHOLDER.search(layer)):
            numbers = self._outlines.get((layer.replace(only[0], "{}"), step), [])
            return [{only[1]: number} for number in numbers]
        return [found for name, at in self.layers if at == step and (found := bindings(layer, name)) is not None]

    @cached_property
    def _outlines(self) -> dict[tuple[str, int], list[int]]:
        """The numbers that stand in each place of each name: a map with one placeholder is looked up, not tried."""
        outlines: dict[tuple[str, int], list[int]] = defaultdict(list)
        for name, step in self.layers:
            for found in LONE_NUMBER.finditer(name):
                outlines[f"{name[: found.start()]}{{}}{name[found.end() :]}", step].append(int(found[0]))
        return outlines

    def resolve(self, expression: Expression, step: int) -> Entry | None:
        """The entry that an expression is, plain or computed; None if one of its names is not there."""
        found = {name: self.find(name, step) for name in names(expression)}
        entries = {name: entry for name, entry in found.items() if entry is not None}
        if len(entries) < len(found) or not entries:
            return None
        if isinstance(expression, Name):
            return entries[expression.text]
        return computed(expression, entries)


def say_one_call_twice(calls: Sequence[Entry]) -> bool:
    """Whether several names mean the same call: ``attn``, ``attn_output`` and ``attn-output``."""
    return len({entry.call for entry in calls}) < len(calls)


def _told_apart(calls: Sequence[Entry]) -> list[str]:
    by_layer = len({(entry.layer, entry.call) for entry in calls}) == len(calls)
    return [entry.layer if by_layer else entry.name for entry in calls]


def _is_call(entry: Entry, parts: NameParts, calls: list[Entry]) -> bool:
    return entry.call == parts.call or len(calls) == 1


@dataclass(frozen=True)
class ComputedTensor:
    """A tensor that an expression makes of entries."""

    expression: Expression
    entries: Mapping[str, Entry]
    view: str = ""
    """The view it is, where it is one entry seen otherwise."""

    @property
    def spec(self) -> Spec:
        """Shape and dtype, from headers."""
        return plan(self.expression, {name: entry.spec for name, entry in self.entries.items()})

    def read(self) -> Array:
        """The values, computed."""
        return evaluate(self.expression, lambda name: self.entries[name].read())


def computed(expression: Expression, entries: Mapping[str, Entry]) -> Entry:
    """An entry whose values are computed; it stands where the last of its parts stands."""
    last = list(entries.values())[-1]
    return last._replace(name=str(expression), stored=ComputedTensor(expression, entries))


def viewed(entry: Entry, view: str) -> Entry:
    """An entry seen through a view; it keeps its name."""
    expression = view_of(parse_view(view), Name(entry.name))
    return entry._replace(stored=ComputedTensor(expression, {entry.name: entry}, view))


def view_on(entry: Entry) -> str:
    """The view that an entry is seen through, if any."""
    return entry.stored.view if isinstance(entry.stored, ComputedTensor) else ""


def parts_of(entry: Entry) -> Iterable[Entry]:
    """The entries of the dump that an entry is made of: itself, or an expression's."""
    stored = entry.stored
    return stored.entries.values() if isinstance(stored, ComputedTensor) else (entry,)
