"""What a text must contain for a regular expression to match it, as far as that is easily seen.

Thousands of names go through dozens of rules, and nearly every rule leaves nearly every name alone.
Asking ``literal in name`` first is ten times quicker than asking the expression. Only the top level of
an expression is looked at; where in doubt, the answer is the empty text, which every name contains.

Rules: how a layer's name is written so that two engines spell it alike.

A rule is one regular expression and its replacement, for one side or both, and if it says so only for
modules of a class. Rules are tried in order, each on what the one before it left; one that is off is
kept and passed over. Nothing else rewrites names. Which rules there are without being asked for is
decided in ``presets``; what a user's file says is read in ``rules_file``.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal, get_args

from tensordiff.dump.model import Dump
from tensordiff.errors import AlignError, printable

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d*,?\d*\}|.", re.DOTALL)
_UNSURE = re.compile(
    r"\(\?[#a-zA-Z]|\\[\dxuUN]"
)  # flags change what letters mean, comments hide brackets, codes hide text
_SPECIAL = frozenset(r"\.^$*+?{}[]|()")
_MAY_BE_ABSENT = ("?", "*", "{")


def required_literal(expression: str) -> str:
    """The longest text that every match contains; empty where none is seen."""
    tokens = _TOKEN.findall(expression)
    if _UNSURE.search(expression) or "|" in _top_level(tokens):
        return ""
    return max(_runs(_top_level(tokens)), key=len)


def _top_level(tokens: list[str]) -> list[str]:
    """The tokens outside of brackets; a whole group is one ``(``."""
    found, depth = [], 0
    for token in tokens:
        if depth == 0:
            found.append(token)
        depth += (token == "(") - (token == ")")  # noqa: S105
    return found


def _runs(tokens: list[str]) -> Iterator[str]:
    """Literal characters that follow one another."""
    run = ""
    for token in tokens:
        if literal := _character(token):
            run += literal
            continue
        yield run[:-1] if token.startswith(_MAY_BE_ABSENT) else run
        run = ""
    yield run


def _character(token: str) -> str:
    """The one character that a token stands for, or nothing."""
    if len(token) == 2 and token[0] == "\\":
        return "" if token[1].isalnum() else token[1]
    return token if len(token) == 1 and token not in _SPECIAL else ""


Side = Literal["reference", "candidate"]
RuleSide = Literal["reference", "candidate", "both"]
_Step = tuple[str, Callable[[str, str], str], str, re.Pattern[str] | None]


@dataclass(frozen=True)
class Rule:
    """One line of name normalization."""

    side: RuleSide
    match: str
    replace: str
    on: bool = True
    source: str = field(default="", compare=False)
    """The preset or the file it comes from; rules that do the same are the same rule."""
    module_class: str | None = None
    """An expression that the module's class must match; an entry of unknown class is left alone."""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The compiled expression."""
        return re.compile(self.match)

    @cached_property
    def class_pattern(self) -> re.Pattern[str] | None:
        """The compiled expression for classes."""
        return None if self.module_class is None else re.compile(self.module_class)

    def is_for(self, side: Side) -> bool:
        """Whether it is on and for this side."""
        return self.on and self.side in (side, "both")

    @cached_property
    def _step(self) -> _Step:
        return required_literal(self.match), self.pattern.sub, self.replace, self.class_pattern


def _default_rules() -> tuple[Rule, ...]:
    from tensordiff.align.presets import default_rules  # presets are made of rules

    return default_rules()


@dataclass(frozen=True)
class RuleSet:
    """Rules in the order they are tried."""

    rules: tuple[Rule, ...] = field(default_factory=_default_rules)

    def canonical(self, layer: str, side: Side, module_class: str | None = None) -> str:
        """A layer's name as both sides would spell it."""
        return self._rewriters[side](layer, module_class)

    def rewriter(self, side: Side) -> Callable[[str, str | None], str]:
        """``canonical`` for one side, for those who ask for many names."""
        return self._rewriters[side]

    def usage(self, dumps: Mapping[Side, Dump]) -> tuple[int, ...]:
        """How many entries each rule gives another name."""
        counts = [0] * len(self.rules)
        for side, dump in dumps.items():
            steps = [(k, rule._step) for k, rule in enumerate(self.rules) if rule.is_for(side)]
            layers = Counter((entry.layer, entry.origin and entry.origin.module_class) for entry in dump.entries)
            for (layer, module_class), entries in layers.items():
                for k in _changing(steps, layer, module_class):
                    counts[k] += entries
        return tuple(counts)

    def with_rule(self, rule: Rule, at: int = 0) -> RuleSet:
        """These rules and one more: the first to be tried, unless another place is given."""
        return RuleSet((*self.rules[:at], rule, *self.rules[at:]))

    def without(self, k: int) -> RuleSet:
        """These rules but one."""
        self._check_index(k)
        return RuleSet((*self.rules[:k], *self.rules[k + 1 :]))

    def moved(self, k: int, to: int) -> RuleSet:
        """These rules with one of them tried at another place."""
        self._check_index(to)
        return self.without(k).with_rule(self.rules[k], to)

    def toggled(self, k: int) -> RuleSet:
        """These rules with one of them turned off, or on again."""
        self._check_index(k)
        return RuleSet((*self.rules[:k], replace(self.rules[k], on=not self.rules[k].on), *self.rules[k + 1 :]))

    def _check_index(self, k: int) -> None:
        if not 0 <= k < len(self.rules):
            raise IndexError(f"there is no rule {k}; there are {len(self.rules)}")

    @cached_property
    def _rewriters(self) -> dict[Side, Callable[[str, str | None], str]]:
        both = [tuple(rule for rule in self.rules if rule.is_for(side)) for side in get_args(Side)]
        rewriters = {rules: _rewriter(rules) for rules in both}  # one memory for both sides where rules are the same
        return {side: rewriters[rules] for side, rules in zip(get_args(Side), both, strict=True)}


def _rewriter(rules: Sequence[Rule]) -> Callable[[str, str | None], str]:
    """One side's rules in a row, remembering what they made of each name: a layer has several entries."""
    steps = [rule._step for rule in rules]

    @lru_cache(maxsize=1 << 17)
    def rewrite(layer: str, module_class: str | None) -> str:
        return _through(steps, layer, module_class)

    return rewrite


def _through(steps: Sequence[_Step], layer: str, module_class: str | None) -> str:
    """One loop for all rules: a call for each would cost more than what most of them do."""
    for literal, sub, replacement, of_class in steps:
        if literal in layer and (of_class is None or (module_class is not None and of_class.search(module_class))):
            layer = sub(replacement, layer)
    return layer


def _changing(steps: Sequence[tuple[int, _Step]], layer: str, module_class: str | None) -> Iterator[int]:
    """The numbers of the rules that give a name another spelling."""
    for k, step in steps:
        if step[0] in layer:
            before, layer = layer, _through((step,), layer, module_class)
            if layer != before:
                yield k


def switches_off(own: Rule, preset: Rule) -> bool:
    """Whether a person's rule says that a preset's is not wanted: it is off, and says the same."""
    same = (own.match, own.replace, own.module_class) == (preset.match, preset.replace, preset.module_class)
    return same and not own.on and own.side in (preset.side, "both")


def switched_off(presets: Sequence[Rule], own: Sequence[Rule]) -> tuple[Rule, ...]:
    """Rules of presets, those off that a person does not want."""
    unwanted = [rule for rule in own if not rule.on]
    return tuple(
        replace(rule, on=False) if any(switches_off(one, rule) for one in unwanted) else rule for rule in presets
    )


def check_regex(what: str, expression: str) -> None:
    """Refuse what is not a regular expression, or one that Python itself finds doubtful."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(expression)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        sentence = f"{what} {expression!r} is not a regular expression: {error}"
        raise AlignError(printable(sentence)) from error


def check_replace(match: str, replacement: str) -> None:
    """Refuse a replacement that speaks of groups its expression does not have."""
    try:
        re.compile(match).sub(replacement, "")
    except (re.error, IndexError) as error:
        sentence = f"replace {replacement!r} does not go with its match: {error}"
        raise AlignError(printable(sentence)) from error


def check_rule(rule: Rule) -> None:
    """Refuse a rule that could not be applied, with a sentence that says why."""
    check_regex("match", rule.match)
    check_regex("module_class", rule.module_class or "")
    check_replace(rule.match, rule.replace)
