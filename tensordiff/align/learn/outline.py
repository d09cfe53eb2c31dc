"""Outlines of names: which numbers in a layer's name count layers, and which belong to the name.

``layers.3.mlp.fc1`` is the fourth of many equal blocks, while the 1 of ``fc1`` is part of a name. A number counts
blocks if what follows it is repeated under other numbers: for at least three entries, as in ``layers.{}``, or for
nearly all names that have a number at all, as in ``ffn_norm-{}``.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_NUMBER = re.compile(r"(?<![0-9])[0-9]{1,6}(?![0-9])")
_MOST_NUMBERS = 6
SEPARATORS = "./:|-_"
"""Characters that separate the parts of a layer's name."""
_REPEATED = 3
_NUMBER_MARK = "\0"

Span = tuple[int, int]


class Outline(NamedTuple):
    """A layer's name around the numbers that count blocks."""

    pieces: tuple[str, ...]
    """The text before, between and after the numbers."""
    numbers: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()
    """The number of digits for numbers that are written with leading zeros, otherwise 0."""

    def with_numbers(self, texts: Iterable[str]) -> str:
        """The name with other texts for its numbers."""
        return "".join(part for pair in zip(self.pieces, (*texts, ""), strict=True) for part in pair)


def outlines(ports: Mapping[str, Iterable[str]]) -> dict[str, Outline]:
    """The outline of each layer; ``ports`` are those of each."""
    runs = {name: [match.span() for match in _NUMBER.finditer(name)][:_MOST_NUMBERS] for name in ports}
    counted: dict[str, list[Span]] = {name: [] for name in ports}
    for turn in range(max(map(len, runs.values()), default=0)):
        here = {name: spans[turn] for name, spans in runs.items() if len(spans) > turn}
        for name in _repeated(here, counted, ports) or (_dominant(here) if turn == 0 else ()):
            counted[name].append(here[name])
    padded = _padded(counted)
    return {name: _outline(name, spans, padded) for name, spans in counted.items()}


def _repeated(
    here: Mapping[str, Span], counted: Mapping[str, list[Span]], ports: Mapping[str, Iterable[str]]
) -> list[str]:
    """Names whose number is where blocks are repeated."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, (start, _) in here.items():
        groups[_prefix(name, start, counted[name])].append(name)
    return [name for names in groups.values() if _is_block(names, here, ports) for name in names]


def _prefix(name: str, start: int, counted: Iterable[Span]) -> str:
    text = name[:start]
    for begin, end in reversed(list(counted)):
        text = f"{text[:begin]}{_NUMBER_MARK}{text[end:]}"
    return text


def _is_block(names: list[str], here: Mapping[str, Span], ports: Mapping[str, Iterable[str]]) -> bool:
    numbers: dict[tuple[str, str], set[int]] = defaultdict(set)
    for name in names:
        start, end = here[name]
        for port in ports[name]:
            numbers[name[end:], port].add(int(name[start:end]))
    return sum(len(some) > 1 for some in numbers.values()) >= _REPEATED


def _dominant(here: Mapping[str, Span]) -> list[str]:
    """Names whose number takes the same values as in most names with a number: ``ffn_norm-3``."""
    values: dict[tuple[str, str], set[int]] = defaultdict(set)
    for name, (start, end) in here.items():
        values[name[:start], name[end:]].add(int(name[start:end]))
    shared = Counter({frozenset(some): 0 for some in values.values()})
    shared.update(frozenset(some) for some in values.values())
    commonest, count = max(shared.items(), key=lambda item: (item[1], sorted(item[0])))
    if len(commonest) < 2 or count < max(_REPEATED, len(values) / 2):
        return []
    return [name for name, (start, end) in here.items() if values[name[:start], name[end:]] == commonest]


def _padded(counted: Mapping[str, list[Span]]) -> set[str]:
    """The texts before numbers some of which are written with leading zeros."""
    return {
        name[:start] if k == 0 else ""
        for name, spans in counted.items()
        for k, (start, end) in enumerate(spans)
        if end - start > 1 and name[start] == "0"
    }


def _outline(name: str, spans: list[Span], padded: set[str]) -> Outline:
    ends = [0, *(end for _, end in spans)]
    starts = [*(start for start, _ in spans), len(name)]
    pieces = tuple(name[end:start] for end, start in zip(ends, starts, strict=True))
    widths = tuple(
        end - start if (name[:start] if k == 0 else "") in padded else 0 for k, (start, end) in enumerate(spans)
    )
    return Outline(pieces, tuple(int(name[start:end]) for start, end in spans), widths)
