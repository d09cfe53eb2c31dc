"""The subject of the layer screen: one row among others, and what reading it gave.

There is no widget in this module. Every property reads its data once, and only in a thread: the event loop uses none of
them. A row without numbers has a sentence instead (``NothingToShow``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from tensordiff.compare.hint import Hint
from tensordiff.compare.look.axes import DumpAxes, NamedShape, name_axes, token_ids_of
from tensordiff.compare.row import Row
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Entry
from tensordiff.errors import AlignError, DumpError, TensordiffError, printable
from tensordiff.search.neighbours import RowNeighbours, neighbours_of
from tensordiff.session.session import Session
from tensordiff.util.garbage_collector import heap_frozen

T = TypeVar("T")


class NothingToShow(TensordiffError):
    """A row has no values to show; the sentence says why."""


class Subject:
    """A row, by its position among all rows."""

    def __init__(self, session: Session, rows: Sequence[Row], at: int) -> None:
        self.session, self.rows, self.at = session, rows, at
        self.row = rows[at]
        self._lock = threading.RLock()
        self._known: dict[str, object] = {}

    def _once(self, name: str, find: Callable[[], T]) -> T:
        with self._lock:
            if name not in self._known:
                self._known[name] = find()
            return self._known[name]  # type: ignore[return-value]

    @property
    def sides(self) -> tuple[Array, Array]:
        """Both sides in one shape, as real numbers."""
        return self._once("sides", self._sides)

    def _sides(self) -> tuple[Array, Array]:
        found = self.session.sides(self.row)
        if found is None:
            raise NothingToShow(f"there are no numbers to show: {printable(self.row.verdict.why)}")
        if not found[0].size:
            raise NothingToShow(f"both tensors are empty, of shape {list(found[0].shape)}")
        return found

    @property
    def form(self) -> NamedShape:
        """The common shape, with named axes."""
        return self._once("form", self._form)

    def _form(self) -> NamedShape:
        shape, entry = self.sides[0].shape, self.row.pair.reference
        plain = self.row.shape if self.row.shape is not None else shape
        form = name_axes(entry, plain, self._axes.tokens_of(entry.step))
        return form if plain == shape else NamedShape((*form.names, "re, im"), shape)

    @property
    def _axes(self) -> DumpAxes:
        axes = self.session.reference_axes
        if not axes.is_found:
            with heap_frozen():  # what it finds stays, and is large: the collector need not visit it
                axes.find()
        return axes

    @property
    def heads(self) -> int | None:
        """The number of heads that the channels belong to, if the dump shows it."""
        return self._once("heads", self._heads)

    def _heads(self) -> int | None:
        shape = self.form.shape
        return self._axes.heads_of(self.row.pair.reference, shape[-1]) if shape else None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The token ids, if either dump has them."""
        step = self.row.pair.reference.step
        dumps = self.session.reference, self.session.candidate
        return self._once("ids", lambda: next(filter(None, (token_ids_of(dump, step) for dump in dumps)), ()))

    @property
    def around(self) -> RowNeighbours:
        """The rows around this one."""
        return self._once("around", lambda: neighbours_of(self.rows, self.at))

    @property
    def hint(self) -> Hint | None:
        """The kind of error, looked for only in rows that diverge."""
        return self._once("hint", lambda: self.session.hint(self.row) if self.diverges else None)

    @property
    def weights(self) -> str:
        """A sentence if its weights are the same in both dumps; if they differ, that is the hint."""
        found = self._once("weights", lambda: self.session.layer_weights(self.row) if self.diverges else None)
        return found.sentence if found is not None and found.hint is None else ""

    @property
    def diverges(self) -> bool:
        """Whether this row is wrong by itself."""
        return self.row.verdict.name == "diverges" and self.row.diff is not None

    @property
    def shapes(self) -> tuple[str, str]:
        """Each side's own shape, before any view."""
        pair = self.row.pair
        return self._once("shapes", lambda: (_own_shape(pair.reference), _own_shape(pair.candidate)))


def _own_shape(entry: Entry) -> str:
    try:
        spec = entry.spec
    except (DumpError, AlignError):
        return "unreadable"
    return f"{spec.dtype.name} {list(spec.shape)}"
