"""What stands around a tensor in its dump, and may be what the candidate lost or added twice.

These are what its layer was given, and what the layer's parts were given and gave: a residual is one of
them. Only tensors of the same size are read.

A closer look at one row: which tensor of it to look at, and what else is known of it, before asking for its kind.

A module that is wrong between its parts shows that best in what a part was first given wrong: there the residual is
just lost, or the heads just stand in another order, and no matrix product has mixed it yet. Reads a few tensors; it is
asked for the culprit, or for what a person points at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensordiff.align.match import Pair
from tensordiff.compare.hint import Hint
from tensordiff.compare.hint import catalogue as kinds
from tensordiff.compare.judge import routes as routing
from tensordiff.compare.judge.upstream_error import parent_of
from tensordiff.compare.judge.verdict import floor_for, growth_for
from tensordiff.compare.measure.dispatch import measure
from tensordiff.compare.row import Row, values_of
from tensordiff.dump.dtypes import Array, is_float, name_of
from tensordiff.dump.model import Dump, Entry
from tensordiff.errors import AlignError, DumpError, printable

_MOST = 16


def context_of(entry: Entry, dump: Dump, size: int) -> dict[str, Array]:
    """Tensors of a dump, by name, that an output of so many elements may be off by; the layer's inputs first."""
    found: dict[str, Array] = {}
    if entry.is_input:
        return found
    near = (other for other in dump.entries if other.step == entry.step and _is_near(other, entry))
    for other in sorted(near, key=lambda other: other.layer != entry.layer):
        if len(found) < _MOST:
            found |= _read(other, size)
    return found


def given_to(entry: Entry, dump: Dump, size: int) -> dict[str, Array]:
    """What an output's own layer was given, by name, as far as it has as many elements."""
    if entry.is_input:
        return {}
    found: dict[str, Array] = {}
    for other in dump.entries:
        if other.layer == entry.layer and other.step == entry.step and _is_near(other, entry) and len(found) < _MOST:
            found |= _read(other, size)
    return found


def _is_near(other: Entry, entry: Entry) -> bool:
    if other.layer == entry.layer:
        return other.is_input and other.call == entry.call
    parent, _, part = other.layer.rpartition(".")
    return bool(part) and parent == entry.layer


def _read(other: Entry, size: int) -> dict[str, Array]:
    """An entry by its name, or nothing: one that cannot be read has a row of its own, which says why."""
    try:
        fits = other.spec.size == size and is_float(other.spec.dtype)
        return {printable(other.name): other.read()} if fits else {}
    except DumpError:
        return {}


_MOST_CHOICES = 64  # experts a token may be sent to; a longer row of integers is something else
_MOST_PARTS = 256  # pairs of a module's parts that are looked through


def hint_for_row(row: Row, pairs: Sequence[Pair], reference: Dump) -> Hint | None:
    """What kind of error a row shows; None if no kind stands clear, or nothing was measured."""
    sides = values_of(row.pair) if row.diff is not None else None
    if sides is None:
        return None
    inner = None if row.is_input else _first_wrong_inside(row, pairs)
    if inner is not None and (found := _of_inner(row, inner, reference)):
        return found
    return kinds.find_hint(*sides, around=_around(row, pairs, reference, sides[0].size))


def _of_inner(row: Row, inner: Pair, reference: Dump) -> Hint | None:
    """The kind of what a part was given, in the light of what stands around the whole."""
    sides = values_of(inner)
    if sides is None:
        return None
    near = context_of(row.pair.reference, reference, sides[0].size)
    near.pop(printable(inner.reference.name), None)
    found = kinds.find_hint(*sides, around=kinds.HintContext(near, carried=_carried(row)))
    if found is None:
        return None
    part = printable(inner.reference.layer.removeprefix(f"{row.pair.reference.layer}."))
    return Hint(found.kind, f"in what {part} is given: {found.sentence}", found.evidence | {"part": part})


def _carried(row: Row) -> float:
    """The error of what came in, as the row knows it."""
    return row.diff.rel_l2 / row.amplification if row.diff and row.amplification else 0.0


def _around(row: Row, pairs: Sequence[Pair], reference: Dump, size: int) -> kinds.HintContext:
    entry = row.pair.reference
    routes = tuple(_routes(row.pair, pairs))
    gives_routes = any(pair.reference.layer == entry.layer and not pair.reference.is_input for pair, _ in routes)
    is_router = gives_routes and routing.is_router(row.pair)
    given = given_to(entry, reference, size)
    near = context_of(entry, reference, size)
    return kinds.HintContext(near, given, tuple(sides for _, sides in routes), is_router, _carried(row))


# --- inside a module ------------------------------------------------------------------------------


def _first_wrong_inside(row: Row, pairs: Sequence[Pair]) -> Pair | None:
    """The first input of a part that is wrong while all before it is right; None where something else is first."""
    for pair in _parts(row.pair, pairs):
        sides = values_of(pair)
        if sides is None or sides[0].dtype.kind in "iub":
            continue
        dtypes = name_of(sides[0].dtype), name_of(sides[1].dtype)
        most = max(floor_for(*dtypes)[1].agrees, growth_for(dtypes) * _carried(row))
        if not measure(*sides).rel_l2 <= most:  # a NaN is not
            return pair if pair.reference.is_input else None
    return None


def _parts(whole: Pair, pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Pairs of what stands in a module, in order, up to where it ends; not too many."""
    entry, inside = whole.reference, f"{whole.reference.layer}."
    found = (p for p in pairs if p.reference.step == entry.step and p.reference.layer.startswith(inside))
    for count, pair in enumerate(found):
        if count >= _MOST_PARTS:
            return
        if "mask" not in pair.reference.port:
            yield pair


# --- experts --------------------------------------------------------------------------------------


def _routes(pair: Pair, pairs: Sequence[Pair]) -> Iterator[tuple[Pair, tuple[Array, Array]]]:
    """Integers, a few a token, that the layer gives or is given, or a neighbour gives: routes, perhaps."""
    entry, parent = pair.reference, parent_of(pair.reference.layer)
    for other in pairs:
        layer = other.reference.layer
        is_near = layer == entry.layer or parent_of(layer) == entry.layer or (parent and parent_of(layer) == parent)
        if other.reference.step == entry.step and is_near and _holds_choices(other):
            sides = values_of(other)
            if sides is not None:
                yield other, sides


def _holds_choices(pair: Pair) -> bool:
    try:
        spec = pair.reference.spec
    except (DumpError, AlignError):
        return False
    return spec.dtype.kind in "iu" and len(spec.shape) >= 2 and 1 <= spec.shape[-1] <= _MOST_CHOICES and spec.size > 0
