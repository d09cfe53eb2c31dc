"""How much each rule, map and view does: names that a rule changes, pairs that a map or a view makes."""

from __future__ import annotations

from typing import NamedTuple

from tensordiff.align.index import Index
from tensordiff.align.maps import general, resolve_map
from tensordiff.align.match import Alignment
from tensordiff.align.rules.file import RulesFile
from tensordiff.align.rules.tables import MapRule, ViewRule


class RuleUsage(NamedTuple):
    """Counts, in the order of the rules file; 0 for what is switched off."""

    rules: tuple[int, ...]
    """Entries that each rule renames: the user's rules, then those of presets."""
    maps: tuple[int, ...]
    """Pairs that each map makes."""
    views: tuple[int, ...]
    """Pairs that each view is applied to."""


def rule_usage(own: RulesFile, reference: Index, candidate: Index, alignment: Alignment) -> RuleUsage:
    """Count what the user's rules do in an alignment."""
    rules = reference.rules.usage({"reference": reference.dump, "candidate": candidate.dump})
    return RuleUsage(rules, _of_maps(own.maps, reference, candidate, alignment), _of_views(own.views, alignment))


def _of_maps(maps: tuple[MapRule, ...], reference: Index, candidate: Index, alignment: Alignment) -> tuple[int, ...]:
    left = {(p.reference.name, p.candidate.name, p.reference.step) for p in alignment.pairs if p.by == "map"}
    counts = []
    for rule in maps:
        made = resolve_map(general(rule), reference, candidate) if rule.on else ()
        names = {(r.name, c.name, r.step) for r, c in made}
        counts.append(len(names & left))
        left -= names
    return tuple(counts)


def _of_views(views: tuple[ViewRule, ...], alignment: Alignment) -> tuple[int, ...]:
    """Pairs by view: the first view that matches a pair of outputs is the one applied."""
    names = [pair.name for pair in alignment.pairs if pair.is_viewed and not pair.reference.is_input]
    counts = []
    for view in views:
        rest = [name for name in names if not (view.on and view.regex.matches(name))]
        counts.append(len(names) - len(rest))
        names = rest
    return tuple(counts)
