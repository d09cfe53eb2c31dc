"""What the front of a ``.safetensors`` file says of the rest, believed only after it was checked.

A file is an 8-byte length, a JSON header of that length, and the tensors' bytes. A header is
believed whole or not at all: one tensor outside the file, over another, or of another size than its
shape refuses the file. Gaps between tensors are let be: some writers align. What the bytes of a
tensor mean is decided in ``safetensors_files``.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tensordiff.dump.dtypes import DTYPES, DType
from tensordiff.dump.files import MAX_RANK, map_file
from tensordiff.dump.safetensors_claims import parse_claims
from tensordiff.dump.strict_json import parse_json
from tensordiff.errors import BadFile

MAX_HEADER_BYTES = 100_000_000  # the library's own limit

_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32",
    "F64": "float64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn",
}  # fmt: skip
CODES: dict[str, DType] = {code: DTYPES[name] for code, name in _NAMES.items()}
_BITS = {code: dtype.itemsize * 8 for code, dtype in CODES.items()} | {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


class Row(NamedTuple):
    """What a header says of one tensor; offsets count from the end of the header."""

    begin: int
    end: int
    name: str
    code: str
    shape: tuple[int, ...]


class Header(NamedTuple):
    """The rows in the order their bytes lie, and the strings that whoever wrote the file put beside them."""

    rows: list[Row]
    metadata: dict[str, str]
    data_start: int


def read_header(path: Path) -> Header:
    """Read and check a file's header; touches nothing after it."""
    buffer = map_file(path)
    length = int.from_bytes(buffer[:8], "little")
    if not 2 <= length <= min(MAX_HEADER_BYTES, len(buffer) - 8):
        raise BadFile(
            path,
            f"is truncated or not a safetensors file: it claims a header of {length} bytes "
            f"and is itself {len(buffer)} bytes long; dump it again",
        )
    text = buffer[8 : 8 + length]
    rows, metadata = _quick_rows(text) or _checked_rows(path, text)
    rows.sort(key=_by_place)
    _check_places(path, rows, len(buffer) - 8 - length)
    return Header(rows, metadata, 8 + length)


def _by_place(row: Row) -> tuple[int, int]:
    return row[:2]


def _quick_rows(text: bytes) -> tuple[list[Row], dict[str, str]] | None:
    """Rows and metadata of a header in which nothing is wrong; None of any other."""
    if (parsed := parse_claims(text)) is None:
        return None
    claims, metadata = parsed
    rows = []
    for name, claim in claims.items():
        code, shape, place = claim.dtype, claim.shape, claim.data_offsets
        bits = _BITS.get(code)
        if place is None or bits is None or len(shape) > MAX_RANK:
            return None
        begin, end = place
        if math.prod(shape) * bits != (end - begin) * 8:
            return None
        rows.append(Row(begin, end, name, code, shape))
    return rows, metadata


def _checked_rows(path: Path, text: bytes) -> tuple[list[Row], dict[str, str]]:
    """The same of any header, with a sentence for what is wrong."""
    fields = parse_json(text, path, "its header")
    if not isinstance(fields, dict):
        raise BadFile(path, "its header is not a JSON object; dump it again")
    metadata = _checked_metadata(path, fields.pop("__metadata__", {}))
    return [_row(path, name, claim) for name, claim in fields.items()], metadata


def _checked_metadata(path: Path, metadata: Any) -> dict[str, str]:
    if isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values()):
        return metadata
    raise BadFile(path, "its __metadata__ is not an object of strings; dump it again")


def _row(path: Path, name: str, claim: Any) -> Row:
    # Plain tests, not patterns, which cost three times as much: a header may have many thousands of rows.
    try:
        code, shape, (begin, end) = claim["dtype"], claim["shape"], claim["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise _lie(path, name, "no dtype, shape and data_offsets as they should be") from None
    if not (type(begin) is int and type(end) is int and 0 <= begin <= end):
        raise _lie(path, name, "impossible data_offsets")
    if type(code) is not str or not _is_shape(shape):
        raise _lie(path, name, "an impossible dtype or shape")
    if code in _BITS and math.prod(shape) * _BITS[code] != (end - begin) * 8:
        raise _lie(path, name, f"dtype {code} and shape {shape!r:.120}, but {end - begin!r:.40} bytes")
    return Row(begin, end, name, code, tuple(shape))


def _is_shape(shape: Any) -> bool:
    """A bool is an int to Python, and no dimension."""
    is_counts = type(shape) is list and len(shape) <= MAX_RANK and {int}.issuperset(map(type, shape))
    return is_counts and min(shape, default=0) >= 0


def _lie(path: Path, name: str, claim: str) -> BadFile:
    return BadFile(path, f"its header lies: it gives tensor {name!r:.120} {claim}; dump it again")


def _check_places(path: Path, rows: list[Row], data_bytes: int) -> None:
    if rows and (row := max(rows, key=lambda row: row.end)).end > data_bytes:
        raise BadFile(
            path,
            f"is truncated: tensor {row.name!r:.120} ends at byte {row.end!r:.40} of the data, "
            f"of which {data_bytes} bytes are there; dump it again",
        )
    for one, other in pairwise(rows):
        if other.begin < one.end:
            raise BadFile(
                path,
                f"its header lies: tensors {one.name!r:.120} and {other.name!r:.120} overlap; dump it again",
            )
