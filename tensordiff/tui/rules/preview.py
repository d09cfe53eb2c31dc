"""Previews an edit of the rules before it is made: changed names, pairs gained and lost.

No widget is touched here: the rule editor runs ``preview`` in a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from rich.text import Text

from tensordiff.align.match import Alignment, AlignmentPlan, Pair
from tensordiff.align.rules.file import RulesFile
from tensordiff.align.rules.rule import Side
from tensordiff.errors import printable
from tensordiff.session.session import Session


class Changes(NamedTuple):
    """The pairs that an edit adds and removes."""

    gained: tuple[Pair, ...]
    lost: tuple[Pair, ...]
    pairs: int
    reference_orphans: int
    candidate_orphans: int

    @property
    def any(self) -> bool:
        """Whether any pair changes."""
        return bool(self.gained or self.lost)


def changes(before: Alignment, after: Alignment) -> Changes:
    """The changes from one alignment to another."""
    old, new = ({pair_key(pair): pair for pair in one.pairs} for one in (before, after))
    gained = tuple(pair for key, pair in new.items() if key not in old)
    lost = tuple(pair for key, pair in old.items() if key not in new)
    orphans = len(after.reference_orphans), len(after.candidate_orphans)
    return Changes(gained, lost, len(after.pairs), *orphans)


def pair_key(pair: Pair) -> tuple[str, str, int, tuple[str, ...]]:
    """The identity of a pair: both entries, and their views."""
    return pair.reference.name, pair.candidate.name, pair.reference.step, tuple(pair.views)


_NAMES, _PAIRS = 4, 60


class Rename(NamedTuple):
    """A layer that would get another name."""

    before: str
    after: str


class Preview(NamedTuple):
    """What would change."""

    renamed: tuple[Rename, ...]
    """Some of the changed names."""
    changes: Changes


def preview(session: Session, said: RulesFile) -> Preview:
    """The changes to a session if it had these rules instead."""
    after = session.dumps.with_rules(said)
    renamed = islice(_renamed(session, after.plan), _NAMES)
    return Preview(tuple(renamed), changes(session.alignment, after.alignment))


def _renamed(session: Session, plan: AlignmentPlan) -> Iterator[Rename]:
    seen: set[Rename] = set()
    sides: tuple[Side, Side] = ("reference", "candidate")
    for side, dump in zip(sides, (session.reference, session.candidate), strict=True):
        for entry in dump.entries:
            of_class = entry.origin and entry.origin.module_class
            names = (rules.canonical(entry.layer, side, of_class) for rules in (session.plan.rules, plan.rules))
            found = Rename(*names)
            if found.before != found.after and found not in seen:
                seen.add(found)
                yield found


def shown(found: Preview) -> Text:
    """A preview as lines."""
    made = found.changes
    counts = f"{made.pairs} paired · {made.reference_orphans} + {made.candidate_orphans} orphans"
    text = Text().append(f"{_signed(made)} then {counts}\n", "bold")
    for one in found.renamed:
        text.append(printable(f"~ {one.before} → {one.after}") + "\n", "dim")
    for sign, style, pairs in (("+", "green", made.gained), ("−", "red", made.lost)):
        for pair in pairs[:_PAIRS]:
            text.append(f"{sign} {_named(pair)}\n", style)
        if len(pairs) > _PAIRS:
            text.append(f"{sign} and {len(pairs) - _PAIRS} more\n", style)
    return text


def _signed(made: Changes) -> str:
    if not made.any:
        return "no pair changes;"
    return f"+{len(made.gained)} −{len(made.lost)} pairs;"


def _named(pair: Pair) -> str:
    views = f"  [{', '.join(pair.views)}]" if pair.views else ""
    return printable(f"{pair.reference.name} = {pair.candidate.name}{views}")
