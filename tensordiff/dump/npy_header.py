"""What the front of a ``.npy`` array says of the rest, parsed without numpy's own reader.

Six bytes of magic, a version, the length of a text and the text: a Python dict with ``descr``,
``fortran_order`` and ``shape``. The text is bounded before it is parsed and only literals are
accepted. Arrays of Python objects would need a pickle to be run, and structured, text and date
arrays are not tensors: all are refused with a sentence.
"""

from __future__ import annotations

import ast
import math
import os
import re
from typing import NamedTuple

import numpy as np

from tensordiff.dump.dtypes import DTYPES, Array, DType
from tensordiff.dump.files import MAX_RANK
from tensordiff.dump.model import Spec
from tensordiff.errors import BadFile

MAGIC = b"\x93NUMPY"
MAX_FRONT_BYTES = 10_012  # numpy's own limit on the text, and twelve bytes before it
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}  # by major version
_NUMBERS = re.compile(r"[<>|=]?[biufc]\d{1,2}")
_MAX_BYTES = (1 << 63) - 1


class NpyHeader(NamedTuple):
    """An array before its values. ``stored`` is the dtype in the file, which may be big-endian."""

    spec: Spec
    stored: DType
    is_fortran: bool
    data_start: int

    @property
    def total_bytes(self) -> int:
        """How long header and values are together."""
        return self.data_start + self.spec.nbytes

    def shape_values(self, raw: Array) -> Array:
        """See the bytes behind the header as the array; a copy only where their order must be turned."""
        array = raw.view(self.stored).reshape(self.spec.shape, order="F" if self.is_fortran else "C")
        array = array.astype(self.spec.dtype, copy=False)
        array.flags.writeable = False
        return array


def parse_front(front: bytes, path: str | os.PathLike[str], whose: str) -> NpyHeader:
    """Read a header from an array's first bytes; ``whose`` begins a sentence about it: ``its member x``."""
    length_bytes = _LENGTH_BYTES.get(front[6]) if front[:6] == MAGIC and len(front) > 6 else None
    if length_bytes is None:
        raise BadFile(path, f"{whose} does not begin as a .npy array does; was it written by something else?")
    text_start = 8 + length_bytes
    data_start = text_start + int.from_bytes(front[8:text_start], "little")
    if data_start > min(len(front), MAX_FRONT_BYTES):
        raise BadFile(path, f"{whose} has a header that is truncated or claims too many bytes; dump it again")
    descr, is_fortran, shape = _fields(front[text_start:data_start], path, whose)
    stored = _dtype(descr, path, whose)
    _check_shape(shape, stored, path, whose)
    return NpyHeader(Spec(shape, DTYPES[stored.newbyteorder("=").name]), stored, is_fortran, data_start)


def _fields(text: bytes, path: str | os.PathLike[str], whose: str) -> tuple[object, bool, tuple[int, ...]]:
    try:
        # latin-1 serves all versions: what lies outside ASCII can only be field names, and those we refuse.
        found = ast.literal_eval(text.decode("latin-1").strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise BadFile(path, f"{whose} has a header that is not a Python literal; dump it again") from error
    match found:
        case {"descr": descr, "fortran_order": bool(is_fortran), "shape": tuple(shape)} if len(found) == 3:
            return descr, is_fortran, shape
    raise BadFile(path, f"{whose} has a header without descr, fortran_order and shape; dump it again")


def _dtype(descr: object, path: str | os.PathLike[str], whose: str) -> DType:
    if isinstance(descr, str) and _NUMBERS.fullmatch(descr):
        try:
            stored: DType = np.dtype(descr)
        except TypeError as error:
            raise BadFile(path, f"{whose} has dtype {descr}, which is not known; dump it again") from error
        if stored.newbyteorder("=").name in DTYPES:
            return stored
    raise BadFile(path, f"{whose} {_why_not(descr)}")


def _why_not(descr: object) -> str:
    if not isinstance(descr, str):
        return "is a structured array, not a tensor; save its fields one by one"
    if descr.endswith("O"):
        return "is an array of Python objects, which only running a pickle could read; save it as numbers"
    if "V" in descr:
        return (
            f"has dtype {descr[:20]!r}, bytes without a meaning: .npy has no bfloat16 and no float8; "
            "save it as .safetensors instead"
        )
    return f"has dtype {descr[:20]!r}, which is not one of the numbers we read; save it as float64 or int64"


def _check_shape(shape: tuple[object, ...], stored: DType, path: str | os.PathLike[str], whose: str) -> None:
    counts = [n for n in shape if type(n) is int and n >= 0]
    spread = math.prod(max(n, 1) for n in counts)
    if len(counts) != len(shape) or len(shape) > MAX_RANK or spread * stored.itemsize > _MAX_BYTES:
        raise BadFile(path, f"{whose} claims an impossible shape; dump it again")
