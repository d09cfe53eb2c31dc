"""Rules, maps, views and tolerances that matched nothing, each with the nearest real name: most are misspelt.

A rules file may serve several pairs of dumps, so these are only warnings. Rules that are switched off are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from tensordiff.align.expression import names, parse
from tensordiff.align.index import Index, port_of
from tensordiff.align.maps import general
from tensordiff.align.rules.rule import Side
from tensordiff.align.rules.tables import MapRule
from tensordiff.compare.limits import Limits
from tensordiff.dump.lint import Finding
from tensordiff.dump.model import Dump
from tensordiff.errors import printable
from tensordiff.session.paired_dumps import PairedDumps
from tensordiff.util.nearest_name import nearest_name

_WHY = "it changed nothing here"
_DO = "correct or remove it"
_NUMBER = re.compile(r"\{[^{}]*\}")


def unused_rules(dumps: PairedDumps, limits: Limits) -> Iterator[Finding]:
    """A finding for each of the user's rules that matched nothing."""
    if not dumps.alignment.reference_orphans and not dumps.alignment.pairs and not dumps.alignment.candidate_orphans:
        return  # there are no names at all
    if all(_is_of_operations(side.dump) for side in dumps.names.both):
        return  # inside one layer, rules for other layers match nothing
    yield from _rules(dumps)
    for rule in dumps.rules.maps:
        if rule.on and not dumps.pairs_of_map(rule):
            yield _finding("map", f"{rule.reference} = {rule.candidate}", _missing_map_name(dumps, rule))
    if not dumps.rules.views and not limits.rules:
        return  # building the list of a million names takes time
    paired = list(dict.fromkeys(pair.name for pair in dumps.alignment.pairs))
    for view in dumps.rules.views:
        if view.on and not any(map(view.regex.matches, paired)):
            yield _finding("view", view.match, _nearest(view.match, paired))
    for tolerance in limits.rules:
        ports = (f"{pair.name}-{port_of(pair.reference.port)}" for pair in dumps.alignment.pairs)
        if paired and not any(map(tolerance.regex.matches, chain(paired, ports))):
            yield _finding("tolerance", tolerance.match, _nearest(tolerance.match, paired))


def _is_of_operations(dump: Dump) -> bool:
    """Whether a dump holds the operations within one layer."""
    settings: Any = dump.facts.get("settings")
    return isinstance(settings, Mapping) and bool(settings.get("ops"))


def _rules(dumps: PairedDumps) -> Iterator[Finding]:
    if not dumps.rules.rules:
        return
    for rule, count in zip(dumps.rules.rules, dumps.rule_usage().rules, strict=False):  # rules of presets follow
        if rule.on and not count:
            sides = [one for one in dumps.names.both if rule.side in (one.side, "both")]
            layers = dict.fromkeys(entry.layer for side in sides for entry in side.dump.entries)
            yield _finding("rule", rule.match, _nearest(rule.match, layers))


def _missing_map_name(dumps: PairedDumps, rule: MapRule) -> str:
    """Which of a map's names does not exist, and the nearest name that does."""
    sides: tuple[tuple[Side, str, Index], ...] = (
        ("reference", general(rule).reference, dumps.names.both[0]),
        ("candidate", general(rule).candidate, dumps.names.both[1]),
    )
    for side, text, index in sides:
        known = dict.fromkeys(layer for layer, _ in index.layers)
        for name in names(parse(text)):
            if not any(dumps.find(_NUMBER.sub(str(number), name), side) for number in range(2)):
                return f"the {side} has no {printable(name)}{_nearest(name, known)}"
    return "all its names are there, and never in the same step and layer"


def _nearest(pattern: str, known: Iterable[str]) -> str:
    """The nearest known name, as the end of a sentence; empty if there is none."""
    near = nearest_name(pattern, known)
    return "" if near is None else f"; the nearest name is {printable(near)}"


def _finding(kind: str, text: str, about: str) -> Finding:
    told = f"matches nothing{about}" if about.startswith(";") or not about else f"matches nothing: {about}"
    return Finding("warning", f"{kind} {printable(text)}", told, _WHY, _DO)
