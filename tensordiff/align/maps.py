"""Maps: pairs of tensors, given by the user, a preset or proven by values, beyond what names say.

A map uses canonical names, plain or in an expression, of one layer or of all that its placeholders match.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tensordiff.align.compatibility import fits_whole
from tensordiff.align.expression import Expression, Name, bind, generalize, names, parse, placeholders
from tensordiff.align.expression.placeholder import filled
from tensordiff.align.index import Index
from tensordiff.align.rules.tables import MapRule
from tensordiff.dump.model import Entry

Numbers = dict[str, int]


def general(rule: MapRule) -> MapRule:
    """A map of one layer made to hold for every layer, unless the user says otherwise."""
    if not rule.every:
        return rule
    sides = generalize(parse(rule.reference), parse(rule.candidate))
    return MapRule(str(sides[0]), str(sides[1]), if_fits=rule.if_fits, needs=rule.needs)


def mapped(maps: Iterable[MapRule], reference: Index, candidate: Index) -> Iterator[tuple[Entry, Entry]]:
    """The pairs that maps make, one map after the other."""
    for rule in maps:
        made = resolve_map(rule, reference, candidate)
        yield from fitting(made) if rule.if_fits else made


def fitting(pairs: Iterable[tuple[Entry, Entry]]) -> Iterator[tuple[Entry, Entry]]:
    """Pairs whose shapes agree: a map learned in one layer may find something else in the next."""
    return ((reference, candidate) for reference, candidate in pairs if fits_whole(reference, candidate))


def is_of_inputs(rule: MapRule) -> bool:
    """Whether a map pairs an input of one layer with an input of another, both as they were dumped."""
    sides = (parse(side) for side in (rule.reference, rule.candidate))
    return all(isinstance(side, Name) and side.parts.port.startswith("input") for side in sides)


def resolve_map(
    rule: MapRule, reference: Index, candidate: Index, steps: Sequence[int] | None = None
) -> Iterator[tuple[Entry, Entry]]:
    """The pairs that a map makes: one for each layer and step that has all its names."""
    ours, theirs = parse(rule.reference), parse(rule.candidate)
    for step in reference.steps if steps is None else steps:
        for numbers in _numbers(ours, theirs, reference, candidate, step):
            if rule.needs and not _has_any((reference, candidate), rule.needs, numbers, step):
                continue
            # The candidate's first: in most maps that fail, it is the name that is missing.
            c = _resolved(candidate, theirs, numbers, step)
            r = _resolved(reference, ours, numbers, step) if c is not None else None
            if r is not None and c is not None:
                yield r, c


def _has_any(sides: Iterable[Index], wanted: Iterable[str], numbers: Numbers, step: int) -> bool:
    names = [filled(name, numbers) for name in wanted]
    return any(side.find(name, step) is not None for side in sides for name in names)


def _resolved(side: Index, expression: Expression, numbers: Numbers, step: int) -> Entry | None:
    if isinstance(expression, Name):  # the usual case, and there may be very many
        return side.find(filled(expression.text, numbers), step)
    return side.resolve(bind(expression, numbers), step)


def _numbers(ours: Expression, theirs: Expression, reference: Index, candidate: Index, step: int) -> list[Numbers]:
    """The numbers for a map's placeholders: every layer that both sides have, by the first such name of each."""
    by_side = [
        side.numbers(next(name for name in names(expression) if "{" in name), step)
        for side, expression in ((reference, ours), (candidate, theirs))
        if placeholders(expression)
    ]
    if not by_side:
        return [{}]
    known = [{tuple(sorted(numbers.items())) for numbers in others} for others in by_side[1:]]
    return [numbers for numbers in by_side[0] if all(tuple(sorted(numbers.items())) in others for others in known)]
