"""Which suggestions become maps, and for which layers.

Those proven by value on every layer they generalize to, with nothing else that fits, may be accepted
without a person; a single tensor is never enough. What a person chose is accepted as it is: for every
layer where the values prove every layer, else for that one alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from tensordiff.align.expression import parse, placeholders
from tensordiff.align.index import Index
from tensordiff.align.maps import resolve_map
from tensordiff.align.rules_tables import MapRule
from tensordiff.align.suggest import Suggestion

ENOUGH = 3
"""Proven matches without which no single one is accepted unseen."""
_Groups = dict[tuple[str, str], list[Suggestion]]


def accept(suggestions: Sequence[Suggestion], reference: Index, candidate: Index) -> tuple[MapRule, ...]:
    """The maps that values prove: on every layer they generalize to, or one of several that nothing else fits."""
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
    """The maps of suggestions that a person chose, each for as many layers as all suggestions prove."""
    groups, accepted = _groups(suggestions), dict[MapRule, None]()
    for one in chosen:
        general, group = one.general, groups.get(one.general, [one])
        is_every = placeholders(parse(general[0])) and _covers(general, group, reference, candidate)
        accepted[MapRule(*general) if is_every else MapRule(one.reference, one.candidate, every=False)] = None
    return tuple(accepted)


def _groups(suggestions: Iterable[Suggestion]) -> _Groups:
    """Suggestions that say the same of several layers."""
    groups: _Groups = defaultdict(list)
    for suggestion in suggestions:
        groups[suggestion.general].append(suggestion)
    return groups


def _covers(general: tuple[str, str], group: list[Suggestion], reference: Index, candidate: Index) -> bool:
    """Whether every layer that a general map would pair is among those proven."""
    everywhere = {(r.name, c.name) for r, c in resolve_map(MapRule(*general), reference, candidate)}
    proven = {
        (r.name, c.name) for s in group for r, c in resolve_map(MapRule(s.reference, s.candidate), reference, candidate)
    }
    return everywhere <= proven
