"""Every kind of weight bug that is recognized, in the order in which they are tried.

A test takes ``PairTables`` and returns a ``Hint`` or None. Exact tests come before likely ones. A kind is reported only
if the values prove it by a clear margin: tests/weights/test_planted.py plants each and counts.
"""

from __future__ import annotations

from collections.abc import Callable

from tensordiff.compare.hint import Hint
from tensordiff.weights.hint import arrangement, content
from tensordiff.weights.hint.pair_tables import PairTables

HINTS: tuple[Callable[[PairTables], Hint | None], ...] = (
    content.constant,
    content.cast,
    content.few_elements,
    content.last_bits,
    content.offset,
    content.scale,
    arrangement.wrong_slot,
    arrangement.untied,
    arrangement.transposed,
    arrangement.experts,
    arrangement.rows_permuted,
    arrangement.rows_shifted,
    arrangement.columns_permuted,
    content.slice_differs,
    arrangement.misread,
    content.scale_by_rows,
    content.scale_by_blocks,
    content.not_loaded,
)

KINDS = {
    "not loaded": "zeros, ones, or values as an initialization makes them, with nothing of the reference in them",
    "transposed": "rows and columns exchanged",
    "rope rows": "rows permuted within heads, as one kind of rope needs them and the other does not",
    "heads permuted": "blocks of rows or columns in another order",
    "permuted": "rows or columns in an order that has no name",
    "shifted": "rows or columns moved by a number of places",
    "wrong slot": "the values of another parameter: gate and up, q and k, a neighbouring layer, another expert",
    "swapped": "the same, and the other parameter has this one's",
    "tied": "the head holds the embedding",
    "untied": "the head is the embedding on the reference, and on the candidate it is not",
    "cast": "rounded to a coarser type on the way",
    "last bits": "off by a few units in the last place: computed anew, and not copied",
    "scale": "multiplied by a factor: all of it, by rows, or by blocks",
    "offset": "a constant added: a norm that keeps 1 + w, or lost the 1",
    "sign": "multiplied by -1",
    "fused order": "the parts of a fused parameter in another order",
    "expert": "experts of a stack swapped, or one of them different",
    "slice": "some rows or columns left out or different, all others equal",
    "elements": "single elements changed",
    "misread": "the same numbers in memory, read with another shape",
    "padded": "rows that the reference does not have",
    "truncated": "rows of the reference that are not there",
    "other weights": "nothing in common with the reference",
}
"""Kinds, and what each means. docs/weights.md has them as a table."""


def hint_for(tables: PairTables) -> Hint | None:
    """The first kind that fits."""
    if not tables.ref.size or tables.ref.shape != tables.cand.shape:
        return None
    return next((hint for test in HINTS if (hint := test(tables)) is not None), None)
