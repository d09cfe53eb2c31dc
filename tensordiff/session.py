"""One comparison, held together: two dumps, their alignment, and what was measured.

Both faces drive this and nothing below it. There is no printing here and no clock: long work is an
iterator, and the face decides about progress and stopping.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tensordiff.align import Alignment, Pair, RuleSet, align
from tensordiff.compare.engine import Engine, Row, Third
from tensordiff.compare.verdict import Limits
from tensordiff.dump import Dump, open_dump
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
    limits: Limits = field(default_factory=Limits)
    step: int | None = None
    only: str | None = None


@dataclass(frozen=True)
class Session:
    """Two opened dumps and how their entries are paired. Nothing is measured until asked."""

    request: Request
    reference: Dump
    candidate: Dump
    alignment: Alignment
    engine: Engine

    @classmethod
    def open(cls, request: Request) -> Session:
        """Open both dumps, and those beside them, and align. Touches headers at most."""
        rules = RuleSet().with_file(request.rules) if request.rules else RuleSet()
        with collector_held():
            reference, candidate = _open_source(request.reference), _open_source(request.candidate)
            injected, golden = (_third(reference, path, rules) for path in (request.injected, request.golden))
            alignment = align(reference, candidate, rules)
        return cls(request, reference, candidate, alignment, Engine(request.limits, injected, golden))

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

    def outcome(self, rows: Iterable[Row]) -> Outcome:
        """What the rows come to."""
        dumps = self.reference, self.candidate
        unread = (f"{d.path / p.file}: {p.sentence}" for d in dumps for p in d.problems if p.is_unread)
        return Outcome(tuple(rows), tuple(map(printable, unread)))


_SOURCE = re.compile(r"^(hf|max|py|onnx):")


def _open_source(path: Path) -> Dump:
    if (found := _SOURCE.match(str(path))) and not path.exists():
        raise TensordiffError(
            f"{printable(path)}: {found[1]}: sources cannot be run yet; "
            "dump the run with its own tools and give that folder"
        )
    return open_dump(path)


def _third(reference: Dump, path: Path | None, rules: RuleSet) -> Third | None:
    if path is None:
        return None
    alignment = align(reference, open_dump(path), rules)
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
