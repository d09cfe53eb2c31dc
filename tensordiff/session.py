"""One comparison, held together: two dumps, their alignment, and what was measured.

Both faces drive this and nothing below it. There is no printing here and no clock: long work is an
iterator, and the face decides about progress and stopping.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from tensordiff.align import Alignment, Pair, Plan, align
from tensordiff.align.index import Index, port_of
from tensordiff.align.rules import Side
from tensordiff.align.rules_file import RulesFile, read_rules_file
from tensordiff.align.rules_tables import MapRule, ToleranceRule
from tensordiff.align.suggest import Suggester, Suggestion, accept
from tensordiff.align.sync import Gap
from tensordiff.compare.context import context_of
from tensordiff.compare.detail import Element, worst
from tensordiff.compare.engine import Engine, Row, Third, values_of
from tensordiff.compare.hint import Hint, hint
from tensordiff.compare.limits import Limits
from tensordiff.compare.logits import Logits, is_logits, logits, summed_up
from tensordiff.dump import Dump, Entry, open_dump
from tensordiff.dump.collector import collector_held
from tensordiff.errors import AlignError, TensordiffError, printable
from tensordiff.search.outcome import Outcome


@dataclass(frozen=True)
class Request:
    """What to compare and how, as the user said it."""

    reference: Path
    candidate: Path
    rules: Path | None = None
    golden: Path | None = None
    injected: Path | None = None
    tolerances: Path | None = None
    """Tolerances (TOML) by layer; those of the rules come after them."""
    limits: Limits = field(default_factory=Limits)
    step: int | None = None
    only: str | None = None


@dataclass(frozen=True)
class Session:
    """Two opened dumps and how their entries are paired. Nothing is measured until asked."""

    request: Request
    reference: Dump
    candidate: Dump
    plan: Plan
    alignment: Alignment
    engine: Engine

    @classmethod
    def open(cls, request: Request) -> Session:
        """Open both dumps, and those beside them, and align. Touches headers at most."""
        said = read_rules_file(request.rules) if request.rules else RulesFile()
        limits = replace(request.limits, rules=(*_tolerances(request.tolerances), *said.tolerances))
        with collector_held():
            reference, candidate = _open_source(request.reference), _open_source(request.candidate)
            injected, golden = (_third(reference, path, said) for path in (request.injected, request.golden))
            plan = Plan.for_dumps(reference, candidate, said)
            alignment = align(reference, candidate, plan)
        return cls(request, reference, candidate, plan, alignment, Engine(limits, injected, golden))

    @cached_property
    def _indexes(self) -> tuple[Index, Index]:
        return Index(self.reference, self.plan.rules, "reference"), Index(self.candidate, self.plan.rules, "candidate")

    def suggestions(self) -> Iterator[Suggestion]:
        """What orphans may be, by their values."""
        return Suggester(*self._indexes, self.alignment).suggestions()

    def accept(self, suggestions: Sequence[Suggestion]) -> tuple[MapRule, ...]:
        """The suggestions that need no person: proven by value on every layer."""
        return accept(suggestions, *self._indexes)

    def with_proven(self, maps: tuple[MapRule, ...]) -> Session:
        """This session aligned anew, with maps that the values prove."""
        plan = replace(self.plan, proven_maps=maps)
        return replace(self, plan=plan, alignment=align(self.reference, self.candidate, plan))

    def why_orphan(self, entry: Entry, side: Side) -> str:
        """Why an entry has no partner."""
        mine, other = self._indexes if side == "reference" else self._indexes[::-1]
        layer = mine.canonical(entry)
        there = other.layers.get((layer, entry.step))
        if there is None:
            return f"no layer {printable(layer)} on the other side"
        ports = ", ".join(sorted({port_of(found.port) for found in there}))
        return f"the layer is there, with {printable(ports)}; none of them fits in kind and shape, or is free"

    def resumes(self, gap: Gap) -> str:
        """Whether the two sides agree again after layers that only one of them has."""
        if gap.after is None:
            return ""
        row = next(self.engine.rows([gap.after]))
        if row.diff is None:
            return ""
        again = "agree again" if row.verdict.name == "agrees" else f"differ by {row.diff.rel_l2:.1e}"
        return f"; the two {again} at {printable(gap.after.name)}"

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """The pairs that were asked for."""
        step, only = self.request.step, _regex(self.request.only)
        return tuple(
            pair
            for pair in self.alignment.pairs
            if (step is None or pair.reference.step == step)
            and (only is None or only.search(pair.name) or only.search(pair.reference.name))
        )

    def rows(self) -> Iterator[Row]:
        """Measure the pairs, in order."""
        return self.engine.rows(self.pairs)

    def logits(self, rows: Iterable[Row]) -> Logits | None:
        """How far apart the logits of the whole run are; None where none were dumped."""
        found: dict[int, Row] = {}
        for row in rows:
            entry, shape = row.pair.reference, row.shape or ()
            if row.diff and row.diff.elements and is_logits(row.pair.name, entry.port, shape):
                before = found.setdefault(entry.step, row)
                found[entry.step] = max(row, before, key=lambda one: one.diff.elements if one.diff else 0)
        seen = (values_of(row.pair) for row in found.values())
        return summed_up(logits(*sides, most=_LOGITS_READ) for sides in seen if sides is not None)

    def hint(self, row: Row) -> Hint | None:
        """What kind of error a row shows; reads the pair again, and what stands around it in the reference."""
        if row.diff is None or (sides := values_of(row.pair)) is None:
            return None
        return hint(*sides, context_of(row.pair.reference, self.reference, sides[0].size))

    def worst(self, row: Row, count: int) -> list[Element]:
        """A row's largest errors, with places and both values; reads the pair again."""
        sides = values_of(row.pair) if row.diff is not None else None
        return worst(*sides, count) if sides else []

    def outcome(self, rows: Iterable[Row]) -> Outcome:
        """What the rows come to."""
        dumps = self.reference, self.candidate
        unread = (f"{d.path / p.file}: {p.sentence}" for d in dumps for p in d.problems if p.is_unread)
        return Outcome(tuple(rows), tuple(map(printable, unread)))


_LOGITS_READ = 1 << 24
"""Elements of logits that a summary looks at: all of a short prompt's, some of a long one's."""


def _tolerances(path: Path | None) -> tuple[ToleranceRule, ...]:
    if path is None:
        return ()
    said = read_rules_file(path)
    if replace(said, tolerances=()) != RulesFile():
        raise AlignError(f"{printable(path)}: holds more than tolerances; give it with --rules, which takes all of it")
    if not said.tolerances:
        raise AlignError(f"{printable(path)}: holds no [[tolerance]], and would let anything pass; see docs/rules.md")
    return said.tolerances


_SOURCE = re.compile(r"^(hf|max|py|onnx):")


def _open_source(path: Path) -> Dump:
    if (found := _SOURCE.match(str(path))) and not path.exists():
        raise TensordiffError(
            f"{printable(path)}: {found[1]}: sources cannot be run yet; "
            "dump the run with its own tools and give that folder"
        )
    return open_dump(path)


def _third(reference: Dump, path: Path | None, said: RulesFile) -> Third | None:
    if path is None:
        return None
    other = open_dump(path)
    alignment = align(reference, other, Plan.for_dumps(reference, other, said))
    if not alignment.pairs:
        raise AlignError(
            f"{printable(path)}: nothing in it answers an entry of the reference; is it of the same model?"
        )
    return Third.of(alignment)


def _regex(text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise AlignError(f"--only {text!r} is not a regular expression: {error}") from error
