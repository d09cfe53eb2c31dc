"""What may excuse a pair that stands out, whatever the model: each takes a row that diverges and gives it back.

What excuses mixtures of experts has modules of its own (``experts``, ``unseen_routes``).
"""

from __future__ import annotations

import numpy as np

from tensordiff.compare.judge.history import History
from tensordiff.compare.judge.measurement import Measurement
from tensordiff.compare.judge.tokens import even_error
from tensordiff.compare.judge.verdict import GROWTH, Verdict, floor_for, growth_for, is_coarser, judge_diff
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.dispatch import measure
from tensordiff.compare.row import Row, values_of

_FEW_NUMBERS = 8
_GROWTH_OF_BLOCK = 4.5  # how much a whole block may multiply an error, in few bits


def unless_padding(history: History, row: Row, measured: Measurement) -> Row:
    """Padding that came in wrong, and not into a module around the layer, is that module's fault."""
    if row.is_input or not history.padding.came_in(row):
        return row
    why = f"rel_l2 {measured.diff.rel_l2:.1e}, and what came in is wrong in tokens that the mask hides"
    return row._replace(verdict=Verdict("drifts", why))


def unless_downcast(_: History, row: Row, measured: Measurement) -> Row:
    """A candidate of fewer bits cannot be nearer than the reference cast to its type, which is measured here."""
    own = row.dtypes or measured.dtypes
    sides = values_of(row.pair) if is_coarser(own) else None
    if sides is None:
        return row
    ref, cand = sides
    if ref.dtype.kind == "c" and cand.dtype.kind != "c":
        return row  # no cast explains a lost imaginary part
    with np.errstate(all="ignore"):
        cast = ref.astype(cand.dtype)
    best, left = measure(ref, cast), measure(cast, cand)
    row = row._replace(downcast=left.rel_l2)
    kind, error = own[1], measured.diff.rel_l2
    if best.apart and not left.apart:
        return row._replace(verdict=Verdict("diverges", f"{row.verdict.why}; {kind} cannot hold the reference"))
    if best.apart or measured.diff.apart or error > growth_for(measured.dtypes) * best.rel_l2:
        return row
    why = f"rel_l2 {error:.1e}, and casting the reference to {kind} alone costs {best.rel_l2:.1e}"
    return row._replace(verdict=Verdict("drifts", why))


def unless_cancelled(history: History, row: Row, measured: Measurement) -> Row:
    """A sum whose terms cancel may be off by as much as its terms are."""
    left = None if measured.diff.apart else history.upstream.cancellation_error(row)
    if left is None or measured.diff.rel_l2 > growth_for(measured.dtypes) * left:
        return row
    why = f"rel_l2 {measured.diff.rel_l2:.1e}: large terms cancel here, whose own errors come to {left:.1e} of it"
    return row._replace(verdict=Verdict("drifts", why))


def unless_small_tokens(history: History, row: Row, measured: Measurement) -> Row:
    """A norm scales small tokens up, so what came in may be worse than its error says."""
    given = [] if row.is_input else history.upstream.inputs_of(row.pair)
    even = max((even_error(other.pair) for other in given if other.shape == row.shape), default=0.0)
    verdict = judge_diff(measured.diff, measured.dtypes, even, Limits(), None, history.upstream.worst_agreeing)
    if verdict.name == "diverges" or not even > (history.upstream.carried_into(row.pair) or 0.0):
        return row
    why = f"rel_l2 {measured.diff.rel_l2:.1e}, and {even:.1e} came in, were all tokens equally large"
    return row._replace(verdict=Verdict("drifts", why))


def unless_block(history: History, row: Row, measured: Measurement) -> Row:
    """A block of which nothing else was dumped is many layers, which may multiply more than one does."""
    entry, floor = row.pair.reference, floor_for(*measured.dtypes)[1]
    is_all = not history.upstream.has_inputs(row.pair) and not history.upstream.parts_of(row.pair)
    is_block = entry.layer.rpartition(".")[2].isdigit() and is_all
    error, before = measured.diff.rel_l2, max(history.upstream.worst or 0.0, history.upstream.worst_agreeing or 0.0)
    if not is_block or growth_for(measured.dtypes) == GROWTH or measured.diff.apart or error > floor.diverges:
        return row
    if not before or error > _GROWTH_OF_BLOCK * before:
        return row
    return row._replace(verdict=Verdict("drifts", f"rel_l2 {error:.1e}, and {before:.1e} came into the block"))


def unless_few_numbers(_: History, row: Row, measured: Measurement) -> Row:
    """One number a token, of a few tokens: where terms cancel, nothing is left to be near to."""
    shape = measured.views.shape
    if not shape or shape[-1] != 1 or measured.diff.elements >= _FEW_NUMBERS or measured.diff.apart:
        return row
    if measured.golden is not None or row.is_exact:
        return row
    why = f"rel_l2 {measured.diff.rel_l2:.1e}, of {measured.diff.elements} numbers, which are too few to tell"
    return row._replace(verdict=Verdict("drifts", why))
