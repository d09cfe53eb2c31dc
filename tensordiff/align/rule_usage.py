"""How much each thing a person said does: names that a rule rewrites, pairs that a map or a view makes."""

from __future__ import annotations

import re
from typing import NamedTuple

from tensordiff.align.index import Index
from tensordiff.align.maps import general, resolve_map
from tensordiff.align.match import Alignment
from tensordiff.align.rules.file import RulesFile
from tensordiff.align.rules.tables import MapRule, ViewRule


class RuleUsage(NamedTuple):
    """Counts, in the order things are said; 0 for what is off."""

    rules: tuple[int, ...]
    """Entries that get another name: by a person's own rules, then by those of presets."""
    maps: tuple[int, ...]
    """Pairs."""
    views: tuple[int, ...]
    """Pairs."""


def rule_usage(said: RulesFile, reference: Index, candidate: Index, alignment: Alignment) -> RuleUsage:
    """What of an alignment is owed to whom."""
    rules = reference.rules.usage({"reference": reference.dump, "candidate": candidate.dump})
    return RuleUsage(rules, _of_maps(said.maps, reference, candidate, alignment), _of_views(said.views, alignment))


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
    """The first view that matches a pair of outputs is the one it is seen through."""
    names = [pair.name for pair in alignment.pairs if pair.views and not pair.reference.is_input]
    counts = []
    for view in views:
        rest = [name for name in names if not (view.on and re.search(view.match, name))]
        counts.append(len(names) - len(rest))
        names = rest
    return tuple(counts)
