"""Parameters in another arrangement: concatenated, stacked, transposed, with rows in another order.

Each view is a tensor like those of a file, and reads a range of rows at a time if its parts can: a checkpoint of any
size is compared in blocks of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.dump.dtypes import DTYPES, Array, DType, is_float
from tensordiff.dump.model import Spec, StoredTensor

BLOCK_ELEMENTS = 1 << 24
"""Most elements that are compared at once, unless a single row has more."""


def read_rows(stored: StoredTensor, start: int, stop: int) -> Array:
    """Part of a tensor along its first axis."""
    by_rows = getattr(stored, "read_rows", None)
    rows: Array = by_rows(start, stop) if by_rows is not None else stored.read()[start:stop]
    return rows


def row_ranges(shape: tuple[int, ...], most: int = BLOCK_ELEMENTS) -> Iterator[tuple[int, int]]:
    """Ranges of rows that together are the whole, each with at most ``most`` elements, if a single row has no more."""
    if not shape:
        return
    row = max(1, int(np.prod(shape[1:], dtype=np.int64)))
    count = max(1, most // row)
    for start in range(0, shape[0], count):
        yield start, min(shape[0], start + count)


def common_dtype(parts: Sequence[StoredTensor]) -> DType:
    """The dtype of several tensors; if they differ, one that holds the values of all."""
    dtypes = {part.spec.dtype for part in parts}
    if len(dtypes) == 1:
        return dtypes.pop()
    if any(dtype.kind == "c" for dtype in dtypes):
        return DTYPES["complex128"]
    return DTYPES["float32" if all(is_float(dtype) and dtype.itemsize <= 4 for dtype in dtypes) else "float64"]


class Concatenated(NamedTuple):
    """Several tensors concatenated along an axis: ``q_proj``, ``k_proj`` and ``v_proj`` as one."""

    parts: tuple[StoredTensor, ...]
    axis: int = 0

    @property
    def spec(self) -> Spec:
        """The spec of the whole."""
        first = self.parts[0].spec
        length = sum(part.spec.shape[self.axis] for part in self.parts)
        shape = *first.shape[: self.axis], length, *first.shape[self.axis + 1 :]
        return Spec(shape, common_dtype(self.parts))

    def read(self) -> Array:
        """The whole, in memory."""
        return np.concatenate(self._alike([part.read() for part in self.parts]), axis=self.axis)

    def _alike(self, arrays: list[Array]) -> list[Array]:
        dtype = common_dtype(self.parts)
        return [array.astype(dtype, copy=False) for array in arrays]

    def read_rows(self, start: int, stop: int) -> Array:
        """Some rows."""
        if self.axis:
            rows = [read_rows(part, start, stop) for part in self.parts]
            return np.concatenate(self._alike(rows), axis=self.axis)
        rows_of_parts, at = [], 0
        for part in self.parts:
            length = part.spec.shape[0]
            low, high = max(start - at, 0), min(stop - at, length)
            if low < high:
                rows_of_parts.append(read_rows(part, low, high))
            at += length
        rows_of_parts = self._alike(rows_of_parts)
        return rows_of_parts[0] if len(rows_of_parts) == 1 else np.concatenate(rows_of_parts)


class Stacked(NamedTuple):
    """Tensors of one shape along a new first axis: experts."""

    parts: tuple[StoredTensor, ...]

    @property
    def spec(self) -> Spec:
        """The spec of the whole."""
        first = self.parts[0].spec
        return Spec((len(self.parts), *first.shape), common_dtype(self.parts))

    def read(self) -> Array:
        """The whole, in memory."""
        return self.read_rows(0, len(self.parts))

    def read_rows(self, start: int, stop: int) -> Array:
        """Some of the parts."""
        dtype = common_dtype(self.parts)
        return np.stack([part.read().astype(dtype, copy=False) for part in self.parts[start:stop]])


class Transposed(NamedTuple):
    """The last two axes exchanged: ``Conv1D`` and ``kernel`` keep [in, out] where ``Linear`` keeps [out, in]."""

    stored: StoredTensor

    @property
    def spec(self) -> Spec:
        """The spec of the whole."""
        shape, dtype = self.stored.spec
        return Spec((*shape[:-2], shape[-1], shape[-2]), dtype)

    def read(self) -> Array:
        """A view of what is stored."""
        return self.stored.read().swapaxes(-1, -2)

    def read_rows(self, start: int, stop: int) -> Array:
        """Some rows."""
        if len(self.stored.spec.shape) > 2:
            return read_rows(self.stored, start, stop).swapaxes(-1, -2)
        return self.read()[start:stop]


class Rows(NamedTuple):
    """The first rows of a tensor: an embedding without its padding."""

    stored: StoredTensor
    length: int

    @property
    def spec(self) -> Spec:
        """The spec of these rows."""
        shape, dtype = self.stored.spec
        return Spec((self.length, *shape[1:]), dtype)

    def read(self) -> Array:
        """These rows."""
        return self.read_rows(0, self.length)

    def read_rows(self, start: int, stop: int) -> Array:
        """Some of these rows."""
        return read_rows(self.stored, start, min(stop, self.length))


class Reshaped(NamedTuple):
    """The same elements in another shape: [n, 1] for [n], a convolution without its axes of size 1."""

    stored: StoredTensor
    shape: tuple[int, ...]

    @property
    def spec(self) -> Spec:
        """The spec with the new shape."""
        return Spec(self.shape, self.stored.spec.dtype)

    def read(self) -> Array:
        """The values."""
        return self.stored.read().reshape(self.shape)


class Shifted(NamedTuple):
    """A constant added to every element: a norm that is kept as 1 + w."""

    stored: StoredTensor
    by: float

    @property
    def spec(self) -> Spec:
        """The stored spec."""
        return self.stored.spec

    def read(self) -> Array:
        """The whole, in memory."""
        values = self.stored.read()
        shifted: Array = (values.astype(np.float32) + np.float32(self.by)).astype(values.dtype)
        return shifted


@dataclass(frozen=True, eq=False)
class RowsPermuted:
    """Rows in another order: row i is row ``order[i]`` of what is stored."""

    stored: StoredTensor
    order: NDArray[np.int64]

    @property
    def spec(self) -> Spec:
        """The stored spec."""
        return self.stored.spec

    def read(self) -> Array:
        """The whole, in memory."""
        result: Array = self.stored.read()[self.order]
        return result

    def read_rows(self, start: int, stop: int) -> Array:
        """Some rows."""
        order = self.order[start:stop]
        low, high = int(order.min()), int(order.max()) + 1
        if high - low > 2 * len(order):  # far apart: read single rows, which is cheap if the tensor is mapped
            whole: Array = self.stored.read()[order]
            return whole
        near: Array = read_rows(self.stored, low, high)[order - low]
        return near


def interleaved(rows: int, head: int) -> NDArray[np.int64]:
    """The order that llama.cpp gives rope's rows within each head: first of one half, first of the other, …"""
    return np.arange(rows).reshape(-1, 2, head // 2).swapaxes(1, 2).reshape(-1)


def deinterleaved(rows: int, head: int) -> NDArray[np.int64]:
    """The inverse order."""
    return np.arange(rows).reshape(-1, head // 2, 2).swapaxes(1, 2).reshape(-1)
