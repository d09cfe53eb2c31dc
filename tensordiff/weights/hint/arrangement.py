"""The right values in the wrong place: another parameter's slot, transposed, permuted, fused in another order."""

from __future__ import annotations

import re

import numpy as np

from tensordiff.compare.hint import Hint
from tensordiff.errors import printable
from tensordiff.weights.hint.orders import fused_order, match_rows, name_of_order, shift_of_rows
from tensordiff.weights.hint.seen import SeenPair
from tensordiff.weights.samples import are_alike, is_telling

_LAYER = re.compile(r"(?<![^.])(\d+)(?![^.])")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out)$")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|tok_embeddings)$")
_SMALLEST = 8


def wrong_slot(seen: SeenPair) -> Hint | None:
    """The candidate holds what the reference has under another name."""
    ours, theirs = seen.pair.reference, seen.pair.candidate
    if len(ours.parameters) != 1 or len(theirs.parameters) != 1 or seen.pair.is_tied:
        return None
    own = ours.parameters[0]
    found = seen.reference.holding(theirs.stored, lambda item: item is not own)
    if not found:
        return None
    other = found[0]
    if _HEAD.search(own.canonical) and _EMBEDDING.search(other.canonical):
        return Hint("tied", f"holds the embedding ({printable(other.title)}): tied, though the reference is not", {})
    back = seen.candidate.holding(ours.stored, lambda item: item is not theirs.parameters[0])
    is_swapped = any(item.canonical == other.canonical and item.kind == other.kind for item in back)
    evidence = {"holds": other.name}
    if is_swapped:
        return Hint("swapped", f"swapped with {printable(other.title)}", {**evidence})
    return Hint("wrong slot", f"holds {printable(other.title)} of the reference{_off_by(own, other)}", {**evidence})


def _off_by(own: object, other: object) -> str:
    """`` (1 layer further)`` where the names differ in one number."""
    ours, theirs = getattr(own, "title", ""), getattr(other, "title", "")
    if _LAYER.sub("{}", ours) != _LAYER.sub("{}", theirs):
        return ""
    gaps = [int(b) - int(a) for a, b in zip(_LAYER.findall(ours), _LAYER.findall(theirs), strict=True) if a != b]
    if len(gaps) != 1:
        return ""
    what = "expert" if f"experts.{_LAYER.findall(ours)[-1]}." in ours and "experts" in theirs else "layer"
    count = abs(gaps[0])
    return f" ({count} {what}{'s' if count > 1 else ''} {'further' if gaps[0] > 0 else 'before'})"


def untied(seen: SeenPair) -> Hint | None:
    """On the reference the head is the embedding; on the candidate it is something else."""
    ours = seen.pair.reference.parameters
    if len(ours) != 1 or not _HEAD.search(ours[0].canonical) or seen.pair.is_tied:
        return None
    found = seen.reference.holding(ours[0].stored, lambda item: _EMBEDDING.search(item.canonical) is not None)
    if not found:
        return None
    return Hint("untied", f"the reference's is its embedding ({printable(found[0].title)}); the candidate's is not", {})


def transposed(seen: SeenPair) -> Hint | None:
    """Square and exchanged; or a layout that all others of the checkpoint have and this one has not."""
    rows, columns = seen.ref.shape
    if seen.parts > 1:
        return _transposed_parts(seen)
    if rows == columns > 1 and seen.fits(seen.ref.T):
        return Hint("transposed", "transposed: rows and columns are exchanged", {})
    return None


def _transposed_parts(seen: SeenPair) -> Hint | None:
    shape = (seen.parts, -1, seen.ref.shape[1])
    ref = seen.ref.reshape(shape)
    if ref.shape[1] == ref.shape[2] and seen.fits(ref.swapaxes(1, 2).reshape(seen.ref.shape)):
        return Hint("transposed", "each expert is transposed: rows and columns are exchanged", {})
    return None


def experts(seen: SeenPair) -> Hint | None:
    """Parts of a stack that changed places, or one that differs."""
    if seen.parts < 2:
        return None
    ref, cand = seen.ref.reshape(seen.parts, -1), seen.cand.reshape(seen.parts, -1)
    order = match_rows(ref, cand, seen.slack)
    if order is not None:
        return Hint("expert", name_of_order(order, "experts")[1], {"order": order.tolist()[:64]})
    equal = [are_alike(cand[k], ref[k], seen.slack) for k in range(seen.parts)]
    different = [k for k, alike in enumerate(equal) if not alike]
    if len(different) == 1:
        k = different[0]
        zero = " (all zero)" if not np.any(cand[k]) else ""
        return Hint("expert", f"only expert {k} of {seen.parts} differs{zero}", {"expert": k})
    return None


def rows_permuted(seen: SeenPair) -> Hint | None:
    """The same rows in another order."""
    if seen.ref.shape[0] < _SMALLEST or not is_telling(seen.ref):
        return None
    order = match_rows(seen.ref, seen.cand, seen.slack)
    if order is None:
        return None
    what = "elements" if seen.ref.shape[1] == 1 else "rows"
    parts = seen.pair.reference if len(seen.pair.reference.parameters) > 1 else seen.pair.candidate
    if len(parts.parameters) > 1 and seen.parts == 1 and sum(parts.part_rows) == len(order):
        names = [item.canonical.rpartition(".")[2] for item in parts.parameters]
        seen_from = order if parts is seen.pair.reference else np.argsort(order)
        if text := fused_order(seen_from, parts.part_rows, names):
            return Hint("fused order", f"fused in another order: {text}", {"order": text})
    kind, text, size = name_of_order(order, what)
    # Where rows repeat, as padding does, a shift is one order of many.
    shifted = rows_shifted(seen) if (kind, size) == ("permuted", 0) else None
    return shifted or Hint(kind, text, {"block": size} if size else {})


def rows_shifted(seen: SeenPair) -> Hint | None:
    """Rows moved by a number of places, from some row on: one was put in or left out, the end was padded or cut."""
    if seen.parts > 1 or seen.ref.shape[1] < _SMALLEST or not is_telling(seen.ref):
        return None
    shift = shift_of_rows(seen.ref, seen.cand, seen.equal_rows, seen.slack)
    if shift is None:
        return None
    by, first, last = shift
    start = int(np.argmin(seen.equal_rows))
    held = f"rows {first} to {last} hold the reference's {first + by} to {last + by}"
    where = f" from row {start} on" if start else ""
    return Hint("shifted", f"rows shifted by {by}{where}: {held}", {"shift": by, "first": first, "last": last})


def columns_permuted(seen: SeenPair) -> Hint | None:
    """The same columns in another order."""
    if seen.ref.shape[1] < _SMALLEST or seen.ref.shape[1] != _columns(seen) or not is_telling(seen.ref):
        return None
    order = match_rows(np.ascontiguousarray(seen.ref.T), np.ascontiguousarray(seen.cand.T), seen.slack)
    if order is None:
        return None
    kind, text, size = name_of_order(order, "columns")
    return Hint(kind, text, {"block": size} if size else {})


def _columns(seen: SeenPair) -> int:
    shape = seen.pair.reference.stored.spec.shape
    return shape[-1] if len(shape) in (2, 3) else seen.ref.shape[1]


def misread(seen: SeenPair) -> Hint | None:
    """The numbers lie in memory as they should, and were read with rows and columns exchanged."""
    rows, columns = seen.ref.shape
    if min(rows, columns) < 2 or columns != _columns(seen) or seen.parts > 1:
        return None
    if seen.fits(np.ascontiguousarray(seen.ref.T).reshape(rows, columns)):
        return Hint("misread", f"the transposed numbers, read as [{rows}, {columns}]", {})
    if seen.fits(np.ascontiguousarray(seen.ref).reshape(columns, rows).T):
        return Hint("misread", f"the numbers in memory, read as [{columns}, {rows}] and then transposed", {})
    return None
