"""``tensordiff align``: shows pairs, orphans and suggestions for them; writes maps to a rules file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click

from tensordiff.align.order import order_differences
from tensordiff.align.rules.file import RulesFile, add_to_file
from tensordiff.align.rules.rule import Side
from tensordiff.align.rules.tables import MapRule
from tensordiff.align.structure_gaps import Gap, gaps
from tensordiff.align.suggest import Suggestion
from tensordiff.cli.options import PATH, json_option, keep_option
from tensordiff.cli.progress import Progress
from tensordiff.cli.sources import open_dumps, run_sources
from tensordiff.cli.streams import Page, echo
from tensordiff.dump import Entry
from tensordiff.errors import AlignError, printable
from tensordiff.report.comparison_json import dumps
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.util.sizes import format_percent

SCHEMA = "tensordiff.align/1"
_SHOWN = 12


class Numbers(click.ParamType[tuple[int, ...]]):
    """Numbers from 1 up, separated by commas."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parse the numbers."""
        if isinstance(value, tuple):
            return value  # the default
        words = [word.strip() for word in str(value).split(",")]
        if not all(word.isascii() and word.isdigit() and 0 < len(word) < 10 and int(word) for word in words):
            self.fail(f"{value!r:.60} is not a list of numbers such as 1,3", param, ctx)
        return tuple(map(int, words))


class Confidence(click.FloatRange):
    """A number from 0 to 1."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the number; click's range check lets nan through."""
        number = super().convert(value, param, ctx)
        return self.fail("nan is not a confidence", param, ctx) if math.isnan(number) else number


class AlignOptions(NamedTuple):
    """What to do besides pairing by rules."""

    auto: bool = False
    suggest: bool = True
    output: Path | None = None
    as_json: bool = False
    accept: tuple[int, ...] = ()
    """Numbers of suggestions, counted from 1."""
    accept_above: float | None = None

    @property
    def has_choice(self) -> bool:
        """Whether the user chose suggestions by number or confidence."""
        return bool(self.accept) or self.accept_above is not None


@click.command("align")
@click.argument("reference", type=PATH)
@click.argument("candidate", type=PATH)
@click.option("--rules", type=PATH, metavar="FILE", help="Rules (TOML) that make names alike.")
@click.option("--session", type=PATH, metavar="FILE", help="A session file of the app: its rules.")
@click.option("--auto", is_flag=True, help="Accept what the values prove, for every layer it holds for.")
@click.option("--accept", type=Numbers(), metavar="N,…", default=(), help="Accept these suggestions, as numbered here.")
@click.option("--accept-above", type=Confidence(0, 1), metavar="X", help="Accept suggestions this confident, 0 to 1.")
@click.option("--suggest/--no-suggest", default=True, help="Look for partners of orphans by value (default: on).")
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Write what was learned and accepted to a rules file.")
@click.option("--learn/--no-learn", default=True, help="Learn from the values how names differ (default: on).")
@keep_option
@json_option
def command(reference: Path, candidate: Path, rules: Path | None, session: Path | None, **options: Any) -> int:
    """Pair the tensors of two dumps by rules, maps and, for what is left over, by their values.

    Suggestions for orphans come with evidence: the rel_l2 of a right one is rounding, of a wrong one near 1. They are
    numbered: accept some with --accept 1,3, or all above a confidence (0 to 1) with --accept-above 0.9.
    With -o, what was learned is written, as [[rule]] entries where renaming explains it, else as [[map]] entries for
    all layers they hold for; then the accepted suggestions; with --auto, or if none
    were chosen, those that the values prove.
    Give that file to compare with --rules: the pairs are the same, without learning again (--no-learn).

    Exit status: 0 something was paired, 2 nothing was.
    """
    request = Request(
        reference, candidate, rules=rules, session=session, keep=options.pop("keep"), learn=options.pop("learn")
    )
    return show_alignment(request, AlignOptions(**options))


def show_alignment(request: Request, options: AlignOptions) -> int:
    """Align and print; returns the exit status."""
    session = open_dumps(run_sources(request))
    suggestions = _suggestions(session, options)
    accepted = _accepted(session, suggestions, options)
    written = None
    if options.output is not None:
        kept = session.dumps.kept_rules()
        written = replace(kept, maps=tuple(dict.fromkeys((*kept.maps, *accepted))))
        add_to_file(options.output, written)
    if options.auto or options.has_choice:
        session = session.with_proven_maps(accepted)
    if options.as_json:
        echo(dumps(_as_json(session, suggestions, accepted)))
    else:
        page = Page.here()
        for line in _lines(session, suggestions, accepted):
            page.print(line, rest="      ")
        if written is not None:
            page.print(f"{_counts(written)} written to {printable(options.output)}", rest="      ")
    return 0 if session.alignment.pairs else 2


def _accepted(session: Session, suggestions: list[Suggestion], options: AlignOptions) -> tuple[MapRule, ...]:
    """The maps of the chosen suggestions, and of those that the values prove, with ``--auto`` or if none
    were chosen.
    """
    takes_proven = options.auto or (options.output and not options.has_choice)
    proven = session.dumps.maps_of_proven(suggestions) if takes_proven else ()
    chosen = session.dumps.maps_of_chosen(_chosen(suggestions, options), suggestions)
    return tuple(dict.fromkeys((*proven, *chosen)))


def _chosen(suggestions: list[Suggestion], options: AlignOptions) -> Iterator[Suggestion]:
    if unknown := [number for number in options.accept if number > len(suggestions)]:
        there = f"there are {len(suggestions)}, numbered from 1" if suggestions else "nothing is suggested"
        raise AlignError(f"--accept {unknown[0]}: there is no such suggestion; {there}")
    least = options.accept_above
    for number, item in enumerate(suggestions, 1):
        if number in options.accept or (least is not None and item.confidence >= least):
            yield item


def _suggestions(session: Session, options: AlignOptions) -> list[Suggestion]:
    if not (options.suggest or options.auto or options.output or options.has_choice):
        return []
    orphans = len(session.alignment.candidate_orphans) + len(session.alignment.reference_orphans)
    with Progress("looking by value", orphans) as progress:
        return list(progress.over(session.dumps.suggestions()))


def _counts(written: RulesFile) -> str:
    kinds = (("rule", len(written.rules)), ("map", len(written.maps)))
    texts = [f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in kinds if count]
    return " and ".join(texts) or "nothing"


def _lines(session: Session, suggestions: list[Suggestion], accepted: tuple[MapRule, ...]) -> Iterator[str]:
    alignment = session.alignment
    counts = Counter(pair.by for pair in alignment.pairs)
    yield f"{len(alignment.pairs)} pairs: " + ", ".join(f"{count} by {by}" for by, count in counts.items())
    coverage = format_percent(alignment.coverage.share)
    yield f"order: {alignment.order}, taken from the {alignment.order_from}; coverage {coverage}"
    for part in _order_parts(session)[:_SHOWN]:
        yield f"  position {part.position}: {printable(part.reference)} against {printable(part.candidate)}"
    yield from _learned_lines(session)
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


def _learned_lines(session: Session) -> Iterator[str]:
    learned = session.dumps.learned
    if learned:
        yield learned.sentence
    yield from (f"  {namesake.sentence}" for namesake in learned.namesakes)
    for rule in learned.rules:
        proof = f"proven on {len(rule.proof)}" if rule.proof else "by structure alone"
        over = ", against names" if rule.overrules_a_name else ""
        names = f"{printable(rule.map.reference)} = {printable(rule.map.candidate)}"
        yield f"  {names}  ({proof}, used for {rule.used}{over})"


def _order_parts(session: Session) -> list[Any]:
    found = [(pair.reference, pair.candidate, pair.by) for pair in session.alignment.pairs]
    if session.alignment.order == "unknown":
        return []
    return order_differences(session.reference, session.candidate, found)


def _pair_lines(session: Session) -> Iterator[str]:
    width = min(60, max((len(printable(pair.reference.name)) for pair in session.alignment.pairs), default=0))
    for pair in session.alignment.pairs:
        views = f"  [{', '.join(pair.views)}]" if pair.views else ""
        yield f"  {pair.by:7} {printable(pair.reference.name):<{width}} = {printable(pair.candidate.name)}{views}"


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
        "coverage": round(alignment.coverage.share, 4),
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
        "learned": [rule.as_json() for rule in session.dumps.learned.rules],
        "namesakes": [vars(one) for one in session.dumps.learned.namesakes],
        "accepted": [
            {"reference": rule.reference, "candidate": rule.candidate, "every": rule.every} for rule in accepted
        ],
    }  # fmt: skip
