"""The model's own output: whether it was compared, and whether the error in it is explained.

Every layer may drift, each multiplying what came in a little, and the model be wrong all the same. So the output of
the whole model decides: if it is further off than precision explains for the whole run, and no layer was found that is
wrong by itself, nothing can be said to agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tensordiff.align.index import parts_of
from tensordiff.align.match import Alignment
from tensordiff.align.views import reconcile
from tensordiff.compare.judge.tokens import token_errors
from tensordiff.compare.judge.verdict import Floor, coarsest_floor
from tensordiff.compare.look.logits import is_logits
from tensordiff.compare.row import Row
from tensordiff.dump.model import Dump, Entry
from tensordiff.errors import DumpError, printable

_LAST_NAMES = frozenset(("lm_head", "logits", "output_logits", "score", "classifier"))
_UNPROVEN = "tokens took other experts, and nothing shows that these were near-ties: compare runs in float32 to tell"


# --- whether it was compared -----------------------------------------------------------------------


def missing_output(reference: Dump, candidate: Dump, rows: Sequence[Row]) -> str | None:
    """A sentence where both sides have an output of the whole model and it was not compared."""
    pairs = [row.pair for row in rows if row.diff is not None]
    ours = _by_step(reference, (part for pair in pairs for part in parts_of(pair.reference)))
    theirs = _by_step(candidate, (part for pair in pairs for part in parts_of(pair.candidate)))
    for step in ours.keys() & theirs.keys():
        one, other = ours[step], theirs[step]
        if not _is_compared(one, other):
            names = " and ".join(printable(side.outputs[0].name) for side in (one, other))
            return f"the model's own output was not compared ({names}); pair the two with a map, see tensordiff align"
    return None


class _OwnOutputs(NamedTuple):
    """What a model gave in one step."""

    outputs: list[Entry]
    compared: list[Entry]
    """Those that were compared, by themselves or as the output of a part that the model gives on."""


def _by_step(dump: Dump, compared: Iterable[Entry]) -> dict[int, _OwnOutputs]:
    steps: dict[int, list[Entry]] = {}
    for entry in own_outputs(dump.entries):
        steps.setdefault(entry.step, []).append(entry)
    seen = {id(entry): entry for entry in compared}
    return {
        step: _OwnOutputs(own, [entry for entry in own if id(entry) in seen or _has_copy(entry, seen.values())])
        for step, own in steps.items()
    }


def _is_compared(one: _OwnOutputs, other: _OwnOutputs) -> bool:
    """Whether the output of both models was compared. Models may give different things: those have other shapes."""
    if one.compared and other.compared:
        return True
    compared, left = (one.compared, other.outputs) if one.compared else (other.compared, one.outputs)
    try:
        alike = any(reconcile(ours.spec.shape, theirs.spec.shape) for ours in compared for theirs in left)
    except DumpError:
        return False
    return bool(compared) and not alike


def own_outputs(entries: Sequence[Entry]) -> list[Entry]:
    """The outputs of the module that contains all others, or else of a last layer known by its name."""
    outputs = [entry for entry in entries if not entry.is_input]
    root = min((entry.layer for entry in entries), key=len, default="")
    prefix = f"{root}."
    if root and len(entries) > 1 and all(entry.layer == root or entry.layer.startswith(prefix) for entry in entries):
        return [entry for entry in outputs if entry.layer == root]
    return [entry for entry in outputs if entry.layer.rpartition(".")[2] in _LAST_NAMES]


def _has_copy(entry: Entry, others: Iterable[Entry]) -> bool:
    """Whether one of the other outputs holds the same values."""
    try:
        alike = [o for o in others if not o.is_input and o.step == entry.step and o.spec == entry.spec]
        return bool(alike) and any(np.array_equal(entry.read(), other.read()) for other in alike)
    except DumpError:
        return False  # what cannot be read has not been compared


# --- whether its error is explained ------------------------------------------------------------------


def unexplained_output(rows: Sequence[Row], alignment: Alignment) -> str | None:
    """A sentence where the model's output drifts further than precision explains for a whole run."""
    outputs = [row for row in rows if not row.is_input and not row.is_exact and row.diff is not None]
    names = {row.verdict.name for row in outputs}
    if "drifts" not in names or "diverges" in names:
        return None  # nothing is off, or a layer is named that is wrong by itself
    kind, floor = coarsest_floor(types for row in outputs if (types := row.computed_in or row.dtypes))
    if (first := _first_above_rounding(outputs)) is not None and first.diff is not None:
        error = (
            f"{printable(first.pair.name)}, the first output that was dumped, is off by rel_l2 {first.diff.rel_l2:.1e}"
        )
        return f"{error}, more than rounding, and what comes before it was not dumped"
    for row in _last_of_each_step(outputs, is_ordered=alignment.order_from != "names"):
        if row.verdict.name == "drifts" and row.diff is not None and not _is_within(row, floor):
            error = f"{printable(row.pair.name)} is off by rel_l2 {row.diff.rel_l2:.1e}"
            more = f"more than {kind} explains for a whole run ({floor.diverges:.0e})"
            routes = "" if row.after_proven_flips or not row.after_flips else f"; {_UNPROVEN}"
            return f"{error}, {more}, and no layer is wrong by itself; {_growth(outputs, row)}{routes}"
    return None


def _first_above_rounding(outputs: Sequence[Row]) -> Row | None:
    """The first output, where it is above rounding already: nothing quiet ran before it to stand out from."""
    first = outputs[0]
    if first.diff is None or first.verdict.name != "drifts" or first.amplification is not None:
        return None
    _, floor = coarsest_floor([types] if (types := first.computed_in or first.dtypes) else [])
    return first if first.diff.rel_l2 > floor.agrees else None


def _last_of_each_step(outputs: Sequence[Row], *, is_ordered: bool) -> list[Row]:
    """The outputs that decide: the model's own or its logits, else the last one; without an order, all of them."""
    steps: dict[int, list[Row]] = {}
    for row in outputs:
        steps.setdefault(row.pair.reference.step, []).append(row)
    return [row for some in steps.values() for row in _deciding(some, is_ordered=is_ordered)]


def _deciding(outputs: list[Row], *, is_ordered: bool) -> list[Row]:
    own = {id(entry) for entry in own_outputs([part for row in outputs for part in parts_of(row.pair.reference)])}
    rows = [row for row in outputs if any(id(part) in own for part in parts_of(row.pair.reference))]
    rows += [row for row in outputs if is_logits(row.pair.name, row.pair.reference.port, row.shape or ())]
    if rows:
        return rows
    return outputs[-1:] if is_ordered else outputs


def _is_within(row: Row, floor: Floor) -> bool:
    """Whether the error is within the floor; where routes flipped at near-ties, that of half of the tokens.

    Routes that may as well be wrong, for all that logits show, excuse nothing here.
    """
    if row.diff is None or row.diff.rel_l2 <= floor.diverges:
        return True
    if not row.after_proven_flips:
        return False
    errors = token_errors(row.pair)
    return errors is not None and errors.size > 0 and float(np.median(errors)) <= floor.diverges


def _growth(outputs: Sequence[Row], last: Row) -> str:
    """Where the error grew most on its way, in words."""
    way = [row for row in outputs if row.pair.reference.step == last.pair.reference.step]
    steepest, before, factor = None, None, 1.0
    quiet: Row | None = None
    for row in way:
        error = row.diff.rel_l2 if row.diff else 0.0
        came = quiet.diff.rel_l2 if quiet is not None and quiet.diff else 0.0
        if quiet is not None and 0 < came < math.inf and error / came > factor:
            steepest, before, factor = row, quiet, error / came
        if quiet is None or error > came:
            quiet = row
    if steepest is None or before is None:
        return f"it was there from the first output, {printable(way[0].pair.name)}" if way else "its way was not dumped"
    between = f"{printable(before.pair.name)} and {printable(steepest.pair.name)}"
    return f"the error grew most, {factor:.3g} times, between {between}"
