"""The data of the table, as columns of numbers: taking in rows, and ordering them.

Nothing here depends on a screen. Pairs are known from the start, and their rows come in batches made by the measuring
thread. Sorting is one argsort over a column and a filter is a mask, so a hundred thousand rows are no special case. A
missing number is ``ABSENT`` and sorts last; a NaN is worse than any number and sorts with the worst.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple, cast, overload

import numpy as np
from numpy.typing import NDArray

from tensordiff.align.match import Pair
from tensordiff.compare.row import Row
from tensordiff.errors import printable
from tensordiff.report.labels import component, label, pair_name, shown_views
from tensordiff.session.storage.state import row_name as key_of
from tensordiff.tui.table.columns import COLUMNS
from tensordiff.util.regex import UserRegex
from tensordiff.util.slices import SlicedDict, release, sorted_positions

ABSENT = -1.0
"""No error is negative, so this value cannot be one."""
VERDICTS = ("pending", "agrees", "drifts", "unknown", "diverges")
"""From mild to bad; a verdict's code is its index here."""
_CODES = {name: code for code, name in enumerate(VERDICTS)}
COMPONENTS = ("attention", "mlp", "norm", "embedding", "head", "block", "other")
_COMPONENT_CODES = {name: code for code, name in enumerate(COMPONENTS)}
_ASKED_AFTER = 2_000
"""Names that can be matched in a few milliseconds."""
AGREES, DIVERGES = _CODES["agrees"], _CODES["diverges"]

Positions = NDArray[np.intp]
RowKey = str


def _reader(path: str) -> Callable[[Row], float | None]:
    """A function that reads an attribute of a row, or of one of its diffs (``diff.mse``), which may be None."""
    first, _, second = path.partition(".")
    of_row = attrgetter(first)
    if not second:
        return of_row
    of_diff = attrgetter(second)

    def read(row: Row) -> float | None:
        diff = of_row(row)
        return None if diff is None else of_diff(diff)

    return read


METRICS: dict[str, Callable[[Row], float | None]] = {
    **{column.id: _reader(column.value) for column in COLUMNS if column.value is not None},
    "elements": lambda row: None if row.shape is None else float(math.prod(row.shape)),
}
"""The numbers of a row by name: those of the columns, and the one that shapes are sorted by."""
NUMBERS = tuple(METRICS)


@dataclass(frozen=True, eq=False)
class Selection:
    """A choice of rows as a mask: looking up a million positions in a set takes the event loop long."""

    mask: NDArray[np.bool_]


class Suspects(Collection[int]):
    """Rows that a search suspects, in order: making a set of a million takes longer than a key may wait."""

    def __init__(self, positions: Positions | Sequence[int] = ()) -> None:
        self._positions = np.asarray(positions, np.intp)

    def __len__(self) -> int:
        return len(self._positions)

    def __iter__(self) -> Iterator[int]:
        return iter(self._positions.tolist())

    def __contains__(self, position: object) -> bool:
        at = int(np.searchsorted(self._positions, cast("int", position)))
        return at < len(self) and bool(self._positions[at] == position)

    @property
    def span(self) -> tuple[int, int] | None:
        """The first and the last position; None if nothing is suspected."""
        return (int(self._positions[0]), int(self._positions[-1])) if len(self) else None


class Order(NamedTuple):
    """Which rows are shown, and in which order."""

    by: str | None = None
    """A column; None for execution order."""
    descending: bool = True
    faults: bool = False
    """Only rows that do not agree, including inputs: the rows that ``compare --faults`` prints."""
    inputs: bool = False
    """Show inputs besides outputs."""
    only: Selection | None = None
    """None for all rows."""


class Pattern(NamedTuple):
    """A filter as it was typed: a regular expression; ``!`` before it inverts."""

    regex: UserRegex
    inverted: bool

    @classmethod
    def parse(cls, text: str) -> Pattern | None:
        """Parse a filter; None for an empty one. Raises ``AlignError``."""
        inverted = text.startswith("!")
        said = text[inverted:]
        return cls(UserRegex("the filter", said), inverted) if said else None

    def matches(self, name: str) -> bool:
        """Whether to show a name."""
        return self.regex.matches(name) != self.inverted


class Batch(NamedTuple):
    """Rows that were measured since the last batch, with their numbers; made outside the event loop."""

    start: int
    rows: list[Row]
    numbers: NDArray[np.float64]
    verdicts: NDArray[np.int8]

    @classmethod
    def of(cls, start: int, rows: list[Row]) -> Batch:
        """Make a batch; its numbers are in the order of ``NUMBERS``."""
        values = [[_or_absent(metric(row)) for row in rows] for metric in METRICS.values()]
        codes = [_CODES[row.verdict.name] for row in rows]
        return cls(start, rows, np.array(values, np.float64).reshape(len(NUMBERS), -1), np.array(codes, np.int8))


def _or_absent(value: float | None) -> float:
    return ABSENT if value is None else float(value)


@dataclass(frozen=True)
class RowNumbers(Sequence[int]):
    """The numbers of pairs, each computed on access: building a list of a million would keep a key waiting."""

    pairs: Sequence[Pair]

    def __len__(self) -> int:
        return len(self.pairs)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...
    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        return RowNumbers(self.pairs[at]) if isinstance(at, slice) else self.pairs[at].index


@dataclass
class Listing:
    """All pairs, and what is known of each."""

    pairs: tuple[Pair, ...]
    labels: list[str]
    """The printable name of each pair."""
    rows: list[Row | None]
    numbers: NDArray[np.float64]
    verdicts: NDArray[np.int8]
    is_input: NDArray[np.bool_]
    components: NDArray[np.int8]
    """The part of a network that each belongs to, as an index into ``COMPONENTS``."""
    longest: int
    """Characters of the longest label."""
    counts: NDArray[np.int64]
    """The number of rows with each verdict, by its code; updated with each batch, because the summary reads it then."""
    measured: int = 0
    """The number of rows that were put in since the listing was made."""

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> Listing:
        """A listing without any measured row."""
        count, labels = len(pairs), [label(pair) for pair in pairs]
        return cls(
            tuple(pairs),
            labels,
            [None] * count,
            np.full((len(NUMBERS), count), ABSENT),
            np.zeros(count, np.int8),
            np.fromiter((pair.reference.is_input for pair in pairs), np.bool_, count),
            np.fromiter((_COMPONENT_CODES[component(pair.name)] for pair in pairs), np.int8, count),
            # one step of Python's for each, so that other threads can run
            max((len(text) for text in labels), default=0),
            _counted(np.zeros(count, np.int8)),
        )

    def __len__(self) -> int:
        return len(self.pairs)

    def carry(self, other: Listing) -> None:
        """Show another listing's numbers for the same pairs until they are measured again."""
        for at, key in enumerate(map(key_of, self.pairs)):
            before = other.positions.get(key)
            if before is not None and other.rows[before] is not None:
                self.rows[at] = other.rows[before]
                self.numbers[:, at] = other.numbers[:, before]
                self.verdicts[at] = other.verdicts[before]
        self.counts = _counted(self.verdicts)

    def put(self, batch: Batch) -> None:
        """Take in a batch."""
        end = batch.start + len(batch.rows)
        self.counts += _counted(batch.verdicts) - _counted(self.verdicts[batch.start : end])
        self.rows[batch.start : end] = batch.rows
        self.numbers[:, batch.start : end] = batch.numbers
        self.verdicts[batch.start : end] = batch.verdicts
        self.measured = end

    def known_rows(self, pair: Pair) -> tuple[list[Row], int | None]:
        """All rows so far, and the index of a pair's row among them."""
        at, count = self.positions.get(key_of(pair)), len(self) - int(self.counts[_CODES["pending"]])
        # searching a million rows would stall
        if count in (self.measured, len(self)) and at is not None and at < count and self.pairs[at] is pair:
            return cast("list[Row]", self.rows[:count]), at
        rows = [row for row in self.rows if row is not None]
        return rows, next((k for k, row in enumerate(rows) if row.pair is pair), None)

    def column(self, name: str) -> NDArray[np.float64]:
        """A metric's numbers, by position."""
        found: NDArray[np.float64] = self.numbers[NUMBERS.index(name)]
        return found

    @cached_property
    def positions(self) -> SlicedDict[RowKey, int]:
        """The position of each pair, by its key."""
        positions: SlicedDict[RowKey, int] = SlicedDict()
        for at, pair in enumerate(self.pairs):
            positions[key_of(pair)] = at
        return positions

    @cached_property
    def name_ranks(self) -> NDArray[np.float64]:
        """The rank of each name in natural order, with 10 after 9."""
        ranks, keys = np.empty(len(self)), [_natural(label) for label in self.labels]
        ranks[sorted_positions(keys)] = np.arange(len(self))
        release(keys)
        return ranks

    def find(self, pair: Pair) -> int | None:
        """The position of the same pair here, or of the pair that has its reference entry now."""
        found: int | None = self.positions.get(key_of(pair))
        if found is not None:
            return found
        wanted = pair.reference.step, pair.reference.name
        same = (at for at, p in enumerate(self.pairs) if (p.reference.step, p.reference.name) == wanted)
        return next(same, None)

    def matching(self, pattern: Pattern, is_wanted: Callable[[], bool] = lambda: True) -> Selection | None:
        """The rows whose shown name matches; None if ``is_wanted``, which is called often, returns False."""
        mask = np.empty(len(self), np.bool_)
        for start in range(0, len(self), _ASKED_AFTER):
            if not is_wanted():
                return None
            names = self.labels[start : start + _ASKED_AFTER]
            mask[start : start + len(names)] = [pattern.matches(name) for name in names]
        return Selection(mask)

    def order(self, how: Order) -> Positions:
        """Positions in the order to show them."""
        kept = self.kept(how)
        if how.by is None:
            return np.flatnonzero(kept)
        whole = self._sorted(how.by, how.descending)
        ordered: Positions = whole[kept[whole]]
        return ordered

    def kept(self, how: Order) -> NDArray[np.bool_]:
        """Which rows are shown."""
        kept = np.ones(len(self), np.bool_)
        if how.faults:
            kept &= self.verdicts > AGREES
        if self.hides_inputs(how):
            kept &= ~self.is_input
        if how.only is not None:
            kept &= how.only.mask
        return kept

    def hides_inputs(self, how: Order) -> bool:
        """Whether inputs are left out: not among faults, and not if there is nothing else."""
        return not how.inputs and not how.faults and bool(self.is_input.any()) and not self.is_input.all()

    def _sorted(self, by: str, descending: bool) -> Positions:
        return ranked(self._keys(by), descending)

    def _keys(self, by: str) -> NDArray[np.float64]:
        if by == "layer":
            return self.name_ranks
        if by == "verdict":
            return np.where(self.verdicts == 0, ABSENT, self.verdicts.astype(np.float64))
        return self.column("elements" if by == "shape" else "rel_l2" if by == "profile" else by)


def _counted(verdicts: NDArray[np.int8]) -> NDArray[np.int64]:
    return np.bincount(verdicts, minlength=len(VERDICTS)).astype(np.int64)


def ranked(values: NDArray[np.float64], descending: bool) -> Positions:
    """Positions by value, equal ones in their own order; NaN is beyond infinity, absent ones are last in either
    direction.
    """
    nan, absent = np.isnan(values), values == ABSENT
    keys = [np.arange(len(values)), np.where(nan, 0.0, -values if descending else values), nan != descending, absent]
    order: Positions = np.lexsort(keys)
    return order


_NUMBER = re.compile(r"[0-9]+")


def _natural(text: str) -> str:
    """A key that sorts printable text with numbers by their size: a longer number is a larger one."""
    return _NUMBER.sub(_sized, text)


def _sized(number: re.Match[str]) -> str:
    """A number after a character that encodes its length and is less than any printable one."""
    digits = number[0].lstrip("0")
    return f"{chr(1 + len(digits))}{digits}" if len(digits) < 30 else f"{chr(31)}{len(digits):09}{digits}"


def layer_name(pair: Pair) -> str:
    """A pair's layer without its port."""
    return printable(" ".join([pair_name(pair), *shown_views(pair)]))
