"""Suggestions: what an orphan may be, found from the values, and which suggestions become maps.

``Suggester`` yields suggestions as they are found, equal tensors first and then fused ones. If tensors are equal at
several levels of a model (a projection's output is its module's output), the inputs of their layers decide.

``accept`` takes those that values prove on every layer they generalize to, with nothing else that fits; a single tensor
is never enough. ``accept_chosen`` takes what the user chose: for every layer, if the values prove every layer, or most
of them up to the first error; otherwise for that layer alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import NamedTuple, TypeVar

from tensordiff.align.by_value import (
    Fingerprint,
    FingerprintIndex,
    Fusions,
    Match,
    Parts,
    by_layer,
    common_tolerance,
    fill,
    fingerprint,
    layouts,
    rel_l2,
)
from tensordiff.align.compatibility import could_be_same
from tensordiff.align.expression import evaluate, evaluate_view, generalize, parse, parse_view, placeholders, view_of
from tensordiff.align.expression.tree import Name, generalize_counts
from tensordiff.align.index import Index
from tensordiff.align.maps import resolve_map
from tensordiff.align.match import Alignment
from tensordiff.align.rules.tables import MapRule
from tensordiff.align.views import reconcile
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import CallKey, Entry
from tensordiff.errors import AlignError

T = TypeVar("T")


@dataclass(frozen=True)
class Suggestion:
    """A map that may hold, and the evidence."""

    reference: str
    candidate: str
    rel_l2: float
    evidence: tuple[str, ...]
    rivals: int = 0
    """How many others fit as well."""
    agreeing: int = 0
    """How many inputs of the two layers agree, too."""

    @property
    def is_only(self) -> bool:
        """Whether nothing else fits as well."""
        return not self.rivals

    @property
    def confidence(self) -> float:
        """From 0 to 1; divided among all that fit equally, and 0.05 less if no input of the layers agrees."""
        return max(0.0, (1.0 if self.agreeing else 0.95) - self.rel_l2) / (1 + self.rivals)

    @cached_property
    def general(self) -> tuple[str, str]:
        """Both sides for every layer: ``{i}`` replaces the layer's number."""
        sides = parse(self.reference), parse(self.candidate)
        made = generalize(*sides)
        reference, candidate = made if made != sides else generalize_counts(*sides)
        return str(reference), str(candidate)


class Support(NamedTuple):
    """What the inputs of two layers say about whether their outputs are the same."""

    agreeing: int
    share: float | None
    """Share of the inputs that agree; None if one of the layers has none."""


@dataclass(frozen=True)
class Suggester:
    """Finds suggestions for the orphans of an alignment."""

    reference: Index
    candidate: Index
    alignment: Alignment
    tick: Callable[[], None] = lambda: None
    """Called for every tensor that is looked at; an exception from it ends the search."""

    def suggestions(self) -> Iterator[Suggestion]:
        """Suggestions, equal tensors first, then fused ones."""
        equal = list(self._equal_orphans())
        yield from (self._suggestion_of(match, agreeing, rivals) for match, agreeing, rivals in equal)
        partners = self._partner_layers(match for match, _, rivals in equal if not rivals)
        done = {id(entry) for match, _, _ in equal for entry in (match.reference, match.candidate)}
        theirs = [s for s in self._orphans(self.alignment.candidate_orphans) if id(s.entry) not in done]
        ours = [s for s in self._orphans(self.alignment.reference_orphans) if id(s.entry) not in done]
        whole, split = Fusions(self._outputs_reference, ours), Fusions(self._outputs_candidate, theirs)
        for find in (Fusions.of, Fusions.slices_of):  # in this order: a fusion also explains its parts
            for targets, fusions, swapped in ((theirs, whole, False), (ours, split, True)):
                for target in (target for target in targets if id(target.entry) not in done):
                    self.tick()
                    fused = self._fused_suggestion(target, find(fusions, target), partners, swapped)
                    if fused is not None:
                        suggestion, parts = fused
                        done |= {id(item.entry) for item in (target, *parts)}
                        yield suggestion

    def _partner_layers(self, proven: Iterable[Match]) -> set[tuple[str, str]]:
        """Layers of the two sides that some pair already connects."""
        pairs = [(pair.reference.layer, pair.candidate.layer) for pair in self.alignment.pairs]
        return {*pairs, *((match.reference.layer, match.candidate.layer) for match in proven)}

    @cached_property
    def _outputs_reference(self) -> list[Fingerprint]:
        return self._fingerprints(e for e in self.reference.dump.entries if not e.is_input)

    @cached_property
    def _outputs_candidate(self) -> list[Fingerprint]:
        return self._fingerprints(e for e in self.candidate.dump.entries if not e.is_input)

    def _fingerprints(self, entries: Iterable[Entry]) -> list[Fingerprint]:
        return [item for entry in self._ticking(entries) if (item := fingerprint(entry)) is not None]

    def _ticking(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            self.tick()
            yield item

    def _orphans(self, entries: Iterable[Entry]) -> list[Fingerprint]:
        known = {id(s.entry): s for s in (*self._outputs_reference, *self._outputs_candidate)}
        return [known[id(entry)] for entry in entries if id(entry) in known]

    # --- equal tensors ---------------------------------------------------------------------------

    def _equal_orphans(self) -> Iterator[tuple[Match, int, int]]:
        """Orphans with equal values, how many inputs of their layers agree, and how many others fit as well."""
        ours = FingerprintIndex(self._orphans(self.alignment.reference_orphans))
        theirs = self._ticking(self._orphans(self.alignment.candidate_orphans))
        matches = [match for target in theirs for match in _best_matches(target, ours)]
        support = {match: self._support(match) for match in self._ticking(matches)}
        for match, rivals in assign(support, self._alikeness):
            yield match, support[match].agreeing, rivals

    def _support(self, match: Match) -> Support:
        """How far the inputs of the two layers agree."""
        r, c = match.reference, match.candidate
        ours = self._inputs_reference.get(r.call_key, [])
        theirs = self._inputs_candidate.get(c.call_key, [])
        if not ours or not theirs:
            return Support(0, None)
        agreeing = sum(any(_is_equal(a, b) for a in ours) for b in theirs)
        return Support(agreeing, agreeing / max(len(ours), len(theirs)))

    @cached_property
    def _inputs_reference(self) -> dict[CallKey, list[Fingerprint]]:
        return by_layer(self._fingerprints(e for e in self.reference.dump.entries if e.is_input))

    @cached_property
    def _inputs_candidate(self) -> dict[CallKey, list[Fingerprint]]:
        return by_layer(self._fingerprints(e for e in self.candidate.dump.entries if e.is_input))

    def _alikeness(self, match: Match) -> float:
        names = self.reference.canonical(match.reference), self.candidate.canonical(match.candidate)
        return SequenceMatcher(None, *names, autojunk=False).ratio()

    def _suggestion_of(self, match: Match, agreeing: int, rivals: int) -> Suggestion:
        reference, candidate = Name(label(self.reference, match.reference)), label(self.candidate, match.candidate)
        viewed = view_of(parse_view(match.view), reference) if match.view else reference
        evidence = [f"values agree to {match.rel_l2:.1e}"]
        if agreeing:
            inputs = "an input of the layer agrees" if agreeing == 1 else f"{agreeing} inputs of the layer agree"
            evidence.append(f"{inputs} too")
        return Suggestion(str(viewed), str(Name(candidate)), match.rel_l2, tuple(evidence), rivals, agreeing)

    # --- fused tensors ---------------------------------------------------------------------------

    def _fused_suggestion(
        self, target: Fingerprint, tried: Iterable[tuple[str, Parts]], partners: set[tuple[str, str]], swapped: bool
    ) -> tuple[Suggestion, Parts] | None:
        """The most likely of the expressions that give the target by value, with its parts."""
        mine, other = (self.candidate, self.reference) if swapped else (self.reference, self.candidate)
        proven = _of_partners(_proven_formulas(tried, target), target, partners, swapped)
        if not proven:
            return None
        proven.sort(key=lambda item: (-_likeness(mine, other, item, target), item[0]))
        distance, template, parts = proven[0]
        made = fill(template, [str(Name(label(mine, part.entry))) for part in parts])
        whole = str(Name(label(other, target.entry)))
        sides = (whole, made) if swapped else (made, whole)
        evidence = (f"{template.partition('(')[0]} of {len(parts)} agrees to {distance:.1e}",)
        return Suggestion(*sides, distance, evidence, rivals=len(proven) - 1), parts


_ProvenFormula = tuple[float, str, Parts]


def _proven_formulas(tried: Iterable[tuple[str, Parts]], target: Fingerprint) -> list[_ProvenFormula]:
    """The expressions that give the target by value."""
    wanted = target.entry.read()
    measured = (
        (_distance(template, parts, wanted), template, parts)
        for template, parts in tried
        if target.entry.step == parts[0].entry.step
    )
    return [item for item in measured if item[0] <= max(target.tolerance, *(part.tolerance for part in item[2]))]


def _of_partners(
    proven: list[_ProvenFormula], target: Fingerprint, partners: set[tuple[str, str]], swapped: bool
) -> list[_ProvenFormula]:
    """Among equal fusions, those of layers that another pair connects with the target's layer, if any."""

    def is_partner(item: _ProvenFormula) -> bool:
        layers = item[2][0].entry.layer, target.entry.layer
        return (layers[::-1] if swapped else layers) in partners

    return [item for item in proven if is_partner(item)] or proven


def _likeness(mine: Index, other: Index, proven: _ProvenFormula, target: Fingerprint) -> float:
    names = mine.canonical(proven[2][0].entry), other.canonical(target.entry)
    return SequenceMatcher(None, *names, autojunk=False).ratio()


def label(index: Index, entry: Entry) -> str:
    """An entry's name in a map: its canonical layer, the call if not the first, the port if not the output."""
    layer = index.canonical(entry)
    call = f"({entry.call})" if entry.call > 1 else ""
    port = "" if entry.port == "output" else f"-{entry.port}"
    text = f"{layer}{call}{port}"
    return text if index.find(text, entry.step) is entry else entry.name


def _is_equal(a: Fingerprint, b: Fingerprint) -> bool:
    """Whether two inputs are the same by their fingerprints: enough as support, not for a pair."""
    near = 3 * common_tolerance(a, b)
    if a.size != b.size or abs(a.rms - b.rms) > near * b.rms or abs(a.mean - b.mean) > near * b.rms:
        return False
    return rel_l2(b.sample, a.sample) <= 10 * near


def _best_matches(target: Fingerprint, library: FingerprintIndex) -> list[Match]:
    """The reference's tensors that equal the target, without those much worse than the best."""
    wanted = target.entry.read()
    matches = [match for item in library.alike(target) if (match := _match_in_any_layout(item, target, wanted))]
    best = min((match.rel_l2 for match in matches), default=0.0)
    return [match for match in matches if match.rel_l2 <= 3 * best + 1e-7]


def _match_in_any_layout(item: Fingerprint, target: Fingerprint, wanted: Array) -> Match | None:
    if item.entry.step != target.entry.step:
        return None
    array = item.entry.read()
    for view in layouts(array.shape, wanted.shape):
        viewed = evaluate_view(view, array)
        distance = rel_l2(viewed, wanted) if reconcile(viewed.shape, wanted.shape) else 2.0
        if distance <= common_tolerance(item, target):
            return Match(item.entry, target.entry, view, distance)
    return None


def _distance(template: str, parts: Parts, wanted: Array) -> float:
    expression = parse(fill(template, [f'"{k}"' for k in range(len(parts))]))
    try:
        made = evaluate(expression, lambda name: parts[int(name)].entry.read())
    except AlignError:
        return 2.0  # the sizes add up, but the shapes do not fit the function
    return rel_l2(made, wanted) if made.size == wanted.size and reconcile(made.shape, wanted.shape) else 2.0


def assign(support: Mapping[Match, Support], alikeness: Callable[[Match], float]) -> Iterator[tuple[Match, int]]:
    """A partner for each tensor, with how many others fit as well; 0 if inputs leave a single choice."""
    best, proven = _best_support(support), _proven_forms(support)
    left = [match for match, given in support.items() if not _is_ruled_out(match, given, best, proven)]
    choices = Counter(id(entry) for match in left for entry in (match.reference, match.candidate))
    sure = [match for match in left if choices[id(match.reference)] == choices[id(match.candidate)] == 1]
    yield from ((match, 0) for match in sure)
    taken = {id(entry) for match in sure for entry in (match.reference, match.candidate)}
    for match in sorted(left, key=alikeness, reverse=True):
        if id(match.reference) not in taken and id(match.candidate) not in taken:
            taken |= {id(match.reference), id(match.candidate)}
            yield match, max(choices[id(match.reference)], choices[id(match.candidate)]) - 1


def _best_support(support: Mapping[Match, Support]) -> dict[int, float]:
    """For each entry, the best support of any of its matches."""
    best: dict[int, float] = defaultdict(float)
    for match, given in support.items():
        for entry in (match.reference, match.candidate):
            best[id(entry)] = max(best[id(entry)], given.share or 0.0)
    return best


def _proven_forms(support: Mapping[Match, Support]) -> set[tuple[int, bool]]:
    """Entries that have a partner by their inputs, and whether that partner's port is numbered."""
    return {
        (id(entry), _is_numbered(partner))
        for match, given in support.items()
        if given.share
        for entry, partner in ((match.reference, match.candidate), (match.candidate, match.reference))
    }


def _is_numbered(entry: Entry) -> bool:
    """Whether a layer returns a list or tuple, as wrappers do."""
    return entry.port[-1].isdigit()


def _is_ruled_out(
    match: Match, given: Support, best: Mapping[int, float], proven: Collection[tuple[int, bool]]
) -> bool:
    """Whether the layers' inputs point to another of several equal tensors.

    A match without inputs is ruled out only if inputs prove another match of the same form: one of another form may
    still be a wrapper, which the user may prefer.
    """
    r, c = match.reference, match.candidate
    if given.share is None:
        return (id(r), _is_numbered(c)) in proven or (id(c), _is_numbered(r)) in proven
    return given.share < max(best[id(r)], best[id(c)])


ENOUGH = 3
"""How many matches must be proven before a single one is accepted without the user."""
_Groups = dict[tuple[str, str], list[Suggestion]]


def accept(suggestions: Sequence[Suggestion], reference: Index, candidate: Index) -> tuple[MapRule, ...]:
    """The maps that values prove: for every layer they generalize to, or single ones if there are enough."""
    proven = [s for s in suggestions if s.is_only]
    accepted: list[MapRule] = []
    for general, group in _groups(suggestions).items():
        if placeholders(parse(general[0])) and len(group) > 1 and _covers(general, group, reference, candidate):
            accepted.append(MapRule(*general))
        elif len(proven) >= ENOUGH:
            accepted += [MapRule(s.reference, s.candidate) for s in group if s.is_only]
    return tuple(accepted)


def accept_chosen(
    chosen: Iterable[Suggestion], suggestions: Sequence[Suggestion], reference: Index, candidate: Index
) -> tuple[MapRule, ...]:
    """Maps for the suggestions that the user chose, each for every layer if no value speaks against it.

    Beyond the first error nothing is proven, and there the map is needed most. The error itself may make tensors equal
    that are not the same, for example if two projections are swapped: what most layers prove outweighs that.
    """
    chosen, among = list(chosen), _SuggestionSet.of(suggestions, reference, candidate)
    extended = {general: among.extension(general) for general in dict.fromkeys(one.general for one in chosen)}
    outweighed = {place for places in extended.values() for place in places or ()}
    accepted = dict[MapRule, None]()
    for one in chosen:
        if extended[one.general] is not None:
            accepted[MapRule(*one.general)] = None
        elif outweighed.isdisjoint((r.name, r.step) for r, _ in _pairs_of([one], reference, candidate)):
            accepted[MapRule(one.reference, one.candidate, every=False)] = None
    return tuple(accepted)


def _groups(suggestions: Iterable[Suggestion]) -> _Groups:
    """Suggestions by what they generalize to."""
    groups: _Groups = defaultdict(list)
    for suggestion in suggestions:
        groups[suggestion.general].append(suggestion)
    return groups


def _pairs_of(suggestions: Iterable[Suggestion], reference: Index, candidate: Index) -> Iterator[tuple[Entry, Entry]]:
    """The pairs that suggestions make, each of its own layer."""
    for one in suggestions:
        yield from resolve_map(MapRule(one.reference, one.candidate), reference, candidate)


_EntryPlace = tuple[str, int]
"""An entry of one side, by name and step."""
_Partners = dict[_EntryPlace, set[str]]


class _SuggestionSet(NamedTuple):
    """All suggestions together, by which chosen ones are generalized."""

    groups: _Groups
    sides: tuple[Index, Index]
    partners: tuple[_Partners, _Partners]
    """For each entry of either side, the entries that it is found to equal."""
    claimed: tuple[set[_EntryPlace], set[_EntryPlace]]
    """The entries of either side that are paired by a map that several layers prove."""

    @classmethod
    def of(cls, suggestions: Sequence[Suggestion], reference: Index, candidate: Index) -> _SuggestionSet:
        """Collect what all suggestions say together."""
        groups = _groups(suggestions)
        ours, theirs, ours_claimed, theirs_claimed = defaultdict(set), defaultdict(set), set(), set()
        for r, c in _pairs_of(suggestions, reference, candidate):
            ours[r.name, r.step].add(c.name)
            theirs[c.name, c.step].add(r.name)
        for general in (general for general, group in groups.items() if len(group) > 1):
            for r, c in resolve_map(MapRule(*general), reference, candidate):
                ours_claimed.add((r.name, r.step))
                theirs_claimed.add((c.name, c.step))
        return cls(groups, (reference, candidate), (ours, theirs), (ours_claimed, theirs_claimed))

    def extension(self, general: tuple[str, str]) -> set[_EntryPlace] | None:
        """Where a general map contradicts values; empty if nowhere, None if it does not hold for every layer.

        It holds if each of its pairs is proven, or equals nothing else and fits. It also holds against pairs that equal
        each other's tensors and come after everything that proves it, as those of two swapped projections do.
        """
        group = self.groups.get(general, [])
        is_sure = len(group) > 1 or "{i}" in general[1]  # from one layer alone, another numbering is only a guess
        if not is_sure or not placeholders(parse(general[0])):
            return None
        proven = {(r.name, r.step) for r, _ in _pairs_of(group, *self.sides)}
        pairs = list(resolve_map(MapRule(*general), *self.sides))
        against = dict[_EntryPlace, bool]()
        for r, c in pairs:
            rivals = self._rivals(r, c)
            if rivals:
                against[r.name, r.step] = all(place in claimed for place, claimed in rivals)
            elif (r.name, r.step) not in proven and not could_be_same(r, c):
                return None
        order = [(r.name, r.step) for r, _ in pairs]
        is_error = all(against.values()) and _comes_after(set(against), proven - set(against), order)
        return set(against) if is_error else None

    def _rivals(self, r: Entry, c: Entry) -> list[tuple[_EntryPlace, set[_EntryPlace]]]:
        """What a pair's entries equal instead of each other, each with the claimed entries of its side."""
        ours = self.partners[1].get((c.name, c.step), {r.name})
        theirs = self.partners[0].get((r.name, r.step), {c.name})
        return [
            *(((name, r.step), self.claimed[0]) for name in (ours if r.name not in ours else ())),
            *(((name, c.step), self.claimed[1]) for name in (theirs if c.name not in theirs else ())),
        ]


def _comes_after(against: set[_EntryPlace], proven: set[_EntryPlace], order: Sequence[_EntryPlace]) -> bool:
    """Whether the pairs that contradict a map are fewer than those that prove it, and come after them in every step."""
    if not against or len(against) >= len(proven):
        return not against
    at = {place: position for position, place in enumerate(order)}
    last: dict[int, int] = {}  # of those that prove it, in each step
    for name, step in proven & at.keys():
        last[step] = max(last.get(step, -1), at[name, step])
    return all(last.get(step, -1) < at[name, step] for name, step in against)


def _covers(general: tuple[str, str], group: list[Suggestion], reference: Index, candidate: Index) -> bool:
    """Whether a general map pairs nothing beyond what the group proves."""
    everywhere = {(r.name, c.name) for r, c in resolve_map(MapRule(*general), reference, candidate)}
    return everywhere <= {(r.name, c.name) for r, c in _pairs_of(group, reference, candidate)}
