"""The right values in the wrong place: in another parameter, transposed, permuted, fused in another order."""

from __future__ import annotations

import numpy as np

from tensordiff.compare.hint import Hint
from tensordiff.dump.names import NUMBER_PART
from tensordiff.errors import printable
from tensordiff.weights.hint.orders import fused_order, match_rows, name_of_order, shift_of_rows
from tensordiff.weights.hint.pair_tables import PairTables
from tensordiff.weights.samples import are_alike, is_telling

_SMALLEST = 8


def wrong_slot(tables: PairTables) -> Hint | None:
    """The candidate holds what the reference has under another name."""
    ours, theirs = tables.pair.reference, tables.pair.candidate
    if len(ours.parameters) != 1 or len(theirs.parameters) != 1 or tables.pair.is_tied:
        return None
    own = ours.parameters[0]
    holders = tables.reference.holding(theirs.stored, lambda item: item is not own)
    if not holders:
        return None
    other = holders[0]
    if own.is_head and other.is_embedding:
        return Hint("tied", f"holds the embedding ({printable(other.title)}): tied, though the reference is not", {})
    holders_of_ours = tables.candidate.holding(ours.stored, lambda item: item is not theirs.parameters[0])
    is_swapped = any(item.canonical == other.canonical and item.kind == other.kind for item in holders_of_ours)
    evidence = {"holds": other.name}
    if is_swapped:
        return Hint("swapped", f"swapped with {printable(other.title)}", {**evidence})
    return Hint("wrong slot", f"holds {printable(other.title)} of the reference{_off_by(own, other)}", {**evidence})


def _off_by(own: object, other: object) -> str:
    """`` (1 layer further)`` if the names differ in one number."""
    ours, theirs = getattr(own, "title", ""), getattr(other, "title", "")
    if NUMBER_PART.sub("{}", ours) != NUMBER_PART.sub("{}", theirs):
        return ""
    gaps = [
        int(b) - int(a) for a, b in zip(NUMBER_PART.findall(ours), NUMBER_PART.findall(theirs), strict=True) if a != b
    ]
    if len(gaps) != 1:
        return ""
    what = "expert" if f"experts.{NUMBER_PART.findall(ours)[-1]}." in ours and "experts" in theirs else "layer"
    count = abs(gaps[0])
    return f" ({count} {what}{'s' if count > 1 else ''} {'further' if gaps[0] > 0 else 'before'})"


def untied(tables: PairTables) -> Hint | None:
    """On the reference the head is the embedding; on the candidate it is something else."""
    ours = tables.pair.reference.parameters
    if len(ours) != 1 or not ours[0].is_head or tables.pair.is_tied:
        return None
    embeddings = tables.reference.holding(ours[0].stored, lambda item: item.is_embedding)
    if not embeddings:
        return None
    return Hint(
        "untied", f"the reference's is its embedding ({printable(embeddings[0].title)}); the candidate's is not", {}
    )


def transposed(tables: PairTables) -> Hint | None:
    """A square matrix whose rows and columns are exchanged, or a stack of such."""
    rows, columns = tables.ref.shape
    if tables.parts > 1:
        return _transposed_parts(tables)
    if rows == columns > 1 and tables.fits(tables.ref.T):
        return Hint("transposed", "transposed: rows and columns are exchanged", {})
    return None


def _transposed_parts(tables: PairTables) -> Hint | None:
    shape = (tables.parts, -1, tables.ref.shape[1])
    ref = tables.ref.reshape(shape)
    if ref.shape[1] == ref.shape[2] and tables.fits(ref.swapaxes(1, 2).reshape(tables.ref.shape)):
        return Hint("transposed", "each expert is transposed: rows and columns are exchanged", {})
    return None


def experts(tables: PairTables) -> Hint | None:
    """Parts of a stack that changed places, or one that differs."""
    if tables.parts < 2:
        return None
    ref, cand = tables.ref.reshape(tables.parts, -1), tables.cand.reshape(tables.parts, -1)
    order = match_rows(ref, cand, tables.slack)
    if order is not None:
        return Hint("expert", name_of_order(order, "experts")[1], {"order": order.tolist()[:64]})
    equal = [are_alike(cand[k], ref[k], tables.slack) for k in range(tables.parts)]
    different = [k for k, alike in enumerate(equal) if not alike]
    if len(different) == 1:
        k = different[0]
        zero = " (all zero)" if not np.any(cand[k]) else ""
        return Hint("expert", f"only expert {k} of {tables.parts} differs{zero}", {"expert": k})
    return None


def rows_permuted(tables: PairTables) -> Hint | None:
    """The same rows in another order."""
    if tables.ref.shape[0] < _SMALLEST or not is_telling(tables.ref):
        return None
    order = match_rows(tables.ref, tables.cand, tables.slack)
    if order is None:
        return None
    what = "elements" if tables.ref.shape[1] == 1 else "rows"
    parts = tables.pair.reference if len(tables.pair.reference.parameters) > 1 else tables.pair.candidate
    if len(parts.parameters) > 1 and tables.parts == 1 and sum(parts.part_rows) == len(order):
        names = [item.canonical.rpartition(".")[2] for item in parts.parameters]
        seen_from = order if parts is tables.pair.reference else np.argsort(order)
        if text := fused_order(seen_from, parts.part_rows, names):
            return Hint("fused order", f"fused in another order: {text}", {"order": text})
    kind, text, size = name_of_order(order, what)
    # If rows repeat, as padding does, many orders are possible, and one of them is a shift.
    shifted = rows_shifted(tables) if (kind, size) == ("permuted", 0) else None
    return shifted or Hint(kind, text, {"block": size} if size else {})


def rows_shifted(tables: PairTables) -> Hint | None:
    """Rows moved by a number of places, from some row on: one was inserted or left out, the end was padded or cut."""
    if tables.parts > 1 or tables.ref.shape[1] < _SMALLEST or not is_telling(tables.ref):
        return None
    shift = shift_of_rows(tables.ref, tables.cand, tables.equal_rows, tables.slack)
    if shift is None:
        return None
    by, first, last = shift
    start = int(np.argmin(tables.equal_rows))
    held = f"rows {first} to {last} hold the reference's {first + by} to {last + by}"
    where = f" from row {start} on" if start else ""
    return Hint("shifted", f"rows shifted by {by}{where}: {held}", {"shift": by, "first": first, "last": last})


def columns_permuted(tables: PairTables) -> Hint | None:
    """The same columns in another order."""
    if tables.ref.shape[1] < _SMALLEST or tables.ref.shape[1] != _columns(tables) or not is_telling(tables.ref):
        return None
    order = match_rows(np.ascontiguousarray(tables.ref.T), np.ascontiguousarray(tables.cand.T), tables.slack)
    if order is None:
        return None
    kind, text, size = name_of_order(order, "columns")
    return Hint(kind, text, {"block": size} if size else {})


def _columns(tables: PairTables) -> int:
    shape = tables.pair.reference.stored.spec.shape
    return shape[-1] if len(shape) in (2, 3) else tables.ref.shape[1]


def misread(tables: PairTables) -> Hint | None:
    """The numbers are in the right order in memory, and were read with rows and columns exchanged."""
    rows, columns = tables.ref.shape
    if min(rows, columns) < 2 or columns != _columns(tables) or tables.parts > 1:
        return None
    if tables.fits(np.ascontiguousarray(tables.ref.T).reshape(rows, columns)):
        return Hint("misread", f"the transposed numbers, read as [{rows}, {columns}]", {})
    if tables.fits(np.ascontiguousarray(tables.ref).reshape(columns, rows).T):
        return Hint("misread", f"the numbers in memory, read as [{columns}, {rows}] and then transposed", {})
    return None
