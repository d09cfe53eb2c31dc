"""The model's own output: whether it was compared, and whether its error is explained.

Every layer may drift, each multiplying the incoming error a little, and the model may be wrong all the same. So the
output of the whole model decides: if it is further off than precision explains for a whole run, and no layer was found
that is wrong by itself, the comparison cannot report agreement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import numpy as np

from tensordiff.align.index import all_parts, parts_of
from tensordiff.align.match import Alignment, Pair
from tensordiff.align.views import reconcile
from tensordiff.compare.judge.uneven_errors import token_errors
from tensordiff.compare.judge.verdict import Floor, coarsest_floor
from tensordiff.compare.look.logits import is_logits
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.row import Row
from tensordiff.dump.model import Dump, Entry
from tensordiff.errors import DumpError, printable
from tensordiff.search.outcome import culprits

_LAST_NAMES = ("lm_head", "logits", "output_logits", "score", "classifier")
WITHOUT_VALUES = "empty, zero or infinite throughout, or NaN in most places"
"""Describes an output for which ``has_values`` is false."""
_MOST_PADDING = 0.25
"""Largest share of a last axis that may be padding."""
_UNPROVEN = "tokens took other experts, and nothing shows that these were near-ties: compare runs in float32 to tell"


# --- whether it was compared -----------------------------------------------------------------------


class ComparedOutputs(NamedTuple):
    """The models' own outputs by step, and all entries that were compared on both sides."""

    dumps: tuple[Dump, Dump]
    ours: dict[int, _OwnOutputs]
    theirs: dict[int, _OwnOutputs]
    compared: tuple[list[Entry], list[Entry]]

    @classmethod
    def of(cls, reference: Dump, candidate: Dump, pairs: Sequence[Pair]) -> Self:
        """Find the outputs, given the pairs that are compared."""
        compared = (
            list(all_parts([pair.reference for pair in pairs])),
            list(all_parts([pair.candidate for pair in pairs])),
        )
        own = _by_step(reference, compared[0]), _by_step(candidate, compared[1])
        return cls((reference, candidate), *own, compared)


def missing_output(outputs: ComparedOutputs, step: int | None = None) -> str | None:
    """Return a sentence if the model's own output was not compared although the other side has a possible counterpart.

    ``step`` is the only step that was compared, if the user chose one.
    """
    (reference, candidate), ours, theirs, compared = outputs
    for at in sorted(ours.keys() | theirs.keys()):
        if step is not None and at != step:
            continue
        one, other = ours.get(at), theirs.get(at)
        if one is not None and other is not None:
            names = None if _is_compared(one, other) else (one.outputs[0], other.outputs[0])
        elif one is not None:
            names = _possible_counterpart(one, candidate, compared[1])
        else:
            names = _possible_counterpart(theirs[at], reference, compared[0])
        if names is not None:
            told = " and ".join(printable(entry.name) for entry in names)
            return f"the model's own output was not compared ({told}); pair the two with a map, see tensordiff align"
    return None


def unanswered_output(outputs: ComparedOutputs, step: int | None = None) -> str:
    """Return a sentence if only one side has the model's own output, so that it was not compared; empty otherwise."""
    _, ours, theirs, compared = outputs
    steps = {part.step for part in compared[0]}
    for side, other, own in (("reference", "candidate", ours), ("candidate", "reference", theirs)):
        for at in sorted(own.keys() & steps):
            if not own[at].compared and step in (None, at):
                name = printable(own[at].outputs[0].name)
                return (
                    f"the model's own output ({name} of the {side}) was not compared: the {other} has nothing like it"
                )
    return ""


def _possible_counterpart(own: _OwnOutputs, other: Dump, compared: Sequence[Entry]) -> tuple[Entry, Entry] | None:
    """A model output that was not compared, and an uncompared entry of the other side with its shape.

    An entry outside all blocks also counts if only its last axis differs a little, as for a padded or cut vocabulary.
    """
    if own.compared:
        return None
    used = {id(entry) for entry in compared}
    left = [e for e in other.entries if not e.is_input and id(e) not in used and e.step == own.outputs[0].step]
    both = [(ours, theirs) for ours in own.outputs for theirs in left]
    try:
        fits = next(((one, e) for one, e in both if reconcile(one.spec.shape, e.spec.shape)), None)
        outside = ((one, e) for one, e in both if not _is_in_block(e.layer))
        return fits or next(((one, e) for one, e in outside if _is_padded(one.spec.shape, e.spec.shape)), None)
    except DumpError:
        return None  # the unreadable entry is reported elsewhere


def _is_padded(ours: Sequence[int], theirs: Sequence[int]) -> bool:
    """Whether two shapes differ only in a last axis of nearly the same length."""
    one, other = ([size for size in shape if size != 1] for shape in (ours, theirs))
    if not (one and other) or one[:-1] != other[:-1]:
        return False
    return abs(one[-1] - other[-1]) <= _MOST_PADDING * max(one[-1], other[-1])


def empty_output(rows: Sequence[Row], alignment: Alignment) -> str | None:
    """Return a sentence if the model's own output was compared but has no values on one of the sides."""
    if all(row.diff is None or has_values(row.diff) for row in rows):
        return None
    outputs = [row for row in rows if not row.is_input and row.diff is not None and not row.is_gradient]
    steps = _by_deciding_step(outputs, is_ordered=alignment.order_from != "names")
    empty = next((some[0] for some in steps if not any(row.diff and has_values(row.diff) for row in some)), None)
    if empty is None:
        return None
    what = f"the model's own output, {printable(empty.pair.name)}, has no value that could be compared"
    return f"{what}: it is {WITHOUT_VALUES}; find out where that begins in the reference"


def has_values(diff: Diff) -> bool:
    """Whether both sides have some finite values, are not mostly NaN, and are not both entirely zero."""
    if diff.max_abs == 0 and diff.ref_rms == 0:
        return False  # a buffer that was never written, or a view that selects nothing
    if diff.elements and diff.nan == diff.inf == (0, 0):
        return True
    counts = zip(diff.nan, diff.inf, strict=True)
    return all(nan + inf < diff.elements and 2 * nan <= diff.elements for nan, inf in counts)


class _OwnOutputs(NamedTuple):
    """The outputs of a model in one step."""

    outputs: list[Entry]
    compared: list[Entry]
    """Those that were compared, directly or as the output of a part that the model returns unchanged."""


def _by_step(dump: Dump, compared: Iterable[Entry]) -> dict[int, _OwnOutputs]:
    steps: dict[int, list[Entry]] = {}
    for entry in own_outputs(dump.entries):
        steps.setdefault(entry.step, []).append(entry)
    seen = {id(entry): entry for entry in compared} if steps else {}
    return {
        step: _OwnOutputs(own, [entry for entry in own if id(entry) in seen or _equals_another(entry, seen.values())])
        for step, own in steps.items()
    }


def _is_compared(one: _OwnOutputs, other: _OwnOutputs) -> bool:
    """Whether the outputs of both models were compared. Outputs of different shapes are different things and may not
    be."""
    if one.compared and other.compared:
        return True
    compared, left = (one.compared, other.outputs) if one.compared else (other.compared, one.outputs)
    try:
        alike = any(reconcile(ours.spec.shape, theirs.spec.shape) for ours in compared for theirs in left)
    except DumpError:
        return False
    return bool(compared) and not alike


def own_outputs(entries: Sequence[Entry]) -> list[Entry]:
    """The outputs of the module that contains all others, or of a last layer that is recognized by its name.

    A layer with such a name inside a block is not the model's last layer.
    """
    entries = [entry for entry in entries if not entry.is_gradient]
    root = min((entry.layer for entry in entries), key=len, default="")
    prefix = f"{root}."
    if root and len(entries) > 1 and all(entry.layer == root or entry.layer.startswith(prefix) for entry in entries):
        return [entry for entry in entries if entry.layer == root and not entry.is_input]
    named = [entry for entry in entries if entry.layer.endswith(_LAST_NAMES) and _is_last_by_name(entry.layer)]
    return [entry for entry in named if not entry.is_input]


def _is_last_by_name(layer: str) -> bool:
    around, _, name = layer.rpartition(".")
    return name in _LAST_NAMES and not _is_in_block(around)


def _is_in_block(layer: str) -> bool:
    """Whether a part of a layer's name is a number; exporters separate the parts by dots or by slashes."""
    return any(map(str.isdigit, layer.replace("/", ".").split(".")))


def _equals_another(entry: Entry, others: Iterable[Entry]) -> bool:
    """Whether one of the other outputs holds the same values."""
    try:
        alike = [o for o in others if not o.is_input and o.step == entry.step and o.spec == entry.spec]
        return bool(alike) and any(np.array_equal(entry.read(), other.read()) for other in alike)
    except DumpError:
        return False  # an unreadable entry was not compared


# --- whether its error is explained ------------------------------------------------------------------


def unexplained_output(rows: Sequence[Row], alignment: Alignment, *, are_all: bool = True) -> str | None:
    """Return a sentence if the model's output is further off than precision explains for a whole run.

    The output that ran last counts as well if the order is known: a layer that is named like the model's output may
    have run before the end. If ``are_all`` is false the user selected some rows, and the last of them stands for the
    model's output.
    """
    if not any(row.verdict.name == "drifts" for row in rows):
        return None  # as of most runs, of however many rows
    outputs = [row for row in rows if not (row.is_input or row.is_exact or row.is_gradient) and row.diff is not None]
    if not any(row.verdict.name == "drifts" for row in outputs) or culprits(rows):
        return None  # nothing is off, or culprits() already names where the error begins
    kind, floor = coarsest_floor(types for row in outputs if (types := row.computed_in or row.dtypes))
    if are_all and (first := _first_above_rounding(outputs)) is not None and first.diff is not None:
        error = (
            f"{printable(first.pair.name)}, the first output that was dumped, is off by rel_l2 {first.diff.rel_l2:.1e}"
        )
        return f"{error}, more than rounding, and what comes before it was not compared"
    is_ordered = alignment.order_from != "names"
    steps = _by_deciding_step(outputs, is_ordered=is_ordered)
    last = {row.pair.reference.step: row for row in outputs} if is_ordered else {}
    for row in (*(row for some in steps for row in some), *last.values()):
        if row.verdict.name == "drifts" and row.diff is not None and not _is_within(row, floor):
            worst = f"rel_l2 {row.diff.rel_l2:.1e}" if row.worst_token is None else f"{row.worst_token:.1e} in a token"
            error = f"{printable(row.pair.name)} is off by {worst}"
            more = f"more than {kind} explains for a whole run ({floor.diverges:.0e})"
            routes = "" if row.after_proven_flips or not row.after_flips else f"; {_UNPROVEN}"
            return f"{error}, {more}, and no layer is wrong by itself; {_steepest_growth(outputs, row)}{routes}"
    return None


def unexplained_gradient(rows: Sequence[Row]) -> str | None:
    """Return a sentence if a gradient is further off than precision explains and no backward is wrong by itself."""
    drifting = (row for row in rows if row.verdict.name == "drifts" and row.is_gradient and not row.is_input)
    gradients = [row for row in drifting if row.diff is not None and not row.after_proven_flips]
    if not gradients or culprits(rows):
        return None
    kind, floor = coarsest_floor(types for row in gradients if (types := row.computed_in or row.dtypes))
    worst = max(gradients, key=lambda row: row.diff.rel_l2 if row.diff else 0.0)
    if worst.diff is None or worst.diff.rel_l2 <= floor.diverges:
        return None
    error = f"the gradient {printable(worst.pair.name)} {printable(worst.pair.reference.port)} is off by rel_l2 "
    more = f"more than {kind} explains for a whole run ({floor.diverges:.0e})"
    return f"{error}{worst.diff.rel_l2:.1e}, {more}, and no backward is wrong by itself; compare runs in float32"


def _first_above_rounding(outputs: Sequence[Row]) -> Row | None:
    """The first output, if it is already above rounding: no quiet pair ran before it for comparison."""
    first = outputs[0]
    if first.diff is None or first.verdict.name != "drifts" or first.amplification is not None:
        return None
    _, floor = coarsest_floor([types] if (types := first.computed_in or first.dtypes) else [])
    return first if first.diff.rel_l2 > floor.agrees else None


def _by_deciding_step(outputs: Sequence[Row], *, is_ordered: bool) -> list[list[Row]]:
    """The deciding outputs of each step: the model's own or its logits, else the last one; all if the order is
    unknown."""
    steps: dict[int, list[Row]] = {}
    for row in outputs:
        steps.setdefault(row.pair.reference.step, []).append(row)
    return [_deciding_outputs(some, is_ordered=is_ordered) for some in steps.values()]


def _deciding_outputs(outputs: list[Row], *, is_ordered: bool) -> list[Row]:
    own = {id(entry) for entry in own_outputs([*all_parts(row.pair.reference for row in outputs)])}
    rows = [row for row in outputs if any(id(part) in own for part in parts_of(row.pair.reference))]
    rows += [row for row in outputs if is_logits(row.pair.name, row.pair.reference.port, row.shape or ())]
    if rows:
        return rows
    return outputs[-1:] if is_ordered else outputs


def _is_within(row: Row, floor: Floor) -> bool:
    """Whether the error is within the floor; if routes flipped at near-ties, whether the median token is.

    Flips that the logits do not prove to be near-ties may be bugs, so they excuse nothing here.
    """
    if row.diff is None or (row.diff.rel_l2 <= floor.diverges and row.worst_token is None):
        return True
    if not row.after_proven_flips:
        return False
    errors = token_errors(row.pair)
    return errors is not None and errors.size > 0 and float(np.median(errors)) <= floor.diverges


def _steepest_growth(outputs: Sequence[Row], last: Row) -> str:
    """Describe in words where the error grew most."""
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
        return (
            f"it was there from the first output, {printable(way[0].pair.name)}"
            if way
            else "the layers before it were not compared"
        )
    between = f"{printable(before.pair.name)} and {printable(steepest.pair.name)}"
    return f"the error grew most, {factor:.3g} times, between {between}"
