"""Pairing: which entry of the candidate is the same tensor as which entry of the reference.

The steps, each on what the earlier ones left: the user's maps; operations, by their sequence; names that the rules make
equal, with the same port, step and call; ports that one side numbers and the other names; learned maps of one input to
one input; maps of presets, for layers that one side fuses; all other learned maps, and those that values prove. Maps
that were learned against names come before names. What has no partner is an orphan and is listed, never dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import filterfalse
from typing import Literal, Protocol

from tensordiff.align.compatibility import could_be_same, could_be_same_port, fits_whole, is_shared_by_rows
from tensordiff.align.coverage import Coverage
from tensordiff.align.index import (
    ComputedTensor,
    Index,
    have_duplicate_calls,
    parts_of,
    port_of,
    ranks_of,
    view_on,
    viewed,
)
from tensordiff.align.maps import fitting, general, is_of_inputs, mapped, resolve_map
from tensordiff.align.operations import is_operation, pair_operations
from tensordiff.align.order import Order, compare_order, in_execution_order
from tensordiff.align.presets import choose
from tensordiff.align.rules.file import RulesFile
from tensordiff.align.rules.rule import RuleSet, switched_off
from tensordiff.align.rules.tables import MapRule, ViewRule
from tensordiff.dump.model import Dump, Entry
from tensordiff.dump.ranks.joined_tensor import JoinedRanks
from tensordiff.util.slices import SlicedSet, items_in_order, release, set_for

_MADE_OF_OTHERS = (ComputedTensor, JoinedRanks)
"""Types of stored tensors that are made of other entries."""
PairedBy = Literal["name", "rule", "map", "fused", "value", "learned"]


@dataclass(slots=True, unsafe_hash=True)
class Pair:
    """A reference entry and the candidate entry held to be the same tensor.

    It is never changed, but not frozen: a frozen one takes thrice as long to make.
    """

    index: int
    name: str
    reference: Entry
    candidate: Entry
    by: PairedBy

    @property
    def views(self) -> list[str]:
        """Ranks that were joined, and views that a rule asked for.

        Views that follow from shapes are added by measuring.
        """
        if type(self.reference.stored) not in _MADE_OF_OTHERS and type(self.candidate.stored) not in _MADE_OF_OTHERS:
            return []  # the usual case, and there may be very many
        reference, candidate = (view_on(side) or ranks_of(side) for side in (self.reference, self.candidate))
        if not reference and not candidate:
            return []
        return [view for view in (reference, f"candidate {candidate}" if candidate else "") if view]

    @property
    def is_viewed(self) -> bool:
        """Whether a rule asked for a view."""
        return bool(view_on(self.reference) or view_on(self.candidate))


@dataclass(frozen=True)
class Alignment:
    """All pairs in execution order, plus the orphans."""

    pairs: tuple[Pair, ...] = field(repr=False)
    reference_orphans: tuple[Entry, ...] = field(repr=False)
    candidate_orphans: tuple[Entry, ...] = field(repr=False)
    order: Order
    order_from: str
    """What the order of the pairs was taken from."""
    learned_usage: Mapping[MapRule, int] = field(default_factory=dict, repr=False)
    """How many pairs each learned map makes."""

    @cached_property
    def coverage(self) -> Coverage:
        """How much of both sides is paired."""
        return Coverage.of(self.pairs, self.pairs, self.reference_orphans, self.candidate_orphans)


LAST_TOKEN = ViewRule(r"(^|\.)(lm_head|norm)$", reference="last_token")
"""An engine that was not asked for all logits computes only those of the last token."""


@dataclass(frozen=True)
class AlignmentPlan:
    """How to pair two dumps: rules for names, and maps and views of the user and of presets."""

    rules: RuleSet = field(default_factory=RuleSet)
    maps: tuple[MapRule, ...] = ()
    """The user's maps, which beat every rule."""
    preset_maps: tuple[MapRule, ...] = ()
    views: tuple[ViewRule, ...] = ()
    """The user's views, applied even if shapes agree without them."""
    fallback_views: tuple[ViewRule, ...] = (LAST_TOKEN,)
    proven_maps: tuple[MapRule, ...] = ()
    """Maps accepted because the values are equal."""
    learned_maps: tuple[MapRule, ...] = ()
    """Maps learned from values and structure (``learn``)."""
    learned_over_names: tuple[MapRule, ...] = ()
    """Learned maps that are tried before names."""
    namesakes: frozenset[str] = frozenset()
    """Layers of the candidate whose names mean something else in the reference."""

    @classmethod
    def for_dumps(cls, reference: Dump, candidate: Dump, own: RulesFile | None = None) -> AlignmentPlan:
        """The user's own rules, then the presets that fit the names of two dumps."""
        own = own or RulesFile()
        chosen = choose(reference, candidate, own.presets)
        rules = RuleSet((*own.rules, *switched_off(chosen.rules.rules, own.rules)))
        maps = tuple(general(rule) for rule in own.maps if rule.on)
        return cls(rules, maps, chosen.maps, tuple(view for view in own.views if view.on))

    def with_learned(self, learned: LearnedMaps) -> AlignmentPlan:
        """The plan with the maps that were learned."""
        over = tuple(rule.map for rule in learned.rules if rule.beats_names)
        rest = tuple(rule.map for rule in learned.rules if not rule.beats_names)
        apart = frozenset(one.layer for one in learned.namesakes)
        return replace(self, learned_over_names=over, learned_maps=rest, namesakes=apart)


class LearnedMap(Protocol):
    """What a plan needs to know about a learned rule."""

    @property
    def map(self) -> MapRule:
        """The rule."""

    @property
    def beats_names(self) -> bool:
        """Whether it is tried before names."""


class LearnedNamesake(Protocol):
    """What a plan needs to know about a layer that shares its name with a different one."""

    @property
    def layer(self) -> str:
        """The candidate's layer."""


class LearnedMaps(Protocol):
    """What a plan needs to know about everything that was learned."""

    @property
    def rules(self) -> Sequence[LearnedMap]:
        """The rules."""

    @property
    def namesakes(self) -> Sequence[LearnedNamesake]:
        """Layers of the candidate whose names mean something else in the reference."""


def align(reference: Dump, candidate: Dump, plan: AlignmentPlan | None = None) -> Alignment:
    """Pair two dumps."""
    plan = plan or AlignmentPlan.for_dumps(reference, candidate)
    sides = Index(reference, plan.rules, "reference"), Index(candidate, plan.rules, "candidate", plan.namesakes)
    matcher = _Matcher(*sides)
    matcher.take_all("map", mapped(plan.maps, *sides))
    matcher.take_all("rule", pair_operations(*sides))
    matcher.take_learned_over_names(plan.learned_over_names)
    overruled = frozenset(matcher.used_reference) if plan.learned_over_names else frozenset()
    matcher.take_named()
    if matcher.has_orphans:
        matcher.take_all("map", _inputs_of_mapped(matcher))
        matcher.take_all("rule", _pair_numbered_ports(matcher))
        matcher.take_learned(filter(is_of_inputs, plan.learned_maps), only_orphans=True)
        matcher.take_all("fused", mapped(plan.preset_maps, *sides), only_orphans=True)
        matcher.take_learned(filterfalse(is_of_inputs, plan.learned_maps), only_orphans=True)
        matcher.take_all("value", mapped(plan.proven_maps, *sides), only_orphans=True)
        matcher.take_all("rule", _partial_calls((*plan.views, *plan.fallback_views), matcher, overruled))
    alignment = matcher.alignment(plan)
    matcher.release()
    return alignment


class _Matcher:
    """The pairs found so far, and the entries in use on each side."""

    def __init__(self, reference: Index, candidate: Index) -> None:
        self.reference, self.candidate = reference, candidate
        self.pairs: list[tuple[Entry, Entry, PairedBy]] = []
        self.used_reference: set[int] | SlicedSet[int] = set_for(len(reference.dump))
        self.used_candidate: set[int] | SlicedSet[int] = set_for(len(candidate.dump))
        self._only_parts: set[int] = set()
        """Entries of either side, by id, that are in pairs only as parts of expressions."""

        self.learned_usage: dict[MapRule, int] = {}

    @property
    def has_orphans(self) -> bool:
        """Whether an entry of either side is not in a pair yet."""
        sides = (self.reference, self.used_reference), (self.candidate, self.used_candidate)
        return any(len(used) < len(index.dump) for index, used in sides)

    def is_free(self, reference: Entry | None, candidate: Entry | None) -> bool:
        """Whether neither entry is in a pair yet."""
        return (reference is None or id(reference) not in self.used_reference) and (
            candidate is None or id(candidate) not in self.used_candidate
        )

    def take(self, reference: Entry, candidate: Entry, by: PairedBy) -> None:
        """Pair two entries."""
        is_fused = by == "value" and any(len(list(parts_of(side))) > 1 for side in (reference, candidate))
        self.pairs.append((reference, candidate, "fused" if is_fused else by))
        for side, used in ((reference, self.used_reference), (candidate, self.used_candidate)):
            for part in parts_of(side):
                one = id(part)
                if part is side:
                    self._only_parts.discard(one)
                elif one not in used:
                    self._only_parts.add(one)
                used.add(one)

    def take_all(self, by: PairedBy, pairs: Iterable[tuple[Entry, Entry]], *, only_orphans: bool = False) -> None:
        """Take the pairs whose entries are free. Parts of a fused entry may also be in pairs of their own."""
        for reference, candidate in pairs:
            wanted = (reference, candidate)
            if only_orphans and not any(_is_whole_orphan(self, side) for side in wanted):
                continue
            if all(self.is_free(r, c) for r, c in _used_up(reference, candidate)):
                self.take(reference, candidate, by)

    def take_learned(self, maps: Iterable[MapRule], *, only_orphans: bool = False) -> None:
        """Take the pairs of learned maps whose shapes agree, and count them."""
        for rule in maps:
            before = len(self.pairs)
            made = resolve_map(rule, self.reference, self.candidate)
            self.take_all("learned", fitting(made), only_orphans=only_orphans)
            self.learned_usage[rule] = len(self.pairs) - before

    def take_learned_over_names(self, maps: Iterable[MapRule]) -> None:
        """The same before names are tried.

        A part of the candidate's tensor may then no longer be paired by its name.
        """
        before = len(self.pairs)
        self.take_learned(maps)
        self._only_parts -= {id(part) for _, candidate, _ in self.pairs[before:] for part in parts_of(candidate)}

    def take_named(self) -> None:
        """Take the entries whose names the rules make equal; a part of an expression may have its own pair, too."""
        theirs, only_parts = self.candidate.calls, self._only_parts
        used_reference, used_candidate = self.used_reference, self.used_candidate
        for key, calls in items_in_order(self.reference.calls):
            others = theirs.get(key)
            if others is None or is_operation(key[0]):
                continue
            is_single = len(calls) == len(others) == 1 and not calls[0].is_input  # as nearly all are
            for reference, candidate in ((calls[0], others[0]),) if is_single else _pair_calls(calls, others):
                ours, other = id(reference), id(candidate)
                is_ours_free = ours not in used_reference or ours in only_parts
                if is_ours_free and (other not in used_candidate or other in only_parts):
                    self.pairs.append((reference, candidate, "name" if reference[0] == candidate[0] else "rule"))
                    used_reference.add(ours)
                    used_candidate.add(other)
                    if only_parts:
                        only_parts -= {ours, other}

    def _names(self, pairs: Iterable[tuple[Entry, Entry, PairedBy]]) -> Iterator[str]:
        """A name for each pair: canonical, or its own if that is not unique; for a fusion, the fused layer's."""
        own_names, canonical = self.reference.own_names, self.reference.canonical
        for reference, candidate, _ in pairs:
            is_fused = isinstance(reference.stored, ComputedTensor) and len(reference.stored.entries) > 1
            name = None if is_fused else own_names.get(id(reference))
            if is_fused:
                port = f"-{candidate.port}" if candidate.is_input else ""
                name = f"{self.candidate.canonical(candidate)}{port}"
            yield name or canonical(reference)

    def alignment(self, plan: AlignmentPlan) -> Alignment:
        """All pairs in execution order, and the orphans."""
        in_order, order_from = in_execution_order(self.reference.dump, self.candidate.dump, self.pairs)
        pairs = (
            Pair(k, name, *pair) for k, (name, pair) in enumerate(zip(self._names(in_order), in_order, strict=True))
        )
        return Alignment(
            tuple(map(_view_applier(plan), pairs)),
            tuple(entry for entry in self.reference.dump.entries if id(entry) not in self.used_reference),
            tuple(entry for entry in self.candidate.dump.entries if id(entry) not in self.used_candidate),
            compare_order(self.reference.dump, self.candidate.dump, in_order),
            order_from,
            self.learned_usage,
        )

    def release(self) -> None:
        """Free what the alignment was made from."""
        release(self.pairs, self.used_reference, self.used_candidate)
        self.reference.release()
        self.candidate.release()


def _used_up(reference: Entry, candidate: Entry) -> Iterator[tuple[Entry | None, Entry | None]]:
    """The entries that a pair uses up; parts of an expression may be used by other pairs, too."""
    yield (reference if list(parts_of(reference)) == [reference] else None), None
    yield None, (candidate if list(parts_of(candidate)) == [candidate] else None)


def _is_whole_orphan(matcher: _Matcher, entry: Entry) -> bool:
    """Whether an entry, or every part of an expression, has no pair yet."""
    return all(matcher.is_free(part, part) for part in parts_of(entry))


# --- names ---------------------------------------------------------------------------------------


def _pair_calls(calls: Sequence[Entry], others: Sequence[Entry]) -> Iterable[tuple[Entry, Entry]]:
    """Pair calls by number; a single call with the last fitting one of the other side. Inputs must always fit."""
    has_duplicates = have_duplicate_calls(calls) or have_duplicate_calls(others)
    pairs = _by_spelling(calls, others) if has_duplicates else _by_number(calls, others)
    return [(r, c) for r, c in pairs if not r.is_input or could_be_same(r, c) or is_shared_by_rows(r, c)]


def _by_spelling(calls: Sequence[Entry], others: Sequence[Entry]) -> Iterable[tuple[Entry, Entry]]:
    """If several names mean one call, pair equal spellings first and the others by number."""
    theirs: dict[str, list[Entry]] = defaultdict(list)
    for other in reversed(others):
        theirs[other.name].append(other)
    alike = [(call, theirs[call.name].pop()) for call in calls if theirs.get(call.name)]
    taken = {id(entry) for pair in alike for entry in pair}
    left, right = ([entry for entry in side if id(entry) not in taken] for side in (calls, others))
    return [*alike, *_by_number(left, right)]


def _by_number(calls: Sequence[Entry], others: Sequence[Entry]) -> Iterable[tuple[Entry, Entry]]:
    if len(calls) == len(others):
        return zip(calls, others, strict=True)
    if 1 in (len(calls), len(others)):
        fitting = [(r, c) for r in calls for c in others if could_be_same(r, c)]
        return fitting[-1:] or list(zip(calls[:1], others[:1], strict=False))
    numbered = {other.call: other for other in others}
    return [(call, numbered[call.call]) for call in calls if call.call in numbered]


def _pair_numbered_ports(matcher: _Matcher) -> Iterator[tuple[Entry, Entry]]:
    """Pair ports that one side numbers and the other names, if shapes leave one choice on either side."""
    for key, entries in matcher.reference.layers.items():
        if is_operation(key[0]):
            continue  # paired by their sequence or not at all
        others = matcher.candidate.layers.get(key, [])
        ours = [entry for entry in entries if matcher.is_free(entry, None)]
        theirs = [entry for entry in others if matcher.is_free(None, entry)]
        for reference in ours if theirs else []:
            fitting = [entry for entry in theirs if could_be_same_port(reference, entry)]
            if len(fitting) != 1 or sum(could_be_same_port(entry, fitting[0]) for entry in ours) != 1:
                continue
            if reference.is_input or (_only_output(reference, entries) and _only_output(fitting[0], others)):
                yield reference, fitting[0]


def _inputs_of_mapped(matcher: _Matcher) -> Iterator[tuple[Entry, Entry]]:
    """Pair the inputs of layers whose output a map pairs, by port name or if shapes leave one choice."""
    whole = [(r, c) for r, c, by in matcher.pairs if by == "map" and not (r.is_input or c.is_input)]
    plain = [pair for pair in whole if not any(isinstance(side.stored, ComputedTensor) for side in pair)]
    calls = [_inputs_by_call(index.dump.entries) if plain else {} for index in (matcher.reference, matcher.candidate)]
    for reference, candidate in plain:
        ours, theirs = (
            [entry for entry in some.get((one.layer, one.call, one.step), ()) if matcher.is_free(entry, entry)]
            for some, one in zip(calls, (reference, candidate), strict=True)
        )
        for a in ours:
            fitting = [b for b in theirs if could_be_same_port(a, b)]
            named = [b for b in fitting if port_of(b.port) == port_of(a.port)] or fitting
            if len(named) == 1 and (
                len(fitting) > 1 or sum(could_be_same_port(other, named[0]) for other in ours) == 1
            ):
                yield a, named[0]


def _inputs_by_call(entries: Iterable[Entry]) -> dict[tuple[str, int, int], list[Entry]]:
    by_call: dict[tuple[str, int, int], list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.is_input:
            by_call[entry.layer, entry.call, entry.step].append(entry)
    return by_call


def _only_output(entry: Entry, entries: Sequence[Entry]) -> bool:
    """Whether it is its layer's only output: two outputs of one shape may be different things."""
    return not any(e is not entry and e.layer == entry.layer and not e.is_input for e in entries)


def _partial_calls(
    views: Sequence[ViewRule], matcher: _Matcher, overruled: frozenset[int]
) -> Iterator[tuple[Entry, Entry]]:
    """Pair calls of the candidate that compute part of what the reference computed once: the last token's logits.

    ``overruled`` are ids of reference entries whose namesake in the candidate is another tensor.
    """
    for key, others in items_in_order(matcher.candidate.calls):
        calls = matcher.reference.calls.get(key)
        rule = calls and next((v for v in views if v.reference and v.regex.matches(key[0])), None)
        if not calls or not rule or id(calls[0]) in overruled:
            continue
        for other in others:
            partial = viewed(calls[0], str(rule.reference))
            if matcher.is_free(None, other) and not other.is_input and fits_whole(partial, other):
                yield partial, other


# --- views ---------------------------------------------------------------------------------------


def _view_applier(plan: AlignmentPlan) -> Callable[[Pair], Pair]:
    """A function that applies the first matching view to a pair; a built-in view only if shapes need it."""
    view_for = _view_finder((*plan.views, *plan.fallback_views))

    def with_view(pair: Pair) -> Pair:
        rule = view_for(pair.name)
        if rule is None or pair.reference.is_input or pair.is_viewed:
            return pair
        viewed_pair = _with_view(rule, pair)
        if rule in plan.views:
            return viewed_pair
        is_wanted = not could_be_same(pair.reference, pair.candidate) and fits_whole(
            viewed_pair.reference, viewed_pair.candidate
        )
        return viewed_pair if is_wanted else pair

    return with_view


def _view_finder(views: Sequence[ViewRule]) -> Callable[[str], ViewRule | None]:
    """A function that finds the first view that matches a layer's name."""
    tests = [(view.regex.matches, view) for view in views]

    def find(name: str) -> ViewRule | None:
        for matches, view in tests:  # asked for every pair: a generator would cost as much as the test
            if matches(name):
                return view
        return None

    return find


def _with_view(rule: ViewRule, pair: Pair) -> Pair:
    reference = viewed(pair.reference, rule.reference) if rule.reference else pair.reference
    candidate = viewed(pair.candidate, rule.candidate) if rule.candidate else pair.candidate
    return replace(pair, reference=reference, candidate=candidate)
