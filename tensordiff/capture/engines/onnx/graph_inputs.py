"""One input of a graph as the graph declares it, and the companions of token ids: mask, positions, an empty cache."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import ValueInfoProto
from onnx.helper import tensor_dtype_to_np_dtype

from tensordiff.capture.engines.onnx.session import Feed
from tensordiff.dump.dtypes import Array, DType, is_float
from tensordiff.errors import CaptureError, printable


class Wanted(NamedTuple):
    """One input of a graph, as it says itself."""

    name: str
    elem_type: int
    dims: tuple[int | str, ...] | None
    """Lengths, or the names of those that may be any; None where not even their number is said."""

    @property
    def dtype(self) -> DType:
        """The type its values must have."""
        found: DType = tensor_dtype_to_np_dtype(self.elem_type)
        return found

    @property
    def rank(self) -> int | None:
        """How many dimensions it has, where that is said."""
        return None if self.dims is None else len(self.dims)

    def __str__(self) -> str:
        dims = "any shape" if self.dims is None else f"[{', '.join(map(str, self.dims))}]"
        return f"{printable(self.name)} ({self.dtype.name}, {printable(dims)})"

    def feed(self, array: Array, path: Path) -> Feed:
        """Values for it, in its own type; raises a sentence where they cannot be that."""
        if is_float(array.dtype) and not is_float(self.dtype):
            raise CaptureError(f"{printable(path.name)}: wants {self}, and {array.dtype.name} was given")
        if not self._takes(array.shape):
            raise CaptureError(f"{printable(path.name)}: wants {self}, and the shape {list(array.shape)} was given")
        return Feed(np.asarray(array, self.dtype, order="C"), self.elem_type)

    def _takes(self, shape: tuple[int, ...]) -> bool:
        if self.dims is None:
            return True
        pairs = zip(self.dims, shape, strict=False)
        return len(self.dims) == len(shape) and all(isinstance(dim, str) or dim == length for dim, length in pairs)


def wanted_of(about: ValueInfoProto, path: Path) -> Wanted:
    """An input as its graph declares it; raises a sentence where it is no tensor."""
    if not about.type.HasField("tensor_type"):
        kind = about.type.WhichOneof("value") or "value of unknown type"
        raise CaptureError(
            f"{printable(path.name)}: wants {printable(about.name)}, a {kind}, and only tensors are given"
        )
    tensor = about.type.tensor_type
    dims = tuple(map(_dim, tensor.shape.dim)) if tensor.HasField("shape") else None
    return Wanted(about.name, tensor.elem_type, dims)


def _dim(dim: Any) -> int | str:
    return int(dim.dim_value) if dim.HasField("dim_value") else (dim.dim_param or "?")


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
