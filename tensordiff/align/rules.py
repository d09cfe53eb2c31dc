"""Rules: how a layer's name is written so that two engines spell it alike.

A rule is one regular expression and its replacement, for one side or both. They are tried in
order, each on what the one before it left. The built-in ones cover what Hugging Face and MAX do to
the same model; a user's file adds to them and goes first.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, get_args

from tensordiff.errors import AlignError, printable

Side = Literal["reference", "candidate"]
RuleSide = Literal["reference", "candidate", "both"]
_LATER = ("map", "view", "tolerance")


@dataclass(frozen=True)
class Rule:
    """One line of name normalization."""

    side: RuleSide
    match: str
    replace: str

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The compiled expression."""
        return re.compile(self.match)


BUILT_IN = (
    Rule("both", r"^(?:model\.)+(?=.)", ""),
    Rule("both", r"^language_model\.", ""),  # MAX's second module system
    Rule("both", r"(^|\.)(layers?|blocks?|h)\.layers\.(?=\d)", r"\1\2."),  # a list inside a list module
    Rule("both", r"_shards\.0(?=\.|$)", ""),  # one device of a distributed layer
    Rule("both", r"(?<=\.)LayerNorm(?=\.|$)", "layer_norm"),
)


@dataclass(frozen=True)
class RuleSet:
    """Rules in the order they are tried."""

    rules: tuple[Rule, ...] = BUILT_IN

    def canonical(self, layer: str, side: Side) -> str:
        """A layer's name as both sides would spell it."""
        return self._rewriters[side](layer)

    @cached_property
    def _rewriters(self) -> dict[Side, Callable[[str], str]]:
        both = [tuple(rule for rule in self.rules if rule.side in (side, "both")) for side in get_args(Side)]
        rewriters = {rules: _rewriter(rules) for rules in both}  # one memory for both sides where rules are the same
        return {side: rewriters[rules] for side, rules in zip(get_args(Side), both, strict=True)}

    def with_file(self, path: Path) -> RuleSet:
        """These rules with a user's before them."""
        return RuleSet(read_rules(path) + self.rules)


def _rewriter(rules: Sequence[Rule]) -> Callable[[str], str]:
    """One side's rules in a row, remembering what they made of each name: a layer has several entries."""

    @lru_cache(maxsize=1 << 17)
    def rewrite(layer: str) -> str:
        for rule in rules:
            layer = rule.pattern.sub(rule.replace, layer)
        return layer

    return rewrite


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Read the ``[[rule]]`` tables of a rules file."""
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise AlignError(f"{printable(path)}: the rules file cannot be read ({error})") from error
    except tomllib.TOMLDecodeError as error:
        raise AlignError(f"{printable(path)}: not valid TOML: {error}") from error
    _check_keys(printable(path), content, ("rule",), "a rules file has [[rule]]")
    tables = content.get("rule", [])
    if not isinstance(tables, list):
        raise AlignError(f"{printable(path)}: 'rule' must be a list of tables: write [[rule]], not [rule]")
    return tuple(_rule(path, number, table) for number, table in enumerate(tables, 1))


def _rule(path: Path, number: int, table: object) -> Rule:
    where = f"{printable(path)}: rule {number}"
    if not isinstance(table, dict):
        raise AlignError(f"{where} is not a table: write [[rule]]")
    _check_keys(where, table, ("side", "match", "replace"), "a rule has side, match and replace")
    side, match, replace = table.get("side", "both"), table.get("match"), table.get("replace")
    if not isinstance(match, str) or not isinstance(replace, str):
        raise AlignError(f"{where} needs 'match' and 'replace', both text in quotes")
    if side not in get_args(RuleSide):
        raise AlignError(f"{where}: side is {side!r}; it is one of {', '.join(get_args(RuleSide))}")
    return _checked(where, Rule(side, match, replace))


def _checked(where: str, rule: Rule) -> Rule:
    try:
        pattern = rule.pattern
    except re.error as error:
        raise AlignError(f"{where}: match {rule.match!r} is not a regular expression: {error}") from error
    try:
        pattern.sub(rule.replace, "")
    except (re.error, IndexError) as error:
        raise AlignError(f"{where}: replace {rule.replace!r} does not go with its match: {error}") from error
    return rule


def _check_keys(where: str, table: dict[str, object], known: tuple[str, ...], hint: str) -> None:
    """A word that is not understood is a mistake: passed over, it would leave what it asks for undone."""
    for key in table:
        if key in _LATER:
            raise AlignError(f"{where}: [[{key}]] cannot be used yet; take it out")
        if key not in known:
            raise AlignError(f"{where}: {key!r} is not known; {hint}")
