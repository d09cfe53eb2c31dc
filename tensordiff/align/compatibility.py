"""Whether two entries could be the same tensor, judging by shapes, kinds of dtype and the names of ports."""

from __future__ import annotations

import re

from tensordiff.align.views import broadcast, reconcile
from tensordiff.dump.dtypes import is_integral
from tensordiff.dump.model import Entry
from tensordiff.errors import AlignError, DumpError

_NUMBERED_PORT = re.compile(r"(?:in|out)put(?:_[0-9]+)?")


def is_shared_by_rows(reference: Entry, candidate: Entry) -> bool:
    """Whether two inputs are the same argument, which one side holds once for all rows of a batch."""
    try:
        a, b = reference.spec, candidate.spec
    except (DumpError, AlignError):
        return False
    is_named_alike = reference.port == candidate.port and is_integral(a.dtype) == is_integral(b.dtype)
    return is_named_alike and broadcast(a.shape, b.shape) is not None


def could_be_same(reference: Entry, candidate: Entry) -> bool:
    """Whether shapes and kinds of dtype allow a pair. Inputs at one position may be different arguments."""
    try:
        a, b = reference.spec, candidate.spec
    except (DumpError, AlignError):
        return True  # measuring reports it
    return reconcile(a.shape, b.shape) is not None and is_integral(a.dtype) == is_integral(b.dtype)


def fits_whole(reference: Entry, candidate: Entry) -> bool:
    """Whether two entries could be the same tensor and have equally many elements; False if a header cannot be read."""
    try:
        return could_be_same(reference, candidate) and reference.spec.size == candidate.spec.size
    except (DumpError, AlignError):
        return False


def could_be_same_port(reference: Entry, candidate: Entry) -> bool:
    """Whether two ports could be the same: both inputs or both outputs, with names and shapes that allow it."""
    if reference.is_input != candidate.is_input or are_named_apart(reference, candidate):
        return False
    return could_be_same(reference, candidate)


def are_named_apart(reference: Entry, candidate: Entry) -> bool:
    """Whether two ports have proper names that differ: ``input_ids`` and ``positions``."""
    ours, theirs = reference.port, candidate.port
    return ours != theirs and not (_NUMBERED_PORT.fullmatch(ours) or _NUMBERED_PORT.fullmatch(theirs))
