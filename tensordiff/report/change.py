"""Compare two comparisons, given as JSON: what got better and what got worse, as text, Markdown and JSON.

Two rows are the same if name, port, step and call are the same. A row got worse if its verdict did, or if it does not
agree and its ``rel_l2`` at least doubled; the reverse is better. Differences between rows that agree in both
comparisons are rounding and do not count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tensordiff.dump.files import parse_json
from tensordiff.errors import BadFile, printable
from tensordiff.report.comparison_json import COMPARE_SCHEMA
from tensordiff.report.labels import counted, glyph_of, number
from tensordiff.report.markdown import code, prose, table
from tensordiff.util.small_files import TooLong, read_small

CHANGE_SCHEMA = "tensordiff.change/1"
CLEAR = 2.0
"""The factor by which an error must grow or shrink to count."""
_MOST = 200  # rows listed in Markdown
_MOST_BYTES = 1 << 30
_RANK = {"agrees": 0, "drifts": 1, "unknown": 2, "diverges": 3}


class RowKey(NamedTuple):
    """Identifies a row of a comparison."""

    name: str
    port: str
    step: int
    call: int
    again: int = 0
    """The number of earlier rows with the same key; a map may make several."""

    def __str__(self) -> str:
        port = "" if self.port in ("output", "output_0") else f" {self.port}"
        call = "" if self.call == 1 else f" call {self.call}"
        return printable(f"{self.name}{port}{call}{f' step {self.step}' if self.step else ''}")


class RowResult(NamedTuple):
    """The result for one row of a comparison."""

    verdict: str
    rel_l2: float | None
    why: str


class RowChange(NamedTuple):
    """A row that is in both comparisons."""

    key: RowKey
    before: RowResult
    after: RowResult


@dataclass(frozen=True)
class Comparison:
    """One comparison, read from JSON."""

    path: str
    verdict: str
    culprit: str | None
    pairs: Mapping[RowKey, RowResult]


@dataclass(frozen=True)
class Change:
    """The difference between two comparisons."""

    before: Comparison
    after: Comparison
    worse: tuple[RowChange, ...]
    better: tuple[RowChange, ...]
    new: tuple[tuple[RowKey, RowResult], ...]
    gone: tuple[RowKey, ...]

    @property
    def is_worse(self) -> bool:
        """Whether anything got worse, including new pairs that diverge."""
        new_faults = any(result.verdict == "diverges" for _, result in self.new)
        return bool(self.worse) or new_faults or (self.after.verdict == "diverges" != self.before.verdict)

    def exit_status(self, *, allow_partial: bool = False) -> int:
        """0 if nothing got worse, 1 if something did, 2 if the second comparison is unknown or has fewer pairs."""
        if self.is_worse:
            return 1
        return 2 if self.after.verdict == "unknown" or (self.gone and not allow_partial) else 0


def change(before: Comparison, after: Comparison) -> Change:
    """Compare two comparisons row by row, in the order of the second."""
    both = [RowChange(key, before.pairs[key], result) for key, result in after.pairs.items() if key in before.pairs]
    return Change(
        before=before,
        after=after,
        worse=tuple(sorted(filter(_is_worse, both), key=_severity)),
        better=tuple(row for row in both if _is_worse(RowChange(row.key, row.after, row.before))),
        new=tuple((key, result) for key, result in after.pairs.items() if key not in before.pairs),
        gone=tuple(key for key in before.pairs if key not in after.pairs),
    )


def _is_worse(row: RowChange) -> bool:
    before, after = row.before, row.after
    if before.verdict != after.verdict:
        return _RANK[after.verdict] > _RANK[before.verdict]
    return after.verdict in ("drifts", "diverges") and _grew(before.rel_l2, after.rel_l2)


def _grew(before: float | None, after: float | None) -> bool:
    if before is None or after is None or math.isnan(before):
        return False
    return math.isnan(after) or (after > 0 and after >= CLEAR * before)


def _severity(row: RowChange) -> int:
    return -_RANK[row.after.verdict]


def read_comparison(path: Path) -> Comparison:
    """Read the output of ``compare --json`` or a ``.json`` report; raises ``BadFile`` for any other file."""
    try:
        found = parse_json(read_small(path, _MOST_BYTES), path, "the comparison")
    except TooLong as error:
        raise BadFile(path, f"is no comparison: {error}") from error
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror or error}; is the path right?") from error
    if not isinstance(found, dict) or found.get("schema") != COMPARE_SCHEMA:
        raise BadFile(path, f"is not a comparison ({COMPARE_SCHEMA}); give what tensordiff compare --json printed")
    try:
        return _comparison(str(path), found)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadFile(
            path, f"is not a whole comparison ({error!r:.200}); write it again with compare --json"
        ) from error


def _comparison(path: str, found: Mapping[str, Any]) -> Comparison:
    if found["verdict"] not in _RANK:
        raise ValueError(f"verdict {found['verdict']!r}")
    keys = list(_keys(found["pairs"]))
    pairs = {key: _result(pair) for key, pair in zip(keys, found["pairs"], strict=True)}
    by_index = {pair["index"]: key for key, pair in zip(keys, found["pairs"], strict=True)}
    culprit = found["culprit"]
    named = culprit and by_index.get(culprit["index"], RowKey(culprit["name"], culprit["port"], 0, 1))
    return Comparison(printable(path), found["verdict"], named and str(named), pairs)


def _keys(pairs: Sequence[Mapping[str, Any]]) -> Iterator[RowKey]:
    before: Counter[RowKey] = Counter()
    for pair in pairs:
        key = RowKey(str(pair["name"]), str(pair["port"]), int(pair["step"]), int(pair["call"]))
        yield key._replace(again=before[key])
        before[key] += 1


def _result(pair: Mapping[str, Any]) -> RowResult:
    rel_l2 = None if pair["diff"] is None else float(pair["diff"]["rel_l2"])
    if pair["verdict"] not in _RANK:
        raise ValueError(f"verdict {pair['verdict']!r}")
    return RowResult(pair["verdict"], rel_l2, printable(pair["why"]))


def headline(change: Change) -> str:
    """The first sentence: worse, better or neither, and the culprit before and now."""
    if change.is_worse:
        begin = f"Worse: {counted(len(change.worse), 'pair')} got worse and {len(change.better)} better"
    elif change.better:
        begin = f"Better: {counted(len(change.better), 'pair')} got better and none worse"
    else:
        begin = "Nothing changed that matters"
    return f"{begin}; {_culprits(change)}."


def _culprits(change: Change) -> str:
    before, after = change.before.culprit, change.after.culprit
    if before == after:
        return "nothing diverges, before or now" if after is None else f"the culprit is still {after}"
    if after is None:
        return f"the culprit {before} is gone" if change.after.verdict != "unknown" else "the result now is unknown"
    return f"the culprit is now {after}" + (f", it was {before}" if before else "; there was none")


def change_text(change: Change) -> str:
    """The change as plain text."""
    return "\n".join(_lines(change)) + "\n"


def _lines(change: Change) -> Iterator[str]:
    yield headline(change)
    yield f"before  {change.before.path}  ({change.before.verdict}, {counted(len(change.before.pairs), 'pair')})"
    yield f"now     {change.after.path}  ({change.after.verdict}, {counted(len(change.after.pairs), 'pair')})"
    for title, some in (("worse", change.worse), ("better", change.better)):
        if some:
            yield f"{title} ({len(some)})"
        yield from (f"  {row.key}: {_result_text(row.before)} -> {_result_text(row.after)}" for row in some)
    if change.new:
        yield f"new ({len(change.new)})"
        yield from (f"  {key}: {_result_text(result)}" for key, result in change.new)
    if change.gone:
        yield f"gone, and not compared any more ({len(change.gone)})"
        yield from (f"  {key}" for key in change.gone)


def _result_text(result: RowResult) -> str:
    return f"{glyph_of(result.verdict)} {result.verdict} {number(result.rel_l2)}"


def change_markdown(change: Change) -> str:
    """The change as Markdown for a comment."""
    return "\n".join(_markdown(change)) + "\n"


def _markdown(change: Change) -> Iterator[str]:
    yield f"### {'✗' if change.is_worse else '✓'} {prose(headline(change))}"
    yield ""
    sides = (("before", change.before), ("now", change.after))
    cells = ((name, code(side.path), side.verdict, str(len(side.pairs))) for name, side in sides)
    yield from table(("", "comparison", "verdict", "pairs"), cells)
    yield from _changes("Worse", change.worse)
    yield from _changes("Better", change.better)
    yield from _folded_list("New", [f"{code(str(key))}: {_result_text(result)}" for key, result in change.new])
    yield from _folded_list("Gone, and not compared any more", [code(str(key)) for key in change.gone])


def _changes(title: str, some: Sequence[RowChange]) -> Iterator[str]:
    if not some:
        return
    yield ""
    yield f"**{title}** ({len(some)})"
    yield ""
    lines = ((code(str(row.key)), _result_text(row.before), _result_text(row.after)) for row in some[:_MOST])
    yield from table(("layer", "before", "now"), lines)


def _folded_list(title: str, items: Sequence[str]) -> Iterator[str]:
    if not items:
        return
    yield ""
    yield f"<details><summary>{title} ({len(items)})</summary>"
    yield ""
    yield from (f"- {item}" for item in items[:_MOST])
    yield ""
    yield "</details>"


def change_json(change: Change) -> dict[str, Any]:
    """The change as one JSON object."""
    return {
        "schema": CHANGE_SCHEMA,
        "before": {"path": change.before.path, "verdict": change.before.verdict, "culprit": change.before.culprit},
        "after": {"path": change.after.path, "verdict": change.after.verdict, "culprit": change.after.culprit},
        "is_worse": change.is_worse,
        "worse": [_pair(row.key, row.before, row.after) for row in change.worse],
        "better": [_pair(row.key, row.before, row.after) for row in change.better],
        "new": [_pair(key, None, result) for key, result in change.new],
        "gone": [_pair(key, None, None) for key in change.gone],
    }


def _pair(key: RowKey, before: RowResult | None, after: RowResult | None) -> dict[str, Any]:
    return key._asdict() | {"before": before and before._asdict(), "after": after and after._asdict()}
