"""The tables of a rules file, ``[[rule]]``, ``[[map]]``, ``[[view]]`` and ``[[tolerance]]``, as frozen values.

Strict on purpose: an unknown key is a mistake, and ignoring it would silently do less than the user asked for. Every
error gives the line and column of the key or value it is about.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from pathlib import PurePath
from typing import NamedTuple, cast, get_args

from tensordiff.align.rules.rule import Rule, RuleSide
from tensordiff.align.rules.toml_text import TextPosition, TomlText
from tensordiff.errors import AlignError, printable
from tensordiff.util.regex import UserRegex, check_regex, check_replace


@dataclass(frozen=True)
class MapRule:
    """An expression of the reference's entries and one of the candidate's that give the same tensor."""

    reference: str
    candidate: str
    every: bool = True
    """Whether a layer's number in it stands for every layer."""
    on: bool = True
    if_fits: bool = False
    """Whether it skips layers and steps whose shapes do not fit, as a map learned from one step should."""
    needs: tuple[str, ...] = ()
    """Names of which either side must have one: a product with ``up_proj`` makes sense only if there is a gate."""


@dataclass(frozen=True)
class ViewRule:
    """A view applied to entries before they are compared, by layer and side."""

    match: str
    reference: str | None = None
    candidate: str | None = None
    on: bool = True

    @cached_property
    def regex(self) -> UserRegex:
        """The compiled expression."""
        return UserRegex("match of a view", self.match)


@dataclass(frozen=True)
class ToleranceRule:
    """The tolerances of pairs, by layer and port."""

    match: str
    rel_l2: float | None = None
    atol: float | None = None
    rtol: float | None = None
    max_abs: float | None = None
    cos_dist: float | None = None
    kl_div: float | None = None

    def __post_init__(self) -> None:
        for name in AMOUNTS:
            check_limit(name, getattr(self, name))

    @cached_property
    def regex(self) -> UserRegex:
        """The compiled expression."""
        return UserRegex("match of a tolerance", self.match)


LARGEST_LIMIT = 3.4e38  # the largest number of 32 bits
LARGEST_COS_DIST = 2.0  # the cosine distance of opposite tensors
AMOUNTS = ("rel_l2", "atol", "rtol", "max_abs", "cos_dist", "kl_div")
"""The keys of a ``[[tolerance]]`` that hold a number."""


def check_amount(name: str, value: object) -> None:
    """Raise for a tolerance that is no number, or that nothing could fail (NaN, infinity) or pass (below 0)."""
    if value is None:
        return
    try:
        amount = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:  # an integer that no float holds
        amount = math.inf
    if not 0 <= amount < math.inf:
        shown = f"{value:g}" if isinstance(value, float) else f"{value!r:.80}"
        raise AlignError(f"{name} is {shown}; it is a number, 0 or more and finite")


def check_limit(name: str, value: object) -> None:
    """Raise for a limit that is no valid amount, or so large that no tensor could fail it."""
    check_amount(name, value)
    largest = LARGEST_COS_DIST if name == "cos_dist" else LARGEST_LIMIT
    if isinstance(value, Real) and float(value) >= largest:
        raise AlignError(f"{name} is {float(value):g}, which every tensor would pass; give less than {largest:g}")


def check_expression(text: str, *, is_view: bool = False) -> None:
    """Raise for text that is not an expression, or not a view."""
    from tensordiff.align.expression import parse, parse_view  # a file without expressions needs no numpy

    (parse_view if is_view else parse)(text)


class Table(NamedTuple):
    """One table of a file, and its position."""

    path: str
    text: TomlText
    name: str
    number: int
    values: Mapping[str, object]

    def error(self, sentence: str, key: str | None = None) -> AlignError:
        """An error that points at a key, or at the table if it has no such key."""
        has_key = key is not None and key in self.values
        place = (
            self.text.key(self.name, self.number, cast(str, key))
            if has_key
            else self.text.table(self.name, self.number)
        )
        return refusal(self.path, place, f"{self.name} {self.number}{sentence}")

    def refuse_other_keys(self, *keys: str) -> None:
        """Raise for any other key."""
        for key in self.values:
            if key not in keys:
                raise self.error(f": {key!r} is not known; a {self.name} has {nearest(key, keys)}", key)

    def text_of(self, key: str) -> str | None:
        """A text, or None if the key is missing."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(f": {key} is {value!r:.80}; it is text in quotes", key)
        return value

    def texts(self, *keys: str) -> list[str]:
        """Texts whose keys are required."""
        values = [self.values.get(key) for key in keys]
        for key, value in zip(keys, values, strict=True):
            if not isinstance(value, str):
                wanted = " and ".join(map(repr, keys)) + (
                    ", both text in quotes" if len(keys) > 1 else ", text in quotes"
                )
                raise self.error(f" needs {wanted}", key)
        return cast(list[str], values)

    def list_of_texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, empty if the key is missing."""
        values = self.values.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self.error(f": {key} is {values!r:.80}; it is a list of texts in quotes", key)
        return tuple(values)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.error(f": {key} is {value!r:.80}; it is true or false", key)
        return value

    def amount(self, key: str) -> float | None:
        """A tolerance, or None if the key is missing."""
        value = self.values.get(key)
        try:
            check_limit(key, value)
        except AlignError as error:
            raise self.error(f": {error}", key) from error
        return None if value is None else float(cast(float, value))

    def check(self, key: str, check: Callable[[str], None]) -> None:
        """Raise for a text that does not pass a check, pointing at the character if it is known."""
        value = self.text_of(key)
        if value is None:
            return
        try:
            check(value)
        except AlignError as error:
            offset = _offset(error)
            place = self.text.key(self.name, self.number, key)
            if offset is not None:
                place = self.text.inside(self.name, self.number, key, offset, value)
            sentence = str(error).split("\n", 1)[0]
            raise refusal(self.path, place, f"{self.name} {self.number}: {sentence}") from error


def _offset(error: AlignError) -> int | None:
    """The character of the text at which a check failed, if it says so."""
    column = getattr(error, "column", None)
    if isinstance(column, int):
        return column - 1
    return error.__cause__.pos if isinstance(error.__cause__, re.error) else None


def refusal(path: str, place: TextPosition, sentence: str) -> AlignError:
    """An error about a position in a file."""
    return AlignError(f"{printable(path)}: {place}: {printable(sentence)}")


def nearest(word: str, known: Iterable[str]) -> str:
    """The known words, and the one that was probably meant."""
    known = list(known)
    close = difflib.get_close_matches(word[:64], known, 1)
    return ", ".join(known) + (f"; did you mean {close[0]!r}?" if close else "")


def rule(table: Table) -> Rule:
    """Read a ``[[rule]]``."""
    table.refuse_other_keys("side", "match", "replace", "on", "module_class")
    match, replacement = table.texts("match", "replace")
    side = table.values.get("side", "both")
    if side not in get_args(RuleSide):
        raise table.error(f": side is {side!r:.80}; it is one of {', '.join(get_args(RuleSide))}", "side")
    table.check("match", lambda text: check_regex("match", text))
    table.check("module_class", lambda text: check_regex("module_class", text))
    table.check("replace", lambda text: check_replace(match, text))
    source, of_class = PurePath(table.path).name, table.text_of("module_class")
    return Rule(cast(RuleSide, side), match, replacement, table.flag("on", True), source, of_class)


def map_rule(table: Table) -> MapRule:
    """Read a ``[[map]]``."""
    table.refuse_other_keys("reference", "candidate", "every", "on", "if_fits", "needs")
    reference, candidate = table.texts("reference", "candidate")
    table.check("reference", check_expression)
    table.check("candidate", check_expression)
    flags = table.flag("every", True), table.flag("on", True), table.flag("if_fits", False)
    return MapRule(reference, candidate, *flags, table.list_of_texts("needs"))


def view_rule(table: Table) -> ViewRule:
    """Read a ``[[view]]``."""
    table.refuse_other_keys("match", "reference", "candidate", "on")
    [match] = table.texts("match")
    table.check("match", lambda text: check_regex("match", text))
    for side in ("reference", "candidate"):
        table.check(side, lambda text: check_expression(text, is_view=True))
    view = ViewRule(match, table.text_of("reference"), table.text_of("candidate"), table.flag("on", True))
    if view.reference is None and view.candidate is None:
        raise table.error(" says nothing; give it 'reference' or 'candidate': a view such as \"last_token\"")
    return view


def tolerance_rule(table: Table) -> ToleranceRule:
    """Read a ``[[tolerance]]``."""
    table.refuse_other_keys("match", *AMOUNTS)
    [match] = table.texts("match")
    table.check("match", lambda text: check_regex("match", text))
    tolerance = ToleranceRule(match, *map(table.amount, AMOUNTS))
    if tolerance == ToleranceRule(match):
        raise table.error(f" says nothing; give it one of {', '.join(AMOUNTS)}")
    return tolerance
