"""What changed between two comparisons, told as text, as Markdown for a comment, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tensordiff.report.change import Change, Moved, Place, Seen
from tensordiff.report.markdown_text import code, prose, table
from tensordiff.report.words import GLYPHS, counted, number

SCHEMA = "tensordiff.change/1"
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
        yield from (f"  {moved.place}: {_seen(moved.before)} -> {_seen(moved.after)}" for moved in some)
    if change.new:
        yield f"new ({len(change.new)})"
        yield from (f"  {place}: {_seen(seen)}" for place, seen in change.new)
    if change.gone:
        yield f"gone, and not compared any more ({len(change.gone)})"
        yield from (f"  {place}" for place in change.gone)


def _seen(seen: Seen) -> str:
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
    yield from _listed("New", [f"{code(str(place))}: {_seen(seen)}" for place, seen in change.new])
    yield from _listed("Gone, and not compared any more", [code(str(place)) for place in change.gone])


def _moved(title: str, some: Sequence[Moved]) -> Iterator[str]:
    if not some:
        return
    yield ""
    yield f"**{title}** ({len(some)})"
    yield ""
    lines = ((code(str(moved.place)), _seen(moved.before), _seen(moved.after)) for moved in some[:_MOST])
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
        "schema": SCHEMA,
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
