"""Facts that captures record about their runs and that verdicts depend on, as far as they can be trusted.

Captures record the type of their weights. A candidate's claim could loosen its own verdict, so it is trusted only if
the values confirm it: the model's own output holds no value that the type could not represent. A reference's claim is
trusted for types of 16 bits or more; for fewer bits its values must confirm it as well. That a model has no experts can
only make a verdict stricter, and captures record it only for code that is known to name its experts.
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
    """The types that the two runs computed in; float64 for a side whose type is unknown, None if both are."""
    ours, theirs = _recorded_dtype(reference), _recorded_dtype(candidate)
    if ours is not None and DTYPES[ours].itemsize < _TRUSTED_BYTES and not _outputs_fit(reference, ours):
        ours = None
    if theirs is not None and not _outputs_fit(candidate, theirs):
        theirs = None
    return None if ours is None and theirs is None else (ours or "float64", theirs or "float64")


def has_experts(reference: Dump) -> bool | None:
    """Whether the model has experts, as the capture recorded it; None if it did not."""
    model = reference.facts.get("model")
    recorded = model.get("experts") if isinstance(model, Mapping) else None
    return recorded if isinstance(recorded, bool) else None


def _recorded_dtype(dump: Dump) -> str | None:
    dtype = dump.facts.get("dtype")
    return dtype if isinstance(dtype, str) and dtype in DTYPES else None


def _outputs_fit(dump: Dump, dtype: str) -> bool:
    """Whether all floating-point outputs of the model hold only values that a type can represent."""
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
            return True  # stored in that type, or in one with fewer bits
        values = entry.read().reshape(-1)[:_CHECKED_ELEMENTS]
    except DumpError:
        return False
    with np.errstate(all="ignore"):
        cast = values.astype(DTYPES[dtype]).astype(values.dtype)
    return bool(np.array_equal(cast, values, equal_nan=True))
