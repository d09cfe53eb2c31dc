"""A pair's two sides, mapped and seen in one shape: what everything that looks at values begins with."""

from __future__ import annotations

from typing import NamedTuple

from tensordiff.align.match import Pair
from tensordiff.align.views import Views, reconcile
from tensordiff.compare.row import Row, unknown
from tensordiff.dump.dtypes import Array, name_of
from tensordiff.errors import AlignError, DumpError


class Opened(NamedTuple):
    """A pair mapped and seen in one shape."""

    pair: Pair
    views: Views
    ref: Array
    cand: Array


def open_pair(pair: Pair) -> Opened | Row:
    """Map a pair; a row at once where nothing can be measured."""
    try:
        ref, cand = pair.reference.read(), pair.candidate.read()
    except (DumpError, AlignError) as error:
        return unknown(pair, str(error))
    shape = ref.shape
    if shape == cand.shape:
        return Opened(pair, Views(shape), ref, cand)
    views = reconcile(shape, cand.shape)
    if views is None:
        why = f"shapes {list(ref.shape)} and {list(cand.shape)} need a view that only a rule can name"
        return unknown(pair, why, (name_of(ref.dtype), name_of(cand.dtype)))
    return Opened(pair, views, views.apply(ref), views.apply(cand))


def values_of(pair: Pair) -> tuple[Array, Array] | None:
    """Both sides of a pair in one shape, to be looked at more closely; None where they cannot be had."""
    opened = open_pair(pair)
    return None if isinstance(opened, Row) else (opened.ref, opened.cand)
