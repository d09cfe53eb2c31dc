"""What a text must contain for a regular expression to match it, as far as that is easily seen.

Thousands of names go through dozens of rules, and nearly every rule leaves nearly every name alone.
Asking ``literal in name`` first is ten times quicker than asking the expression. Only the top level of
an expression is looked at; where in doubt, the answer is the empty text, which every name contains.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

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
