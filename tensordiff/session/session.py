"""One comparison, held together: two dumps, their alignment, and what was measured.

Both faces drive this and nothing below it. There is no printing here and no clock: long work is an
iterator, and the face decides about progress and stopping.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tensordiff.align import Alignment, AlignmentPlan, Pair, align
from tensordiff.align.expression import Name
from tensordiff.align.index import ComputedTensor, Index, port_of
from tensordiff.align.maps import general, resolve_map
from tensordiff.align.rule_usage import RuleUsage, rule_usage
from tensordiff.align.rules.file import RulesFile, read_rules_file, rules_text
from tensordiff.align.rules.rule import Rule, Side
from tensordiff.align.rules.tables import MapRule
from tensordiff.align.structure_gaps import Gap
from tensordiff.align.suggest import Suggester, Suggestion, accept, accept_chosen, label
from tensordiff.capture.job import parse_source
from tensordiff.capture.settings import Injection
from tensordiff.compare.engine import Engine, ThirdDump
from tensordiff.compare.hint import Hint
from tensordiff.compare.hint.context import hint_for_row
from tensordiff.compare.look.elements import Element, worst_elements
from tensordiff.compare.look.logits import LogitsDiff, compare_logits, is_logits, summed_up
from tensordiff.compare.measure.dispatch import as_reals
from tensordiff.compare.row import Row, values_of
from tensordiff.dump import Dump, Entry, open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.errors import AlignError, TensordiffError, printable
from tensordiff.search.outcome import Outcome
from tensordiff.session.request import Request
from tensordiff.session.state import State, read_state, rules_of_state
from tensordiff.util.garbage_collector import gc_paused


@dataclass(frozen=True)
class Session:
    """Two opened dumps and how their entries are paired. Nothing is measured until asked."""

    request: Request
    reference: Dump
    candidate: Dump
    plan: AlignmentPlan
    alignment: Alignment
    engine: Engine
    said: RulesFile = field(default_factory=RulesFile)
    """The rules as a person has them by now: of a file, of a session."""
    written: RulesFile = field(default_factory=RulesFile)
    """The rules as their file has them."""

    @classmethod
    def open(cls, request: Request, kept: State | None = None) -> Session:
        """Open both dumps, and those beside them, and align; as a session left it. Touches headers at most."""
        with gc_paused():
            reference, candidate = _open_source(request.reference), _open_source(request.candidate)
            injected, golden = map(_open_beside, (request.injected, request.golden))
            return cls.of_dumps(request, reference, candidate, injected=injected, golden=golden, kept=kept)

    @classmethod
    def of_dumps(
        cls,
        request: Request,
        reference: Dump,
        candidate: Dump,
        *,
        injected: Dump | None = None,
        golden: Dump | None = None,
        kept: State | None = None,
    ) -> Session:
        """Align dumps that are open, or that never lay on disk; all else is as the request says."""
        written = read_rules_file(request.rules) if request.rules else None
        kept = kept or (read_state(request.session) if request.session else State())
        said = rules_of_state(kept, written)
        limits = request.limits_with(said)
        with gc_paused():
            engine = Engine(limits, _third(reference, injected, said), _third(reference, golden, said))
            plan = AlignmentPlan.for_dumps(reference, candidate, said)
            alignment = align(reference, candidate, plan)
        return cls(request, reference, candidate, plan, alignment, engine, said, written or RulesFile())

    @cached_property
    def _indexes(self) -> tuple[Index, Index]:
        return Index(self.reference, self.plan.rules, "reference"), Index(self.candidate, self.plan.rules, "candidate")

    def suggestions(self, tick: Callable[[], None] = lambda: None) -> Iterator[Suggestion]:
        """What orphans may be, by their values. ``tick`` is called often, and ends the search by raising."""
        return Suggester(*self._indexes, self.alignment, tick).suggestions()

    def accept(self, suggestions: Sequence[Suggestion]) -> tuple[MapRule, ...]:
        """The suggestions that need no person: proven by value on every layer."""
        return accept(suggestions, *self._indexes)

    def accept_chosen(self, chosen: Iterable[Suggestion], among: Sequence[Suggestion]) -> tuple[MapRule, ...]:
        """Maps of the suggestions that a person chose: for every layer where all of them prove every layer."""
        return accept_chosen(chosen, among, *self._indexes)

    def with_proven(self, maps: tuple[MapRule, ...]) -> Session:
        """This session aligned anew, with maps that the values prove."""
        plan = replace(self.plan, proven_maps=maps)
        return replace(self, plan=plan, alignment=align(self.reference, self.candidate, plan))

    def aligned_with(self, said: RulesFile) -> tuple[AlignmentPlan, Alignment]:
        """How the dumps would be aligned were this said instead."""
        plan = replace(AlignmentPlan.for_dumps(self.reference, self.candidate, said), proven_maps=self.plan.proven_maps)
        with gc_paused():
            return plan, align(self.reference, self.candidate, plan)

    def realigned(self, said: RulesFile) -> Session:
        """This session with something else said. A dump beside these is aligned anew where it was asked for."""
        plan, alignment = self.aligned_with(said)
        beside = map(_open_beside, (self.request.injected, self.request.golden))
        injected, golden = (_third(self.reference, dump, said) for dump in beside)
        injected, golden = injected or self.engine.injected, golden or self.engine.golden
        engine = Engine(self.request.limits_with(said), injected, golden)
        return replace(self, plan=plan, alignment=alignment, engine=engine, said=said)

    def with_threshold(self, threshold: float | None) -> Session:
        """The same pairs, judged by another threshold of ``rel_l2``; None is what precision explains."""
        request = replace(self.request, limits=replace(self.request.limits, threshold=threshold))
        engine = replace(self.engine, limits=replace(self.engine.limits, threshold=threshold))
        return self._same_pairs(request=request, engine=engine)

    def with_rules_file(self, path: Path, written: RulesFile) -> Session:
        """The same pairs; the rules are in a file now. Its name is taken over where these pairs are by those rules."""
        said = written if written == self.said else self.said
        return self._same_pairs(request=replace(self.request, rules=path), said=said, written=written)

    def asked_as(self, other: Session) -> Session:
        """These pairs, with the threshold and the rules file that another session of the same dumps has by now."""
        session, threshold = self, other.request.limits.threshold
        if session.request.limits.threshold != threshold:
            session = session.with_threshold(threshold)
        if session.request.rules != other.request.rules or session.written != other.written:
            request = replace(session.request, rules=other.request.rules)
            session = session._same_pairs(request=request, written=other.written)
        return session

    def _same_pairs(self, **changes: Any) -> Session:
        """This session with something changed that pairs and names do not depend on; their indexes stay."""
        session = replace(self, **changes)
        session.__dict__.update({name: self.__dict__[name] for name in ("_indexes", "pairs") if name in self.__dict__})
        return session

    def with_candidate(self, path: Path) -> Session:
        """The same comparison of another run of the candidate: by the same rules, tolerances and golden run."""
        candidate = open_dump(path)
        plan = replace(AlignmentPlan.for_dumps(self.reference, candidate, self.said), proven_maps=self.plan.proven_maps)
        alignment = align(self.reference, candidate, plan)
        request = replace(self.request, candidate=path, injected=None)
        engine = replace(self.engine, injected=None)
        return replace(self, request=request, candidate=candidate, plan=plan, alignment=alignment, engine=engine)

    def injection(self, at: str) -> Injection:
        """The reference's inputs for a rerun of the candidate; layers are paired by the rules in force here."""
        rules = None if self.request.rules is None else str(self.request.rules.absolute())
        return Injection(str(self.reference.path.absolute()), at, rules, rules_text(self.said))

    @property
    def preset_rules(self) -> tuple[Rule, ...]:
        """The rules that the presets bring, as they have them: on."""
        return tuple(replace(rule, on=True) for rule in self.plan.rules.rules[len(self.said.rules) :])

    def hits(self) -> RuleUsage:
        """What each rule, map and view does."""
        return rule_usage(self.said, *self._indexes, self.alignment)

    def mapped(self, rule: MapRule) -> tuple[Pair, ...]:
        """The pairs that a map would make: one for each layer and step that has all its names."""
        made = resolve_map(general(rule), *self._indexes)
        return tuple(Pair(k, self._indexes[1].canonical(c), r, c, "map") for k, (r, c) in enumerate(made))

    def label(self, entry: Entry, side: Side) -> str:
        """What an expression calls an entry; of one that is computed, the expression."""
        if isinstance(entry.stored, ComputedTensor):
            return str(entry.stored.expression)
        return str(Name(label(self._indexes[side == "candidate"], entry)))

    def find(self, name: str, side: Side) -> Entry | None:
        """The entry that a name in an expression means, in the first step that has it."""
        index = self._indexes[side == "candidate"]
        return next((found for step in index.steps if (found := index.find(name, step))), None)

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
        step = self.request.step
        only = None if self.request.only is None else re.compile(self.request.only)
        return tuple(
            pair
            for pair in self.alignment.pairs
            if (step is None or pair.reference.step == step)
            and (only is None or only.search(pair.name) or only.search(pair.reference.name))
        )

    def rows(self) -> Iterator[Row]:
        """Measure the pairs, in order."""
        return self.engine.rows(self.pairs)

    def logits(self, rows: Iterable[Row]) -> LogitsDiff | None:
        """How far apart the logits of the whole run are; None where none were dumped."""
        found: dict[int, Row] = {}
        for row in rows:
            entry, shape = row.pair.reference, row.shape or ()
            if row.diff and row.diff.elements and is_logits(row.pair.name, entry.port, shape):
                before = found.setdefault(entry.step, row)
                found[entry.step] = max(row, before, key=lambda one: one.diff.elements if one.diff else 0)
        seen = (values_of(row.pair) for row in found.values())
        return summed_up(compare_logits(*sides, most=_LOGITS_READ) for sides in seen if sides is not None)

    def hint(self, row: Row) -> Hint | None:
        """What kind of error a row shows; reads the pair again, and what stands around it in the reference."""
        return hint_for_row(row, self.alignment.pairs, self.reference)

    def sides(self, row: Row) -> tuple[Array, Array] | None:
        """Both sides of a row in one shape and in real numbers, to be looked into; None where it has no numbers."""
        found = values_of(row.pair) if row.diff is not None else None
        return as_reals(*found) if found else None

    def worst(self, row: Row, count: int) -> list[Element]:
        """A row's largest errors, with places and both values; reads the pair again."""
        sides = values_of(row.pair) if row.diff is not None else None
        return worst_elements(*sides, count) if sides else []

    def outcome(self, rows: Iterable[Row]) -> Outcome:
        """What the rows come to."""
        dumps = self.reference, self.candidate
        unread = (f"{d.path / p.file}: {p.sentence}" for d in dumps for p in d.problems if p.is_unread)
        with gc_paused():
            return Outcome(tuple(rows), tuple(map(printable, unread)))


_LOGITS_READ = 1 << 24
"""Elements of logits that a summary looks at: all of a short prompt's, some of a long one's."""


def _open_source(path: Path) -> Dump:
    if parse_source(str(path)) is not None and not path.exists():
        raise TensordiffError(f"{printable(path)}: is a source, and was not run; tensordiff capture makes a dump of it")
    return open_dump(path)


def _open_beside(path: Path | None) -> Dump | None:
    return None if path is None else open_dump(path)


def _third(reference: Dump, other: Dump | None, said: RulesFile) -> ThirdDump | None:
    if other is None:
        return None
    alignment = align(reference, other, AlignmentPlan.for_dumps(reference, other, said))
    if not alignment.pairs:
        raise AlignError(
            f"{printable(other.path)}: nothing in it answers an entry of the reference; is it of the same model?"
        )
    return ThirdDump.of(alignment)
