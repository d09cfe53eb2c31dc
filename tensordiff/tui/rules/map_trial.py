"""Tries a map before it is accepted: the entries it takes, their common shape, and how much they differ.

``trials`` measures, in a thread of the map screen; ``shown`` formats a trial: shapes, errors, and the pairs from which
the map would take entries.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple, get_args

from rich.text import Text

from tensordiff.align.expression import Expression, ExpressionError, generalize, parse, placeholders
from tensordiff.align.expression.placeholder import PLACEHOLDER
from tensordiff.align.expression.tree import leaves
from tensordiff.align.index import parts_of
from tensordiff.align.match import Pair
from tensordiff.align.rules.rule import Side
from tensordiff.align.rules.tables import MapRule
from tensordiff.compare.row import Row
from tensordiff.dump import Entry
from tensordiff.dump.dtypes import name_of
from tensordiff.errors import AlignError, printable
from tensordiff.report.labels import GLYPHS
from tensordiff.session.session import Session
from tensordiff.tui.verdict_styles import VERDICT_STYLES

_MEASURED = 64
"""How many layers of a map are read before it is accepted."""


class MapChoice(NamedTuple):
    """The typed map, for the layer it names and for every layer; None for a form that is impossible."""

    here: MapRule | None
    every: MapRule | None

    @property
    def rule(self) -> MapRule:
        """The only map, or the one for this layer."""
        found = self.here or self.every
        assert found is not None  # noqa: S101 - a map is for one layer or for all
        return found


class Trial(NamedTuple):
    """The result of a map, as far as it is known."""

    choice: MapChoice
    pairs: tuple[Pair, ...]
    """The pairs of all layers, the named one first."""
    rows: tuple[Row, ...] = ()
    """The rows measured so far."""

    @property
    def first(self) -> Pair:
        """The named layer, or the first one."""
        return self.pairs[0]

    @property
    def worst(self) -> Row | None:
        """The measured row with the largest error; a row that could not be measured counts as larger."""
        return max(self.rows, key=_distance, default=None)


def _distance(row: Row) -> float:
    return float("inf") if row.diff is None or row.diff.rel_l2 != row.diff.rel_l2 else row.diff.rel_l2


class SideError(Exception):
    """An error in one side's expression, or in both together if ``side`` is None."""

    def __init__(self, side: Side | None, error: AlignError) -> None:
        super().__init__(str(error))
        self.side, self.error = side, error


def trials(session: Session, reference: str, candidate: str) -> Iterator[Trial]:
    """Try a map: at once from headers, then as each layer is measured."""
    choice = map_choice(session, reference, candidate)
    pairs = _pairs(session, choice)
    yield (trial := Trial(choice, pairs))
    for row in session.comparer.rows(tuple(islice(pairs, _MEASURED))):
        yield (trial := trial._replace(rows=(*trial.rows, row)))


def map_choice(session: Session, reference: str, candidate: str) -> MapChoice:
    """The typed text as maps; raises ``SideError`` if it is none."""
    sides = [_parsed(session, text, side) for text, side in zip((reference, candidate), get_args(Side), strict=True)]
    texts = [str(side) for side in sides]
    if any(map(placeholders, sides)):
        return MapChoice(None, MapRule(texts[0], texts[1]))
    general = [str(side) for side in generalize(*sides)]
    here = MapRule(texts[0], texts[1], every=False)
    return MapChoice(here, None if general == texts else MapRule(general[0], general[1]))


def _parsed(session: Session, text: str, side: Side) -> Expression:
    try:
        expression = parse(text)
        for name in leaves(expression):
            if not PLACEHOLDER.search(name.text) and session.dumps.find(name.text, side) is None:
                raise ExpressionError(_missing(session, name.text, side), name.span)
    except AlignError as error:
        raise SideError(side, error) from error
    return expression


def _missing(session: Session, name: str, side: Side) -> str:
    near = difflib.get_close_matches(name, islice(names_of(session, side), 4096), 1, 0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"the {side} has no {printable(name)}{hint}"


def _pairs(session: Session, choice: MapChoice) -> tuple[Pair, ...]:
    try:
        here = session.dumps.pairs_of_map(choice.here) if choice.here else ()
        every = session.dumps.pairs_of_map(choice.every) if choice.every else ()
        if not here and not every:
            raise AlignError("no layer has all of these names, in the same step")  # noqa: TRY301
        for pair in (*here, *every)[:1]:
            _check_plans(pair)
    except AlignError as error:
        raise SideError(None, error) from error
    known = {(pair.reference.name, pair.candidate.name, pair.reference.step) for pair in here}
    rest = (p for p in every if (p.reference.name, p.candidate.name, p.reference.step) not in known)
    return (*here, *rest)


def _check_plans(pair: Pair) -> None:
    """Refuse an expression whose tensors do not fit, from headers."""
    for entry in (pair.reference, pair.candidate):
        _ = entry.spec


def names_of(session: Session, side: Side) -> Iterator[str]:
    """The names that can be typed for a side: its orphans first, then all its entries."""
    alignment = session.alignment
    orphans = alignment.reference_orphans if side == "reference" else alignment.candidate_orphans
    entries = (session.reference if side == "reference" else session.candidate).entries
    seen = {id(entry) for entry in orphans}
    rest = (entry for entry in entries if id(entry) not in seen)
    return dict.fromkeys(session.dumps.label(entry, side) for entry in (*orphans, *rest)).__iter__()


def shown_parts(entry: Entry) -> list[str]:
    """The entries that an entry consists of, with shape and dtype, and their result if there are several."""
    parts = list(parts_of(entry))
    lines = [f"{printable(part.name)}  {shown_spec(part)}" for part in parts]
    return lines if parts == [entry] else [*lines, f"→ {shown_spec(entry)}"]


def shown_spec(entry: Entry) -> str:
    """Shape and dtype."""
    spec = entry.spec
    return f"{list(spec.shape)} {name_of(spec.dtype)}"


def shown(session: Session, trial: Trial, is_done: bool) -> Text:
    """A trial as lines, with dots for what is not measured yet."""
    text = Text().append(_first(trial.rows[0]) if trial.rows else "" if is_done else "…\n")
    text.append(_all(trial, is_done))
    if taken := _taken(session, trial):
        text.append(f"! already paired; this map replaces the pair: {taken}\n", "yellow")
    for side, entry in (("reference", trial.first.reference), ("candidate", trial.first.candidate)):
        text.append(f"\n{side}\n", "bold")
        for line in shown_parts(entry):
            text.append(f"{line}\n")
    return text


def _first(row: Row) -> Text:
    """The result for the named layer."""
    glyph, style = GLYPHS[row.verdict.name], VERDICT_STYLES[row.verdict.name]
    if row.diff is None:
        return Text(f"{glyph} {printable(row.verdict.why)}\n", style)
    views = f" after {', '.join(row.views)}" if row.views else ""
    seen = f"{shown_spec(row.pair.reference)} against {shown_spec(row.pair.candidate)}"
    text = Text().append(f"{glyph} rel L2 {row.diff.rel_l2:.1e}, largest difference {row.diff.max_abs:.1e}\n", style)
    return text.append(f"{seen}, compared as {list(row.shape or ())}{printable(views)}\n", "dim")


def _all(trial: Trial, is_done: bool) -> Text:
    """The result for every layer, as far as it is measured."""
    if trial.choice.every is None:
        return Text("The names share no layer number, so the map is for this layer only.\n", "dim")
    worst, measured, total = trial.worst, len(trial.rows), len(trial.pairs)
    rule = trial.choice.every
    text = Text().append("every layer: " + printable(f"{rule.reference} = {rule.candidate}") + "\n", "bold")
    text.append(f"{total} {'pair' if total == 1 else 'pairs'}")
    if worst is not None:
        far = f"rel L2 {worst.diff.rel_l2:.1e}" if worst.diff is not None else "not comparable"
        text.append(
            f"; of {measured} measured the worst is {GLYPHS[worst.verdict.name]} {far}",
            VERDICT_STYLES[worst.verdict.name],
        )
        text.append(printable(f" at {worst.pair.name}"), "dim")
    return text.append("\n" if is_done or measured == total else " …\n")


def _taken(session: Session, trial: Trial) -> str:
    """The first few entries that are paired already, by name."""
    mine = {id(part) for pair in trial.pairs for side in (pair.reference, pair.candidate) for part in parts_of(side)}
    pairs = [p for p in session.alignment.pairs if {id(e) for e in (p.reference, p.candidate)} & mine]
    names = ", ".join(printable(pair.name) for pair in pairs[:3])
    return names + (f" and {len(pairs) - 3} more" if len(pairs) > 3 else "")
