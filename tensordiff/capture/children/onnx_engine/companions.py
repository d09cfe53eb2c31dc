"""What goes with tokens by itself: a mask, positions, an empty cache, as exported models commonly call them."""

from __future__ import annotations

import re

import numpy as np

from tensordiff.capture.children.onnx_engine.wanted import Wanted
from tensordiff.dump.dtypes import Array

_PAST = re.compile(r"past(_key_values?)?[._]\d")
_NAMES = ("attention_mask", "position_ids", "cache_position", "token_type_ids", "use_cache_branch")


def is_companion(name: str) -> bool:
    """Whether an input is one that can be made up."""
    return name in _NAMES or is_cache(name)


def is_cache(name: str) -> bool:
    """Whether an input is part of a cache."""
    return _PAST.search(name) is not None


def companion(each: Wanted, batch: int, length: int, past: int) -> Array | None:
    """What goes with so many tokens; None where that is not known, or wanted in another form."""
    rank = each.rank
    positions = np.arange(past, past + length)
    match each.name:
        case "attention_mask" if rank in (None, 2):
            return np.ones((batch, past + length), np.int64)
        case "position_ids" if rank in (None, 2):
            return np.broadcast_to(positions, (batch, length))
        case "position_ids" | "cache_position" if rank in (None, 1):
            return positions
        case "token_type_ids" if rank in (None, 2):
            return np.zeros((batch, length), np.int64)
        case "use_cache_branch":
            return np.zeros(1, bool)
    return None


def empty_cache(each: Wanted, batch: int) -> Array | None:
    """A cache that holds nothing; None where the graph leaves no length open that could be nothing."""
    if each.dims is None or sum(isinstance(dim, str) for dim in each.dims[1:]) != 1:
        return None
    first = batch if isinstance(each.dims[0], str) else each.dims[0]
    return np.zeros((first, *(0 if isinstance(dim, str) else dim for dim in each.dims[1:])), each.dtype)


def could_be_tokens(each: Wanted) -> bool:
    """Whether an input that is not called so may take token ids."""
    return each.dtype.kind in "iu" and each.rank in (None, 1, 2) and not is_companion(each.name)
