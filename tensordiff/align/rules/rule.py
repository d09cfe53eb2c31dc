"""Rules: how a layer's name is rewritten so that two engines spell it alike.

A rule is a regular expression and its replacement, for one side or both, and optionally only for modules of a class.
Rules are tried in order, each on the result of the previous one; one that is off is kept and skipped. A replacement may
count: ``{\\1-1}`` is the number that the first group found, less 1.

Nothing else rewrites names. Presets bring rules of their own (``presets``); the user's are read in ``file``.

Thousands of names go through dozens of rules, and nearly every rule leaves nearly every name alone. Testing ``literal
in name`` first is ten times quicker than trying the expression, so each rule has a literal that every match must
contain, as far as one is easily found.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

from tensordiff.dump.model import Dump
from tensordiff.dump.names import split_backward
from tensordiff.util.regex import UserRegex, check_regex, check_replace
from tensordiff.util.slices import SlicedDict

Side = Literal["reference", "candidate"]
RuleSide = Literal["reference", "candidate", "both"]
_RewriteStep = tuple[str, Callable[[str, str], str], str, UserRegex | None]
_COUNTED_GROUP = re.compile(r"\{\\(?:[1-9]|g<\w+>)[+-][0-9]{1,4}\}")
_COUNT_RESULT = re.compile(r"\{([0-9]{1,9})([+-][0-9]{1,4})\}")
LONGEST_OF_PRESETS = 1_000
"""The longest name that presets rewrite; no model has one as long, and preset expressions have no time limit."""


@dataclass(frozen=True)
class Rule:
    """One line of name normalization."""

    side: RuleSide
    match: str
    replace: str
    on: bool = True
    source: str = field(default="", compare=False)
    """The preset or file it comes from. Not compared: rules that do the same are equal."""
    module_class: str | None = None
    """An expression that the module's class must match; entries of unknown class are left alone."""
    is_ours: bool = field(default=False, compare=False, repr=False)
    """Whether it comes with tensordiff: its expression is known to be quick, and needs no time limit."""

    def is_for(self, side: Side) -> bool:
        """Whether it is on and for this side."""
        return self.on and self.side in (side, "both")

    @cached_property
    def _step(self) -> _RewriteStep:
        where = f" of {self.source}" if self.source else ""
        if self.is_ours:
            sub: Callable[[str, str], str] = re.compile(self.match).sub
        else:
            sub = UserRegex(f"match of a rule{where}", self.match).sub
        if _COUNTED_GROUP.search(self.replace):
            sub = _with_counting(sub)
        of_class = self.module_class and UserRegex(f"module_class of a rule{where}", self.module_class)
        return required_literal(self.match), sub, self.replace, of_class or None


def _with_counting(sub: Callable[[str, str], str]) -> Callable[[str, str], str]:
    """A substitution that evaluates counts in its result; a name whose number would be below 0 stays as it is."""

    def counted(replacement: str, text: str) -> str:
        made = sub(replacement, text)
        if made == text:
            return text
        sums = [int(number) + int(offset) for number, offset in _COUNT_RESULT.findall(made)]
        return (
            text if any(one < 0 for one in sums) else _COUNT_RESULT.sub(lambda at: str(int(at[1]) + int(at[2])), made)
        )

    return counted


def _default_rules() -> tuple[Rule, ...]:
    from tensordiff.align.presets import default_rules  # presets are made of rules

    return default_rules()


@dataclass(frozen=True)
class RuleSet:
    """Rules in the order they are tried."""

    rules: tuple[Rule, ...] = field(default_factory=_default_rules)

    def canonical(self, layer: str, side: Side, module_class: str | None = None) -> str:
        """The canonical name of a layer, which both sides should share."""
        return self._rewriters[side](layer, module_class)

    def rewriter(self, side: Side) -> Callable[[str, str | None], str]:
        """``canonical`` for one side, for callers with many names."""
        return self._rewriters[side]

    def usage(self, dumps: Mapping[Side, Dump]) -> tuple[int, ...]:
        """How many entries each rule renames."""
        counts = [0] * len(self.rules)
        for side, dump in dumps.items():
            steps = [(k, rule) for k, rule in enumerate(self.rules) if rule.is_for(side)]
            renaming: SlicedDict[tuple[str, str | None], tuple[int, ...]] = SlicedDict()
            for entry in dump.entries:
                key = entry.layer, entry.origin and entry.origin.module_class
                if (found := renaming.get(key)) is None:
                    found = renaming[key] = tuple(_rules_that_rename(steps, *key))
                for k in found:
                    counts[k] += 1
            renaming.release()
        return tuple(counts)

    @cached_property
    def _rewriters(self) -> dict[Side, Callable[[str, str | None], str]]:
        both = [tuple(rule for rule in self.rules if rule.is_for(side)) for side in get_args(Side)]
        rewriters = {rules: _rewriter(rules) for rules in both}  # sides with the same rules share one cache
        return {side: rewriters[rules] for side, rules in zip(get_args(Side), both, strict=True)}


def _rewriter(rules: Sequence[Rule]) -> Callable[[str, str | None], str]:
    """A function that applies one side's rules.

    Results are cached by name, since a layer has several entries and both sides ask about it. All are kept: a cache
    smaller than a dump would be overwritten by each side before the other one asks.
    """
    steps = [rule._step for rule in rules]
    of_users = [rule._step for rule in rules if not rule.is_ours]
    by_class: defaultdict[str | None, dict[str, str]] = defaultdict(dict)

    def rewrite(layer: str, module_class: str | None) -> str:
        known = by_class[module_class]
        if (name := known.get(layer)) is None:
            name = known[layer] = rewritten(layer, module_class)
        return name

    def rewritten(layer: str, module_class: str | None) -> str:
        backward, inner = split_backward(layer)  # rules are about modules; the backward pass has the module's name
        name = _rewrite_with(steps if len(inner) <= LONGEST_OF_PRESETS else of_users, inner, module_class)
        return layer if name == inner else backward + name

    return rewrite


def _rewrite_with(steps: Sequence[_RewriteStep], layer: str, module_class: str | None) -> str:
    """Apply all rules in one loop: a call for each would cost more than most of them do."""
    for literal, sub, replacement, of_class in steps:
        if literal in layer and (of_class is None or (module_class is not None and of_class.matches(module_class))):
            layer = sub(replacement, layer)
    return layer


def _rules_that_rename(rules: Sequence[tuple[int, Rule]], layer: str, module_class: str | None) -> Iterator[int]:
    """The positions of the rules that change a name."""
    layer = split_backward(layer)[1]
    is_long = len(layer) > LONGEST_OF_PRESETS
    for k, rule in rules:
        if rule._step[0] in layer and not (is_long and rule.is_ours):
            before, layer = layer, _rewrite_with((rule._step,), layer, module_class)
            if layer != before:
                yield k


def switches_off(own: Rule, preset: Rule) -> bool:
    """Whether a rule of the user's switches off a preset's: it is the same rule, and is off."""
    same = (own.match, own.replace, own.module_class) == (preset.match, preset.replace, preset.module_class)
    return same and not own.on and own.side in (preset.side, "both")


def switched_off(presets: Sequence[Rule], own: Sequence[Rule]) -> tuple[Rule, ...]:
    """The rules of presets, with those off that the user's rules switch off."""
    unwanted = [rule for rule in own if not rule.on]
    return tuple(
        replace(rule, on=False) if any(switches_off(one, rule) for one in unwanted) else rule for rule in presets
    )


def check_rule(rule: Rule) -> None:
    """Raise a sentence about a rule that could not be applied."""
    check_regex("match", rule.match)
    check_regex("module_class", rule.module_class or "")
    check_replace(rule.match, rule.replace)


# --- a quick test before a regular expression is tried --------------------------------------------

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d*,?\d*\}|.", re.DOTALL)
# Flags change what letters mean, comments hide brackets, character codes hide text.
_NOT_ANALYZED = re.compile(r"\(\?[#a-zA-Z]|\\[\dxuUN]")
_SPECIAL = frozenset(r"\.^$*+?{}[]|()")
_MAY_BE_ABSENT = ("?", "*", "{")


def required_literal(expression: str) -> str:
    """The longest text that every match must contain; empty if none is easily found."""
    tokens = _TOKEN.findall(expression)
    if _NOT_ANALYZED.search(expression) or "|" in _top_level(tokens):
        return ""
    return max(_runs(_top_level(tokens)), key=len)


def _top_level(tokens: list[str]) -> list[str]:
    """The tokens outside of groups; a whole group is one ``(``."""
    outside, depth = [], 0
    for token in tokens:
        if depth == 0:
            outside.append(token)
        depth += (token == "(") - (token == ")")  # noqa: S105
    return outside


def _runs(tokens: list[str]) -> Iterator[str]:
    """Runs of consecutive literal characters."""
    run = ""
    for token in tokens:
        if literal := _character(token):
            run += literal
            continue
        yield run[:-1] if token.startswith(_MAY_BE_ABSENT) else run
        run = ""
    yield run


def _character(token: str) -> str:
    """The single character that a token stands for, or the empty text."""
    if len(token) == 2 and token[0] == "\\":
        return "" if token[1].isalnum() else token[1]
    return token if len(token) == 1 and token not in _SPECIAL else ""
