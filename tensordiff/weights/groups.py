"""Grouping findings that are the same in many layers, only if one sentence is true for all of them.

A layer that a sentence names is given relative to each finding's own: ``layers.{n+1}`` is the next. For parameters that
differ without a known kind of bug, only how much they differ is given, as a range.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tensordiff.dump.names import NUMBER_PART

if TYPE_CHECKING:
    from tensordiff.weights.comparison import ParameterRow


class FindingGroup(NamedTuple):
    """The same finding in one or more parameters."""

    name: str
    """A name for all of them: ``layers.{0-3}.mlp.up_proj.weight``."""
    rows: list[ParameterRow]
    sentence: str
    """What is wrong with each of them."""


def grouped(rows: Sequence[ParameterRow]) -> list[FindingGroup]:
    """Findings grouped by kind of parameter and sentence."""
    groups: dict[tuple[str, str, str], list[ParameterRow]] = defaultdict(list)
    for row in rows:
        groups[NUMBER_PART.sub("{}", row.name), row.verdict, _unnamed_kind(row) or _relative(row)].append(row)
    return [FindingGroup(_common_name(some), some, _sentence(some)) for some in groups.values()]


def _unnamed_kind(row: ParameterRow) -> str:
    return "differs" if row.verdict == "diverges" and row.hint is None and row.diff is not None else ""


def _sentence(rows: Sequence[ParameterRow]) -> str:
    if len(rows) == 1:
        return rows[0].sentence
    if not _unnamed_kind(rows[0]) or len({row.sentence for row in rows}) == 1:
        return _relative(rows[0])
    sizes = [row.diff.rel_l2 for row in rows if row.diff is not None and not row.diff.apart]
    text = [f"rel_l2 {min(sizes):.3g} to {max(sizes):.3g}"] if sizes else []
    if apart := len(rows) - len(sizes):
        text.append(f"NaN or infinite on one side in {apart} of {len(rows)}")
    return "; ".join(text)


def _relative(row: ParameterRow) -> str:
    """The sentence about a parameter, with layers counted from its own."""
    own = NUMBER_PART.search(row.name)
    if own is None:
        return row.sentence
    layers = re.compile(re.escape(row.name[: own.start()]) + r"(\d{1,9})(?=\.)")

    def text(match: re.Match[str]) -> str:
        gap = int(match[1]) - int(own[0])
        return f"{row.name[: own.start()]}{{n{gap:+d}}}" if gap else f"{row.name[: own.start()]}{{n}}"

    return layers.sub(text, row.sentence)


def _common_name(rows: Sequence[ParameterRow]) -> str:
    """A name such as ``layers.{0-3}.mlp.up_proj.weight`` for one parameter of several layers."""
    if len(rows) == 1:
        return rows[0].name
    numbers = [list(map(int, NUMBER_PART.findall(row.name))) for row in rows]
    columns = iter([sorted(set(column)) for column in zip(*numbers, strict=True)])
    return NUMBER_PART.sub(lambda _: _spanned(next(columns)), rows[0].name)


def _spanned(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{{{numbers[0]}-{numbers[-1]}}}"
    return f"{{{','.join(map(str, numbers[:6]))}{',…' if len(numbers) > 6 else ''}}}"
