"""Placeholders: one expression for every layer.

``{i}`` in a name stands for a layer's number. ``bind`` fills it, ``bindings`` finds what fills it,
``generalize`` puts it where a mapping of one layer has that layer's number. Placeholders are {i},
{j} and {k}, also inside quotes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from tensordiff.align.expression.tree import HERE, Expression, Name, leaves, rebuild
from tensordiff.dump.names import parse_name

PLACEHOLDER = re.compile(r"\{([ijk])\}")
_WHOLE = r"0|[1-9][0-9]{0,8}"  # as Python writes a number: what is bound must read back as itself
LONE_NUMBER = re.compile(rf"(?<![\w-])(?:{_WHOLE})(?![\w-])")
_OF_LAYER = re.compile(rf"(?<![0-9A-Za-z])(?:layers?|blocks?|h)[^0-9A-Za-z]({_WHOLE})(?![0-9A-Za-z])")


def names(expression: Expression) -> tuple[str, ...]:
    """The entries an expression names, each once, in the order they are written."""
    return tuple(dict.fromkeys(name.text for name in leaves(expression) if name != HERE))


def placeholders(expression: Expression) -> frozenset[str]:
    """The placeholders that are not filled yet, without braces."""
    return frozenset(letter for text in names(expression) for letter in PLACEHOLDER.findall(text))


def bind(expression: Expression, numbers: Mapping[str, int]) -> Expression:
    """Fill placeholders; those that no number is given for stay."""

    def filled(name: Name) -> Name:
        text = PLACEHOLDER.sub(lambda found: str(numbers.get(found[1], found[0])), name.text)
        return replace(name, text=text)

    return rebuild(expression, filled)


def bindings(pattern: str, text: str) -> dict[str, int] | None:
    """The numbers under which a name with placeholders is this text, or None."""
    found = _compiled(pattern).fullmatch(text)
    return None if found is None else {letter: int(number) for letter, number in found.groupdict().items()}


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    source, seen, end = "", set(), 0
    for found in PLACEHOLDER.finditer(pattern):
        letter = found[1]
        source += re.escape(pattern[end : found.start()])
        source += f"(?P={letter})" if letter in seen else f"(?P<{letter}>{_WHOLE})"
        seen.add(letter)
        end = found.end()
    return re.compile(source + re.escape(pattern[end:]))


def generalize(*sides: Expression) -> tuple[Expression, ...]:
    """Put ``{i}`` for the layer's number that every name of a mapping has; other numbers stay.

    A mapping that has placeholders already, or whose names share no number, is given back as it is.
    """
    texts = [text for side in sides for text in names(side)]
    number = _shared_number(texts)
    if number is None or any(placeholders(side) for side in sides):
        return sides
    return tuple(rebuild(side, lambda name: replace(name, text=_lifted(name.text, number))) for side in sides)


def _shared_number(texts: list[str]) -> str | None:
    numbers = [[text[span] for span in _layer_numbers(text)] for text in texts]
    return next((n for n in numbers[0] if all(n in others for others in numbers)), None) if numbers else None


def _lifted(text: str, number: str) -> str:
    for span in _layer_numbers(text):
        if text[span] == number:
            return f"{text[: span.start]}{{i}}{text[span.stop :]}"
    return text


def _layer_numbers(text: str) -> list[slice]:
    """Where a name may count layers: after a word like ``layers``, or else wherever a number stands alone.

    Ports and calls are numbered too, and are left out.
    """
    layer = parse_name(text).layer
    found = [slice(*match.span(1)) for match in _OF_LAYER.finditer(layer)]
    return found or [slice(*match.span()) for match in LONE_NUMBER.finditer(layer)]
