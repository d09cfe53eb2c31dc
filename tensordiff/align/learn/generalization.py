"""Generalization: from pairs of a few layers to rules for all of them.

Pairs whose names have the same outline make one rule if their numbers are one function of the layer's number: the same,
an offset, a multiple, or the number of a call. If only one layer proves it, the numbers that other rules prove for the
same containers are used, or those by which both sides count equally many blocks. What fits no function stays a rule for
itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from tensordiff.align.expression import parse, parse_view, view_of
from tensordiff.align.expression.placeholder import Placeholder
from tensordiff.align.expression.tree import Name
from tensordiff.align.index import port_of
from tensordiff.align.learn.evidence import Evidence, Side
from tensordiff.align.learn.outline import Outline
from tensordiff.align.learn.pairing.ports import Formula, LearnedPair
from tensordiff.dump.model import Entry
from tensordiff.dump.names import parse_name

LETTERS = "ijk"
_FACTORS = range(1, 10)


class Shape(NamedTuple):
    """A formula without the numbers of its layers."""

    template: str
    view: str
    parts: tuple[tuple[tuple[str, ...], str], ...]
    """The pieces of each part's layer, and its port."""


class Affine(NamedTuple):
    """A number as a function of a letter; without a letter, a fixed number."""

    letter: str | None
    factor: int
    offset: int


@dataclass(frozen=True)
class GeneralRule:
    """A rule, and the pairs it was made from."""

    reference: str
    candidate: str
    pairs: tuple[LearnedPair, ...] = field(compare=False)
    is_general: bool = True

    @property
    def is_second_partner(self) -> bool:
        """Whether it gives entries of the reference a second partner."""
        return all(pair.is_second_partner for pair in self.pairs)

    @property
    def proven(self) -> list[LearnedPair]:
        """The pairs that values prove."""
        return [pair for pair in self.pairs if pair.is_proven]


Key = tuple[Shape, Shape]
Coordinates = tuple[int, ...]
Prefixes = tuple[str, str]


@dataclass(eq=False)
class Generalizer:
    """Makes rules from pairs."""

    evidence: Evidence
    pairs: Sequence[LearnedPair]

    def rules(self) -> list[GeneralRule]:
        """The rules, those with most proof first; second partners last, since they take what others leave."""
        made: dict[GeneralRule, GeneralRule] = {}
        for rule in (rule for group in self._groups.values() for rule in self._generalize(group)):
            same = made.get(rule)  # two groups may give one rule: ``output`` and ``output_0`` are written alike
            made[rule] = rule if same is None else replace(same, pairs=(*same.pairs, *rule.pairs))
        return sorted(made.values(), key=lambda rule: (rule.is_second_partner, -len(rule.proven), not rule.is_general))

    @cached_property
    def _groups(self) -> dict[Key, list[LearnedPair]]:
        groups: dict[Key, list[LearnedPair]] = defaultdict(list)
        for pair in self.pairs:
            groups[self._shape(pair.reference, 0), self._shape(pair.candidate, 1)].append(pair)
        return groups

    def _side(self, side: int) -> Side:
        return self.evidence.candidate if side else self.evidence.reference

    def _outline(self, entry: Entry, side: int) -> Outline:
        return self._side(side).outline(entry)

    def _shape(self, formula: Formula, side: int) -> Shape:
        parts = tuple((self._outline(part, side).pieces, part.port) for part in formula.parts)
        return Shape(formula.template, formula.view, parts)

    def _coordinates(self, formula: Formula, side: int) -> Coordinates:
        """The numbers of each part's layer, and its call."""
        return tuple(n for part in formula.parts for n in (*self._outline(part, side).numbers, part.call))

    # --- numbering -----------------------------------------------------------------------------------

    @cached_property
    def numbering(self) -> dict[Prefixes, tuple[int, int]]:
        """By which factor and offset the candidate counts what the reference counts, if several layers prove it."""
        votes: dict[Prefixes, Counter[tuple[int, int]]] = defaultdict(Counter)
        for group in self._groups.values():
            points = {self._first_numbers(pair): None for pair in group if pair.is_proven}
            known = [point for point in points if point is not None]
            prefixes = self._prefixes(group[0])
            if prefixes is not None and len({a for a, _ in known}) > 1:
                fitted = _fit([a for a, _ in known], [b for _, b in known])
                if fitted is not None:
                    votes[prefixes][fitted] += len(known)
        return {prefixes: counts.most_common(1)[0][0] for prefixes, counts in votes.items()}

    def _prefixes(self, pair: LearnedPair) -> Prefixes | None:
        ours = self._outline(pair.reference.parts[0], 0)
        theirs = self._outline(pair.candidate.parts[0], 1)
        return (ours.pieces[0], theirs.pieces[0]) if ours.numbers and theirs.numbers else None

    def _first_numbers(self, pair: LearnedPair) -> tuple[int, int] | None:
        ours = self._outline(pair.reference.parts[0], 0)
        theirs = self._outline(pair.candidate.parts[0], 1)
        return (ours.numbers[0], theirs.numbers[0]) if ours.numbers and theirs.numbers else None

    def _assumed(self, pair: LearnedPair) -> tuple[int, int] | None:
        """The factor and offset for a rule that only one layer proves."""
        prefixes, point = self._prefixes(pair), self._first_numbers(pair)
        if prefixes is None or point is None:
            return None
        ours, theirs = (self._numbers(side).get(prefix, set()) for side, prefix in enumerate(prefixes))
        known = self.numbering.get(prefixes)
        if known is not None:
            factor = known[0]
        elif len(theirs) == len(ours):
            factor = 1
        elif len(theirs) % len(ours) == 0:
            factor = len(theirs) // len(ours)
        else:
            factor = 1
        offset = point[1] - factor * point[0]
        fits = sum(factor * number + offset in theirs for number in ours)
        is_plausible = known is not None or fits == min(len(ours), len(theirs))
        return (factor, offset) if is_plausible else None

    def _numbers(self, side: int) -> Mapping[str, set[int]]:
        return self._numbers_reference if side == 0 else self._numbers_candidate

    @cached_property
    def _numbers_reference(self) -> Mapping[str, set[int]]:
        return _numbers_of(self.evidence.reference)

    @cached_property
    def _numbers_candidate(self) -> Mapping[str, set[int]]:
        return _numbers_of(self.evidence.candidate)

    # --- rules ---------------------------------------------------------------------------------------

    def _generalize(self, group: list[LearnedPair]) -> Iterator[GeneralRule]:
        names = len(self._outline(group[0].reference.parts[0], 0).numbers)
        if not names and not any(self._outline(part, 1).numbers for part in group[0].candidate.parts):
            yield from (self._single_rule(pair) for pair in group)
            return
        points = [(self._coordinates(p.reference, 0), self._coordinates(p.candidate, 1)) for p in group]
        functions = None if self._is_of_several_blocks(group) else self._functions(group, points, names)
        if functions is None:
            yield from (
                self._single_rule(pair) for pair in group if pair.is_proven or (not names and self._is_likely(pair))
            )
            return
        count = len(points[0][0])
        sides = [self._expression_text(group[0].reference, 0, functions[:count])]
        sides.append(self._expression_text(group[0].candidate, 1, functions[count:]))
        yield GeneralRule(sides[0], sides[1], tuple(group))

    def _is_likely(self, pair: LearnedPair) -> bool:
        """Whether values say that two entries are the same, though an error has changed them."""
        ours, theirs = pair.reference.parts, pair.candidate.parts
        return len(ours) == len(theirs) == 1 and self.evidence.is_same(ours[0], theirs[0])

    def _is_of_several_blocks(self, group: list[LearnedPair]) -> bool:
        """Whether only one pair proves a formula of tensors some of which are in a block and some are not."""
        if sum(pair.is_proven for pair in group) > 1:
            return False
        for side, formula in enumerate((group[0].reference, group[0].candidate)):
            counted = [bool(self._outline(part, side).numbers) for part in formula.parts]
            if any(counted) and not all(counted):
                return True
        return False

    def single_rules(self, rule: GeneralRule) -> list[GeneralRule]:
        """The proven pairs of a rule that does not hold for others, each as a rule for itself."""
        return [self._single_rule(pair) for pair in rule.proven]

    def _single_rule(self, pair: LearnedPair) -> GeneralRule:
        texts = []
        for side, formula in enumerate((pair.reference, pair.candidate)):
            numbers = [Affine(None, 1, n) for n in self._coordinates(formula, side)]
            texts.append(self._expression_text(formula, side, numbers))
        return GeneralRule(texts[0], texts[1], (pair,), is_general=False)

    def _functions(
        self, group: list[LearnedPair], points: list[tuple[Coordinates, Coordinates]], names: int
    ) -> list[Affine] | None:
        """Every number of both sides as a function of the numbers of the reference's first layer."""
        rows = [(*ours, *theirs) for ours, theirs in points]
        columns = list(zip(*rows, strict=True))
        firsts = self._first_columns(group[0])
        bases = dict(zip(LETTERS, range(min(names, len(LETTERS))), strict=False))
        if not names:
            return None
        assumed = self._assumed(group[0]) if len(set(columns[0])) == 1 else None
        functions: list[Affine] = []
        for k, column in enumerate(columns):
            one = self._function(k, column, columns, bases, firsts, assumed)
            if one is None:
                return None
            functions.append(one)
        used = {one.letter for one in functions[len(points[0][0]) :]}
        varying = {letter for letter, k in bases.items() if len(set(columns[k])) > 1}
        if not varying <= used:
            return None
        return [one if one.letter in used else Affine(None, 1, columns[k][0]) for k, one in enumerate(functions)]

    def _first_columns(self, pair: LearnedPair) -> dict[int, int]:
        """The columns that hold a block's number (the first number of each part), and the side of each."""
        found, at = {}, 0
        for side, formula in enumerate((pair.reference, pair.candidate)):
            for part in formula.parts:
                numbers = self._outline(part, side).numbers
                if numbers:
                    found[at] = side
                at += len(numbers) + 1
        return found

    def _function(
        self,
        k: int,
        column: Sequence[int],
        columns: Sequence[Sequence[int]],
        bases: Mapping[str, int],
        firsts: Mapping[int, int],
        assumed: tuple[int, int] | None,
    ) -> Affine | None:
        for letter, base in bases.items():
            if k == base:
                return Affine(letter, 1, 0)
        if len(set(column)) > 1:
            for letter, base in bases.items():
                if (fitted := _fit(columns[base], column)) is not None:
                    return Affine(letter, *fitted)
            return None
        is_first = k in firsts and len(set(columns[0])) == 1
        if is_first and firsts[k] == 0:
            return Affine("i", 1, column[0] - columns[0][0])
        if is_first and assumed is not None:
            return Affine("i", assumed[0], column[0] - assumed[0] * columns[0][0])
        return Affine(None, 1, column[0])

    def _expression_text(self, formula: Formula, side: int, functions: Sequence[Affine]) -> str:
        texts, at = [], 0
        for part in formula.parts:
            outline = self._outline(part, side)
            ends = at + len(outline.numbers)
            layer = outline.with_numbers(
                _number_text(one, width) for one, width in zip(functions[at:ends], outline.widths, strict=True)
            )
            texts.append(str(Name(_label(layer, functions[ends], part.port))))
            at = ends + 1
        if formula.template == "{0}" and not formula.view:
            return texts[0]
        expression = parse(formula.template.format(*texts))
        return str(view_of(parse_view(formula.view), expression) if formula.view else expression)


def _label(layer: str, call: Affine, port: str) -> str:
    number = _number_text(call, 0)
    text = layer if number == "1" else f"{layer}({number})"
    is_plain = port_of(port) == "output" and parse_name(text).port == "output"
    return text if is_plain else f"{text}-{port}"


def _number_text(one: Affine, width: int) -> str:
    if one.letter is None:
        return f"{one.offset:0{width}d}"
    return str(Placeholder(one.letter, one.factor, one.offset, width if width > 1 else 0))


def _fit(numbers: Sequence[int], values: Sequence[int]) -> tuple[int, int] | None:
    """The factor and offset that turn one column into another; None if there is no such pair."""
    for factor in _FACTORS:
        offsets = {value - factor * number for number, value in zip(numbers, values, strict=True)}
        if len(offsets) == 1 and abs(offset := offsets.pop()) < 10_000:
            return factor, offset
    return None


def _numbers_of(side: Side) -> Mapping[str, set[int]]:
    """The numbers that follow each beginning of a layer's name."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for outline in side.outlines.values():
        if outline.numbers:
            numbers[outline.pieces[0]].add(outline.numbers[0])
    return numbers
