"""What captures note of their runs and verdicts go by, as far as it is believed: types, and that there are no experts.

Captures note the type of their weights. What a candidate says of itself could loosen how it is judged, so it is
believed only where the values bear it out: the model's own output holds nothing that the type could not hold. A
reference is believed where it names a type of 16 bits or more; with fewer, its values must bear it out as well. That
a model has no experts can make a verdict only stricter, and captures say it only of code that is known to name them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tensordiff.compare.judge.verdict import coarser
from tensordiff.dump.dtypes import DTYPES, is_float, name_of
from tensordiff.dump.model import Dump, Entry
from tensordiff.errors import DumpError
from tensordiff.search.final_output import own_outputs

_CHECKED_ELEMENTS = 1 << 14  # elements
_FEWEST_ELEMENTS = 64
_TRUSTED_BYTES = 2


def run_dtypes(reference: Dump, candidate: Dump) -> tuple[str, str] | None:
    """The types that the two runs computed in, the finest where one is not known; None where neither is."""
    ours, theirs = _recorded_dtype(reference), _recorded_dtype(candidate)
    if ours is not None and DTYPES[ours].itemsize < _TRUSTED_BYTES and not _outputs_fit(reference, ours):
        ours = None
    if theirs is not None and not _outputs_fit(candidate, theirs):
        theirs = None
    return None if ours is None and theirs is None else (ours or "float64", theirs or "float64")


def is_dense(reference: Dump) -> bool:
    """Whether the capture found no experts in the model."""
    model = reference.facts.get("model")
    return isinstance(model, Mapping) and model.get("experts") is False


def _recorded_dtype(dump: Dump) -> str | None:
    dtype = dump.facts.get("dtype")
    return dtype if isinstance(dtype, str) and dtype in DTYPES else None


def _outputs_fit(dump: Dump, dtype: str) -> bool:
    """Whether the model's own outputs, all that are floats, hold only values of a type."""
    outputs = [entry for entry in own_outputs(dump.entries) if _is_checkable(entry)]
    return bool(outputs) and all(_holds_only(entry, dtype) for entry in outputs)


def _is_checkable(entry: Entry) -> bool:
    try:
        return is_float(entry.spec.dtype) and entry.spec.dtype.kind != "c" and entry.spec.size >= _FEWEST_ELEMENTS
    except DumpError:
        return False


def _holds_only(entry: Entry, dtype: str) -> bool:
    try:
        stored = name_of(entry.spec.dtype)
        if coarser(dtype, stored) == stored:
            return True  # it is stored in that type, or in one with fewer bits
        values = entry.read().reshape(-1)[:_CHECKED_ELEMENTS]
    except DumpError:
        return False
    with np.errstate(all="ignore"):
        cast = values.astype(DTYPES[dtype]).astype(values.dtype)
    return bool(np.array_equal(cast, values, equal_nan=True))
