"""The outcome of a comparison: one verdict, the culprits, an exit status.

A culprit is an output that diverges although its inputs agree. A module that contains a culprit diverges, too, so the
innermost one is named. If everything inside a module agrees and the module itself does not, the fault lies between its
parts, and the module is named.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tensordiff.align.coverage import Coverage
from tensordiff.compare.judge.verdict import Verdict, VerdictName
from tensordiff.compare.row import Row
from tensordiff.dump.model import CallKey
from tensordiff.errors import printable
from tensordiff.search.peers import with_peer_outlier
from tensordiff.util.slices import sorted_positions


def culprits(rows: Sequence[Row]) -> list[Row]:
    """Every innermost output that diverges, in order. Inputs, which no layer computes, are named only if no output
    diverges."""
    rows = with_peer_outlier(_restore_padding_verdicts(_keep_automatic_culprits(rows)))
    wrong = [row for row in rows if row.verdict.name == "diverges"]
    outputs = [row for row in wrong if not row.is_input]
    if outputs and (other := _wrong_size_before(rows, outputs[0])) is not None:
        return [other]
    places = [_step_and_layer(row) for row in outputs]
    modules = [places[at] for at in sorted_positions(places)]
    found = [row for row in outputs if not _contains_any(row, modules)]
    return found or [_blame_gap_before(row, rows) for row in wrong]


def _keep_automatic_culprits(rows: Sequence[Row]) -> Sequence[Row]:
    """If the user's limits decided which rows fail, keep ``diverges`` only for rows that are culprits without them.

    Limits tell whether a run fails, not where its error begins: after a culprit everything may exceed them. If every
    failing row is explained by its input, the culprit is an earlier row that passed its own limit.
    """
    failing = [row for row in rows if row.verdict.name == "diverges" and not row.is_input]
    if not any(row.without_limits for row in failing):
        return rows
    automatic = [
        row if row.verdict.name != "diverges" else row._replace(verdict=_automatic_verdict(row)) for row in rows
    ]
    if any(_automatic_verdict(row).name == "diverges" for row in failing):
        return [old if new.verdict.name == "diverges" else new for old, new in zip(rows, automatic, strict=True)]
    earlier = itertools.takewhile(lambda row: row is not failing[0], rows)
    passed = [row for row in earlier if not row.is_input and _automatic_verdict(row).name == "diverges"]
    if not passed:
        return rows
    why = f"{_automatic_verdict(passed[-1]).why}; it is within its own tolerance, and what follows is not within theirs"
    named = passed[-1]._replace(verdict=Verdict("diverges", why))
    return [named if old is passed[-1] else new for old, new in zip(rows, automatic, strict=True)]


def _automatic_verdict(row: Row) -> Verdict:
    return row.without_limits or row.verdict


def _blame_gap_before(row: Row, rows: Sequence[Row]) -> Row:
    """An input that is wrong although every output is right: not a layer is at fault, but something before this one."""
    earlier = itertools.takewhile(lambda other: other is not row, rows)
    entry = row.pair.reference
    outputs = [r for r in earlier if not r.is_input and r.diff is not None and r.pair.reference.step == entry.step]
    after = f"between {printable(outputs[-1].pair.reference.layer)} and it" if outputs else "before the first layer"
    told = f"{row.verdict.why}; it is what the layer was given: the fault lies {after}"
    return row._replace(verdict=Verdict(row.verdict.name, told))


def _wrong_size_before(rows: Sequence[Row], first: Row) -> Row | None:
    """An output of a different size just before the first wrong output, if everything between them is right.

    A different size alone is no fault: engines pad, and return less than they computed. But if the next output is
    wrong, and nothing that could have used this one before was right, it is the likelier culprit.
    """
    before = list(itertools.takewhile(lambda row: row is not first, rows))
    same_step = [row for row in before if row.pair.reference.step == first.pair.reference.step and not row.is_input]
    for at, row in enumerate(same_step):
        if (
            row.verdict.name != "unknown"
            or row.dtypes is None
            or row.pair.reference.layer.startswith(f"{first.pair.reference.layer}.")
        ):
            continue
        sizes = [side.spec.size for side in (row.pair.reference, row.pair.candidate)]
        if sizes[0] != sizes[1] and not any(_is_block(later) for later in same_step[at:]):
            return row._replace(verdict=Verdict("diverges", f"{row.verdict.why}; what ran next is wrong"))
    return None


def _is_block(row: Row) -> bool:
    return row.pair.reference.layer.rpartition(".")[2].isdigit()


def _restore_padding_verdicts(rows: Sequence[Row]) -> Sequence[Row]:
    """Restore verdicts that were suspended as padding, unless nothing that ran afterwards is wrong without them.

    If later layers saw those tokens, other tokens would be wrong in the next block. If there is no other block, or
    something else is wrong, that cannot be told.
    """
    aside = [row for row in rows if row.set_aside is not None]
    if not aside:
        return rows
    first, is_wrong = _block_of(aside[0]), any(row.verdict.name == "diverges" for row in rows)
    after = rows[rows.index(aside[0]) :]
    if any(_block_of(row) not in ("", first) for row in after) and not is_wrong:
        return rows
    return [row if row.set_aside is None else row._replace(verdict=row.set_aside) for row in rows]


def _block_of(row: Row) -> str:
    found = _BLOCK.match(row.pair.reference.layer)
    return found.group() if found else ""


_BLOCK = re.compile(r"^.*?\.\d+(?=\.|$)")


def _step_and_layer(row: Row) -> tuple[int, str]:
    return row.pair.reference.step, row.pair.reference.layer


def _contains_any(row: Row, modules: Sequence[tuple[int, str]]) -> bool:
    """Whether one of the sorted modules lies inside the row's module."""
    step, layer = _step_and_layer(row)
    prefix = f"{layer}."
    at = bisect_left(modules, (step, prefix))
    return at < len(modules) and modules[at][0] == step and modules[at][1].startswith(prefix)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a comparison."""

    rows: tuple[Row, ...]
    unread: tuple[str, ...] = ()
    """Files of the two dumps that could not be read, each with the reason."""
    doubts: tuple[str, ...] = ()
    """Other reasons why no overall verdict is possible if no layer diverges, one sentence each."""
    coverage: Coverage | None = None
    """How much of both dumps was compared; None if that was not counted."""
    taken_weights: str = ""
    """Description of the candidate's weights that the reference was run with; empty if it ran with its own."""
    unanswered: str = ""
    """A sentence if the model's own output was not compared because only one side has it; else empty. It is not a
    doubt: the rest may agree without it."""

    @cached_property
    def culprit(self) -> Row | None:
        """The first culprit."""
        return next(iter(self.culprits), None)

    @cached_property
    def culprits(self) -> tuple[Row, ...]:
        """The first row of each call that contains a culprit, in order."""
        first: dict[CallKey, Row] = {}
        for row in culprits(self.rows):
            first.setdefault(row.pair.reference.call_key, row)
        return tuple(first.values())

    @cached_property
    def in_part(self) -> tuple[Row, ...]:
        """The outputs of which views left out a part, so that the rest was not compared."""
        return tuple(row for row in self.rows if row.is_in_part and row.diff is not None and not row.is_input)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why no overall verdict is possible: files that were not read, then the other doubts."""
        return self.unread + self.doubts

    @cached_property
    def verdict(self) -> VerdictName:
        """The overall verdict: one culprit makes it ``diverges``; a pair that could not be judged, or a doubt,
        ``unknown``."""
        if self.culprit is not None:
            return "diverges"
        names = {row.verdict.name for row in self.rows}
        if not names or "unknown" in names or self.reasons:
            return "unknown"
        return "drifts" if "drifts" in names else "agrees"

    @property
    def exit_status(self) -> int:
        """0 agrees, 1 diverges, 2 inconclusive."""
        return {"agrees": 0, "drifts": 0, "diverges": 1, "unknown": 2}[self.verdict]
