"""What got better and what got worse between two comparisons, from the JSON that each left.

A pair is the same pair where name, port, step and call are the same. It got worse where its verdict did, or where it
does not agree and its ``rel_l2`` at least doubled; better the other way round. What agrees on both days is rounding on
both, and no change.

What changed between two comparisons, told as text, as Markdown for a comment, and as JSON.
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
from tensordiff.report.json import COMPARE_SCHEMA
from tensordiff.report.labels import GLYPHS, counted, number
from tensordiff.report.markdown import code, prose, table

CLEAR = 2.0
"""How many times an error must have grown or shrunk to count."""
_RANK = {"agrees": 0, "drifts": 1, "unknown": 2, "diverges": 3}


class Place(NamedTuple):
    """Which pair."""

    name: str
    port: str
    step: int
    call: int
    again: int = 0
    """How many pairs of the same name stand before it: a map may make several."""

    def __str__(self) -> str:
        port = "" if self.port in ("output", "output_0") else f" {self.port}"
        call = "" if self.call == 1 else f" call {self.call}"
        return printable(f"{self.name}{port}{call}{f' step {self.step}' if self.step else ''}")


class Seen(NamedTuple):
    """What a comparison found of a pair."""

    verdict: str
    rel_l2: float | None
    why: str


class Moved(NamedTuple):
    """A pair that both comparisons have, and not with the same result."""

    place: Place
    before: Seen
    after: Seen


@dataclass(frozen=True)
class Compared:
    """One comparison, read back."""

    path: str
    verdict: str
    culprit: str | None
    pairs: Mapping[Place, Seen]


@dataclass(frozen=True)
class Change:
    """Two comparisons beside each other."""

    before: Compared
    after: Compared
    worse: tuple[Moved, ...]
    better: tuple[Moved, ...]
    new: tuple[tuple[Place, Seen], ...]
    gone: tuple[Place, ...]

    @property
    def is_worse(self) -> bool:
        """Whether anything is worse than it was, a new pair that diverges included."""
        new_faults = any(seen.verdict == "diverges" for _, seen in self.new)
        return bool(self.worse) or new_faults or (self.after.verdict == "diverges" != self.before.verdict)

    @property
    def exit_status(self) -> int:
        """0 nothing is worse, 1 something is, 2 the second comparison could not tell."""
        return 1 if self.is_worse else 2 if self.after.verdict == "unknown" else 0


def change(before: Compared, after: Compared) -> Change:
    """Lay two comparisons beside each other, in the order of the second."""
    both = [Moved(place, before.pairs[place], seen) for place, seen in after.pairs.items() if place in before.pairs]
    return Change(
        before,
        after,
        tuple(sorted(filter(_is_worse, both), key=_severity)),
        tuple(moved for moved in both if _is_worse(Moved(moved.place, moved.after, moved.before))),
        tuple((place, seen) for place, seen in after.pairs.items() if place not in before.pairs),
        tuple(place for place in before.pairs if place not in after.pairs),
    )


def _is_worse(moved: Moved) -> bool:
    before, after = moved.before, moved.after
    if before.verdict != after.verdict:
        return _RANK[after.verdict] > _RANK[before.verdict]
    return after.verdict in ("drifts", "diverges") and _grew(before.rel_l2, after.rel_l2)


def _grew(before: float | None, after: float | None) -> bool:
    if before is None or after is None or math.isnan(before):
        return False
    return math.isnan(after) or (after > 0 and after >= CLEAR * before)


def _severity(moved: Moved) -> int:
    return -_RANK[moved.after.verdict]


def read_comparison(path: Path) -> Compared:
    """What ``compare --json`` or a ``.json`` report left; raises where a file is neither."""
    try:
        found = parse_json(path.read_bytes(), path, "the comparison")
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror or error}; is the path right?") from error
    if not isinstance(found, dict) or found.get("schema") != COMPARE_SCHEMA:
        raise BadFile(path, f"is not a comparison ({COMPARE_SCHEMA}); give what tensordiff compare --json printed")
    try:
        return _compared(str(path), found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadFile(path, f"is not a whole comparison ({error!r}); write it again with compare --json") from error


def _compared(path: str, found: Mapping[str, Any]) -> Compared:
    if found["verdict"] not in _RANK:
        raise ValueError(f"verdict {found['verdict']!r}")
    places = list(_places(found["pairs"]))
    pairs = {place: _seen(pair) for place, pair in zip(places, found["pairs"], strict=True)}
    by_index = {pair["index"]: place for place, pair in zip(places, found["pairs"], strict=True)}
    culprit = found["culprit"]
    named = culprit and by_index.get(culprit["index"], Place(culprit["name"], culprit["port"], 0, 1))
    return Compared(printable(path), found["verdict"], named and str(named), pairs)


def _places(pairs: Sequence[Mapping[str, Any]]) -> Iterator[Place]:
    seen: Counter[Place] = Counter()
    for pair in pairs:
        place = Place(str(pair["name"]), str(pair["port"]), int(pair["step"]), int(pair["call"]))
        yield place._replace(again=seen[place])
        seen[place] += 1


def _seen(pair: Mapping[str, Any]) -> Seen:
    rel_l2 = None if pair["diff"] is None else float(pair["diff"]["rel_l2"])
    if pair["verdict"] not in _RANK:
        raise ValueError(f"verdict {pair['verdict']!r}")
    return Seen(pair["verdict"], rel_l2, printable(pair["why"]))


CHANGE_SCHEMA = "tensordiff.change/1"
_MOST = 200


def headline(change: Change) -> str:
    """The first sentence: worse, better or neither, and the culprit before and after."""
    if change.is_worse:
        begin = f"Worse: {counted(len(change.worse), 'pair')} got worse and {len(change.better)} better"
    elif change.better:
        begin = f"Better: {counted(len(change.better), 'pair')} got better and none worse"
    else:
        begin = "Nothing changed that counts"
    return f"{begin}; {_culprits(change)}."


def _culprits(change: Change) -> str:
    before, after = change.before.culprit, change.after.culprit
    if before == after:
        return "nothing diverges, before or now" if after is None else f"the culprit is still {after}"
    if after is None:
        return f"the culprit {before} is gone" if change.after.verdict != "unknown" else "nothing can be told now"
    return f"the culprit is now {after}" + (f", it was {before}" if before else "; there was none")


def change_text(change: Change) -> str:
    """Plain text."""
    return "\n".join(_lines(change)) + "\n"


def _lines(change: Change) -> Iterator[str]:
    yield headline(change)
    yield f"before  {change.before.path}  ({change.before.verdict}, {counted(len(change.before.pairs), 'pair')})"
    yield f"now     {change.after.path}  ({change.after.verdict}, {counted(len(change.after.pairs), 'pair')})"
    for title, some in (("worse", change.worse), ("better", change.better)):
        if some:
            yield f"{title} ({len(some)})"
        yield from (f"  {moved.place}: {_seen_text(moved.before)} -> {_seen_text(moved.after)}" for moved in some)
    if change.new:
        yield f"new ({len(change.new)})"
        yield from (f"  {place}: {_seen_text(seen)}" for place, seen in change.new)
    if change.gone:
        yield f"gone, and not compared any more ({len(change.gone)})"
        yield from (f"  {place}" for place in change.gone)


def _seen_text(seen: Seen) -> str:
    glyph = next(sign for name, sign in GLYPHS.items() if name == seen.verdict)
    return f"{glyph} {seen.verdict} {number(seen.rel_l2)}"


def change_markdown(change: Change) -> str:
    """Markdown for a comment."""
    return "\n".join(_markdown(change)) + "\n"


def _markdown(change: Change) -> Iterator[str]:
    yield f"### {'✗' if change.is_worse else '✓'} {prose(headline(change))}"
    yield ""
    sides = (("before", change.before), ("now", change.after))
    cells = ((name, code(side.path), side.verdict, str(len(side.pairs))) for name, side in sides)
    yield from table(("", "comparison", "verdict", "pairs"), cells)
    yield from _moved("Worse", change.worse)
    yield from _moved("Better", change.better)
    yield from _listed("New", [f"{code(str(place))}: {_seen_text(seen)}" for place, seen in change.new])
    yield from _listed("Gone, and not compared any more", [code(str(place)) for place in change.gone])


def _moved(title: str, some: Sequence[Moved]) -> Iterator[str]:
    if not some:
        return
    yield ""
    yield f"**{title}** ({len(some)})"
    yield ""
    lines = ((code(str(moved.place)), _seen_text(moved.before), _seen_text(moved.after)) for moved in some[:_MOST])
    yield from table(("layer", "before", "now"), lines)


def _listed(title: str, items: Sequence[str]) -> Iterator[str]:
    if not items:
        return
    yield ""
    yield f"<details><summary>{title} ({len(items)})</summary>"
    yield ""
    yield from (f"- {item}" for item in items[:_MOST])
    yield ""
    yield "</details>"


def change_json(change: Change) -> dict[str, Any]:
    """One object."""
    return {
        "schema": CHANGE_SCHEMA,
        "before": {"path": change.before.path, "verdict": change.before.verdict, "culprit": change.before.culprit},
        "after": {"path": change.after.path, "verdict": change.after.verdict, "culprit": change.after.culprit},
        "is_worse": change.is_worse,
        "worse": [_pair(moved.place, moved.before, moved.after) for moved in change.worse],
        "better": [_pair(moved.place, moved.before, moved.after) for moved in change.better],
        "new": [_pair(place, None, seen) for place, seen in change.new],
        "gone": [_pair(place, None, None) for place in change.gone],
    }


def _pair(place: Place, before: Seen | None, after: Seen | None) -> dict[str, Any]:
    return place._asdict() | {"before": before and before._asdict(), "after": after and after._asdict()}
