"""numpy's arrays and scalars within a pickle, as records: nothing of numpy is called to make them.

An array is ``_reconstruct(ndarray, …)`` with a state ``(version, shape, dtype, fortran, bytes)``; protocol 5 writes
``_frombuffer(bytes, dtype, shape, order)``, a scalar is ``scalar(dtype, bytes)``. What an array claims is checked
against its bytes here, before numpy sees either; a false claim refuses only its own array.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np

from tensordiff.dump.dtypes import DTYPES, Array, DType
from tensordiff.dump.files import MAX_RANK, Buffer, refuse_beyond_memory, view_buffer
from tensordiff.dump.model import Spec
from tensordiff.dump.readers.torch.records import Blob, UnknownGlobal
from tensordiff.dump.readers.torch.tensors import BadPickle
from tensordiff.errors import BadFile

_MAX_ELEMENTS = 1 << 62
_CODES = {f"{code}": np.dtype(code) for code in (
    "b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16",
)}  # fmt: skip


class NumpyClass:
    """``numpy.ndarray`` and related classes: only named, never created."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class PickledDType:
    """A dtype: a code, and a byte order that follows as its state."""

    __slots__ = ("big_endian", "dtype", "why")

    def __init__(self, dtype: DType | None, why: str) -> None:
        self.dtype, self.why, self.big_endian = dtype, why, False

    def set_state(self, state: object) -> None:
        """Set the state ``(version, byte order, …)``, which also holds the fields of a structured dtype."""
        if type(state) is not tuple or not 2 <= len(state) <= 9:
            raise BadPickle("describes a numpy dtype in a way we do not know")
        self.big_endian = state[1] == ">"
        if len(state) > 4 and (state[2] is not None or state[3] is not None):
            self.dtype, self.why = None, "is a structured array, not a tensor; save its fields one by one"


class PickledArray:
    """An array or scalar whose bytes lie within a pickle; ``sentence`` says why it cannot be read, if so."""

    __slots__ = ("big_endian", "data", "is_fortran", "sentence", "spec")

    def __init__(self) -> None:
        self.sentence = "is a numpy array without its values; save it again"
        self.data: bytes | Blob = b""
        self.spec = Spec((0,), DTYPES["uint8"])
        self.is_fortran = self.big_endian = False

    def set_state(self, state: object) -> None:
        """Set the state ``(version, shape, dtype, fortran, bytes)``."""
        if type(state) is not tuple or len(state) != 5:
            raise BadPickle("describes a numpy array in a way we do not know")
        self.fill(state[1], state[2], state[3] is True, state[4])

    def fill(self, shape: object, dtype: object, is_fortran: bool, data: object) -> None:
        """Set shape, dtype and bytes, if they fit one another."""
        if not self.sentence:
            raise BadPickle("its pickle gives one array two states")
        self.sentence = _why_unreadable(shape, dtype, data) or ""
        if self.sentence or type(dtype) is not PickledDType or dtype.dtype is None:
            return
        if isinstance(shape, tuple) and isinstance(data, bytes | Blob):
            self.spec, self.data = Spec(shape, dtype.dtype), data
            self.is_fortran, self.big_endian = is_fortran, dtype.big_endian

    def read(self, buffer: Buffer, path: str | os.PathLike[str]) -> Array:
        """The values, read-only."""
        raw = self._bytes(buffer, path)
        if raw.nbytes != self.spec.nbytes:
            raise BadFile(path, f"holds {raw.nbytes} bytes of a numpy array of {self.spec.nbytes}; dump it again")
        stored = self.spec.dtype.newbyteorder(">") if self.big_endian else self.spec.dtype
        values = raw.view(stored).reshape(self.spec.shape, order="F" if self.is_fortran else "C")
        values = values.astype(self.spec.dtype, copy=False)
        if values.flags.writeable:
            values.flags.writeable = False
        return values

    def _bytes(self, buffer: Buffer, path: str | os.PathLike[str]) -> Array:
        data = self.data
        if isinstance(data, bytes):
            return np.frombuffer(data, np.uint8)
        if not data.is_text:
            return view_buffer(buffer, path, data.at, Spec((data.size,), DTYPES["uint8"]))
        refuse_beyond_memory(path, "a numpy array in it unpacks to", 4 * data.size, "save it as .npy")
        try:
            return np.frombuffer(buffer[data.at : data.at + data.size].decode().encode("latin1"), np.uint8)
        except UnicodeError as error:
            raise BadFile(path, "spells the bytes of a numpy array wrong; dump it again") from error


def _why_unreadable(shape: object, dtype: object, data: object) -> str | None:
    """Why an array's claims cannot be true, or its values not be read."""
    if type(dtype) is not PickledDType:
        return "is a numpy array of no dtype; save it again"
    if dtype.dtype is None:
        return dtype.why
    if type(shape) is not tuple or len(shape) > MAX_RANK or not all(type(n) is int and n >= 0 for n in shape):
        return "claims an impossible shape; save it again"
    nbytes = math.prod(shape) * dtype.dtype.itemsize
    if math.prod(max(n, 1) for n in shape) >= _MAX_ELEMENTS:
        return "claims an impossible shape; save it again"
    if type(data) is Blob:
        # In text, each byte takes one byte or two.
        fits = nbytes <= data.size <= 2 * nbytes if data.is_text else nbytes == data.size
    else:
        fits = type(data) is bytes and len(data) == nbytes
    return None if fits else "has another number of bytes than its shape takes; save it again"


def _array(_kind: object, _shape: object, _code: object) -> PickledArray:
    return PickledArray()


def _from_buffer(data: object, dtype: object, shape: object, order: object) -> PickledArray:
    made = PickledArray()
    made.fill(shape, dtype, order == "F", data)
    return made


def _scalar(dtype: object, data: object = b"") -> PickledArray:
    made = PickledArray()
    made.fill((), dtype, False, data)
    return made


def _dtype(code: object, *_rest: object) -> PickledDType:
    if type(code) is UnknownGlobal and code.module == "ml_dtypes" and code.name in DTYPES:
        return PickledDType(DTYPES[code.name], "")
    if type(code) is NumpyClass:  # numpy.dtype(numpy.float32)
        return PickledDType(DTYPES.get(code.name), "has a dtype that is no number; save it as numbers")
    if type(code) is not str or code.lstrip("<|=>") not in _CODES:
        why = "is an array of Python objects" if code == "O8" else f"has dtype {str(code)[:20]!r}"
        return PickledDType(None, f"{why}, not of numbers we know; save it as numbers")
    made = PickledDType(_CODES[code.lstrip("<|=>")], "")
    made.big_endian = code.startswith(">")
    return made


NUMPY: dict[tuple[str, str], Callable[..., object]] = {("numpy", "dtype"): _dtype}
for _core in ("numpy._core", "numpy.core"):
    NUMPY[f"{_core}.multiarray", "_reconstruct"] = _array
    NUMPY[f"{_core}.multiarray", "scalar"] = _scalar
    NUMPY[f"{_core}.numeric", "_frombuffer"] = _from_buffer
NUMPY_TYPES: dict[tuple[str, str], object] = {
    ("numpy", name): NumpyClass(name) for name in ("ndarray", *(name for name in DTYPES if hasattr(np, name)))
}
