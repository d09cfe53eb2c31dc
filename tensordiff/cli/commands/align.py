"""``tensordiff align``: which tensor answers which, what is left over, and what it may be.

Showing an alignment: how names were paired, what is left over, what it may be.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from tensordiff.align.order import order_differences
from tensordiff.align.rules.file import append_maps
from tensordiff.align.rules.rule import Side
from tensordiff.align.rules.tables import MapRule
from tensordiff.align.structure_gaps import Gap, gaps
from tensordiff.align.suggest import Suggestion
from tensordiff.cli.options import DUMP, json_option
from tensordiff.cli.progress import Progress
from tensordiff.cli.sources import opened
from tensordiff.cli.streams import Page, echo
from tensordiff.dump import Entry
from tensordiff.errors import AlignError, printable
from tensordiff.report.json import dumps
from tensordiff.session.request import Request
from tensordiff.session.session import Session


class Numbers(click.ParamType[tuple[int, ...]]):
    """Numbers from 1 up, parted by commas."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """What was typed, as numbers."""
        if isinstance(value, tuple):
            return value  # the default
        words = [word.strip() for word in str(value).split(",")]
        if not all(word.isascii() and word.isdigit() and 0 < len(word) < 10 and int(word) for word in words):
            self.fail(f"{value!r:.60} is not a list of numbers such as 1,3", param, ctx)
        return tuple(map(int, words))


class Confidence(click.FloatRange):
    """A number from 0 to 1."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """What was typed, as a number."""
        number = super().convert(value, param, ctx)
        return self.fail("nan is not a confidence", param, ctx) if math.isnan(number) else number


@click.command("align")
@click.argument("reference", type=DUMP)
@click.argument("candidate", type=DUMP)
@click.option("--rules", type=DUMP, metavar="FILE", help="Rules (TOML) that make names alike.")
@click.option("--session", type=DUMP, metavar="FILE", help="A session file of the app: its rules.")
@click.option("--auto", is_flag=True, help="Accept what the values prove on every layer it generalizes to.")
@click.option("--accept", type=Numbers(), metavar="N,…", default=(), help="Accept these suggestions, as numbered here.")
@click.option("--accept-above", type=Confidence(0, 1), metavar="X", help="Accept suggestions this confident, 0 to 1.")
@click.option("--suggest/--no-suggest", default=True, help="Look for partners of orphans by value (default: on).")
@click.option("-o", "--output", type=DUMP, metavar="FILE", help="Write the maps that were accepted to a rules file.")
@json_option
def command(reference: Path, candidate: Path, rules: Path | None, session: Path | None, **wishes: Any) -> int:
    """Pair the tensors of two dumps by rules, maps and, for what is left over, by their values.

    Suggestions for orphans come with their evidence: rel_l2 of a right one is at the floor, of a wrong one near 1.
    They are numbered; accept some with --accept 1,3, or all of a confidence from 0 to 1 with --accept-above 0.9.
    With -o, the accepted ones are written as [[map]] entries, one for all layers where the values prove all;
    those that need no person (--auto), if none were chosen. Give that file to compare with --rules.

    Exit status: 0 something was paired, 2 nothing was.
    """
    from tensordiff.session.request import Request

    return show_alignment(Request(reference, candidate, rules=rules, session=session), Wish(**wishes))


SCHEMA = "tensordiff.align/1"
_SHOWN = 12


class Wish(NamedTuple):
    """What to do beyond pairing by rules."""

    auto: bool = False
    suggest: bool = True
    output: Path | None = None
    as_json: bool = False
    accept: tuple[int, ...] = ()
    """Suggestions by number, counted from 1."""
    accept_above: float | None = None

    @property
    def chooses(self) -> bool:
        """Whether a person chose some."""
        return bool(self.accept) or self.accept_above is not None


def show_alignment(request: Request, wish: Wish) -> int:
    """Align and report; the exit status."""
    session = opened(request)
    suggestions = _suggestions(session, wish)
    accepted = _accepted(session, suggestions, wish)
    if wish.auto or wish.chooses:
        session = session.with_proven_maps(accepted)
    if wish.output is not None:
        append_maps(wish.output, accepted)
    if wish.as_json:
        echo(dumps(_as_json(session, suggestions, accepted)))
    else:
        page = Page.here()
        for line in _lines(session, suggestions, accepted, wish):
            page.print(line, rest="      ")
    return 0 if session.alignment.pairs else 2


def _accepted(session: Session, suggestions: list[Suggestion], wish: Wish) -> tuple[MapRule, ...]:
    """What a person chose, and what needs no person where that was asked for or nothing was chosen."""
    proven = session.dumps.maps_of_proven(suggestions) if wish.auto or (wish.output and not wish.chooses) else ()
    return tuple(dict.fromkeys((*proven, *session.dumps.maps_of_chosen(_chosen(suggestions, wish), suggestions))))


def _chosen(suggestions: list[Suggestion], wish: Wish) -> Iterator[Suggestion]:
    if unknown := [number for number in wish.accept if number > len(suggestions)]:
        there = f"there are {len(suggestions)}, numbered from 1" if suggestions else "nothing is suggested"
        raise AlignError(f"--accept {unknown[0]}: there is no such suggestion; {there}")
    least = wish.accept_above
    for number, item in enumerate(suggestions, 1):
        if number in wish.accept or (least is not None and item.confidence >= least):
            yield item


def _suggestions(session: Session, wish: Wish) -> list[Suggestion]:
    if not (wish.suggest or wish.auto or wish.output or wish.chooses):
        return []
    orphans = len(session.alignment.candidate_orphans) + len(session.alignment.reference_orphans)
    with Progress("looking by value", orphans) as progress:
        return list(progress.over(session.dumps.suggestions()))


def _lines(session: Session, suggestions: list[Suggestion], accepted: tuple[MapRule, ...], wish: Wish) -> Iterator[str]:
    alignment = session.alignment
    counts = Counter(pair.by for pair in alignment.pairs)
    yield f"{len(alignment.pairs)} pairs: " + ", ".join(f"{count} by {by}" for by, count in counts.items())
    yield f"order: {alignment.order}, taken from the {alignment.order_from}; coverage {alignment.coverage:.0%}"
    for part in _order_parts(session)[:_SHOWN]:
        yield f"  position {part.position}: {printable(part.reference)} against {printable(part.candidate)}"
    yield from _pair_lines(session)
    yield from _gap_lines(session)
    yield from _orphan_lines(session)
    if suggestions:
        yield "suggestions, by value, with confidence:"
        for number, item in enumerate(suggestions, 1):
            sign = "" if item.is_only else f"  ({item.rivals} more {'fits' if item.rivals == 1 else 'fit'} as well)"
            names = f"{printable(item.reference)} = {printable(item.candidate)}"
            yield f"  {number:>2}  {item.confidence:.2f}  {names}  {'; '.join(item.evidence)}{sign}"
    if accepted:
        yield f"accepted: {len(accepted)}"
        yield from (f"  {printable(rule.reference)} = {printable(rule.candidate)}" for rule in accepted)
    if wish.output is not None:
        yield f"{len(accepted)} maps written to {printable(wish.output)}"


def _order_parts(session: Session) -> list[Any]:
    found = [(pair.reference, pair.candidate, pair.by) for pair in session.alignment.pairs]
    if session.alignment.order == "unknown":
        return []
    return order_differences(session.reference, session.candidate, found)


def _pair_lines(session: Session) -> Iterator[str]:
    width = min(60, max((len(printable(pair.reference.name)) for pair in session.alignment.pairs), default=0))
    for pair in session.alignment.pairs:
        views = f"  [{', '.join(pair.views)}]" if pair.views else ""
        yield f"  {pair.by:5} {printable(pair.reference.name):<{width}} = {printable(pair.candidate.name)}{views}"


def _gap_lines(session: Session) -> Iterator[str]:
    found = gaps(session.alignment, session.reference, session.candidate)
    if found:
        yield "only on one side:"
    for gap in found:
        before = printable(gap.before.name) if gap.before else "the start"
        after = printable(gap.after.name) if gap.after else "the end"
        names = ", ".join(printable(entry.layer) for entry in gap.orphans[:3])
        more = f" and {len(gap.orphans) - 3} more" if len(gap.orphans) > 3 else ""
        yield f"  {gap.side}, between {before} and {after}: {names}{more}{_agreement_after(session, gap)}"


def _agreement_after(session: Session, gap: Gap) -> str:
    row = session.after_gap(gap)
    if row is None or row.diff is None:
        return ""
    again = "agree again" if row.verdict.name == "agrees" else f"differ by {row.diff.rel_l2:.1e}"
    return f"; the two {again} at {printable(row.pair.name)}"


def _orphan_lines(session: Session) -> Iterator[str]:
    for side, orphans in _orphans(session):
        if orphans:
            yield f"orphans of the {side}: {len(orphans)}"
        for entry in orphans:
            yield f"  {printable(entry.name)}: {session.dumps.why_orphan(entry, side)}"


def _orphans(session: Session) -> tuple[tuple[Side, tuple[Entry, ...]], ...]:
    alignment = session.alignment
    return ("reference", alignment.reference_orphans), ("candidate", alignment.candidate_orphans)


def _as_json(session: Session, suggestions: list[Suggestion], accepted: tuple[MapRule, ...]) -> dict[str, Any]:
    alignment = session.alignment
    return {
        "schema": SCHEMA,
        "pairs": [
            {"index": p.index, "name": p.name, "reference": p.reference.name, "candidate": p.candidate.name,
             "by": p.by, "views": list(p.views)}
            for p in alignment.pairs
        ],
        "coverage": round(alignment.coverage, 4),
        "order": alignment.order,
        "order_from": alignment.order_from,
        "order_differences": [part._asdict() for part in _order_parts(session)],
        "orphans": {
            side: [{"name": entry.name, "why": session.dumps.why_orphan(entry, side)} for entry in orphans]
            for side, orphans in _orphans(session)
        },
        "suggestions": [
            {"number": number, "reference": s.reference, "candidate": s.candidate, "rel_l2": s.rel_l2,
             "confidence": round(s.confidence, 4), "evidence": list(s.evidence), "only": s.is_only}
            for number, s in enumerate(suggestions, 1)
        ],
        "accepted": [
            {"reference": rule.reference, "candidate": rule.candidate, "every": rule.every} for rule in accepted
        ],
    }  # fmt: skip
