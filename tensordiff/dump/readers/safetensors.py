"""``.safetensors`` files: one, or a folder of them. Only headers are read on opening.

A file is an 8-byte length, a JSON header of that length, and the tensors' bytes. A header is trusted as a whole or not
at all: a single tensor that lies outside the file, overlaps another, or has another size than its shape refuses the
file. Gaps between tensors are allowed, since some writers align. An unknown dtype refuses only its own tensor.

A header may have a hundred thousand rows, so a valid one is parsed and checked by msgspec in one go. Any other header
is then parsed row by row, which is slower and says what is wrong.

The common library sorts tensors by dtype and name when it writes, so the order in a file says nothing about execution:
the dump is not ``ordered``, unless the ``__metadata__`` of every file has ``order``, a JSON list of all its names as
they were executed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from tensordiff.dump.dtypes import DTYPES, Array, DType
from tensordiff.dump.files import (
    MAX_RANK,
    FileTensor,
    MappedFile,
    open_buffer,
    parse_json,
    refuse_beyond_memory,
    version_of,
    view_buffer,
)
from tensordiff.dump.folders import DumpPath, FilePart, join_parts, open_parts
from tensordiff.dump.model import Dump, Entry, Problem, Spec, entry
from tensordiff.dump.native.manifest import FACTS, SCHEMA, is_shard_name, split_shard_key
from tensordiff.dump.readers import Format
from tensordiff.errors import BadFile
from tensordiff.util.garbage_collector import gc_paused
from tensordiff.util.remote.ranges import RangeFile

FORMATS = (
    Format(
        "safetensors",
        "a file, or a folder of them",
        "suffix; a file also by its header",
        "only if the metadata says so, see below",
    ),
)

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class RawRow(msgspec.Struct, frozen=True, gc=False):
    """One row of a header as it is parsed. The metadata parses as one, too, without offsets."""

    dtype: str = ""
    shape: tuple[Count, ...] = ()
    data_offsets: tuple[Count, Count] | None = None


class _Metadata(msgspec.Struct):
    metadata: dict[str, str] = msgspec.field(name="__metadata__", default_factory=dict)


_rows_decoder = msgspec.json.Decoder(dict[str, RawRow])
_metadata_decoder = msgspec.json.Decoder(_Metadata)
_FIELDS = (b'"dtype"', b'"shape"', b'"data_offsets"')
_METADATA = "__metadata__"


def parse_valid_header(text: bytes) -> tuple[dict[str, RawRow], dict[str, str]] | None:
    """All rows by name, and the metadata; None if the header is not perfectly regular."""
    try:
        raw_rows, metadata = _rows_decoder.decode(text), _metadata_decoder.decode(text).metadata
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    raw_rows.pop(_METADATA, None)
    # Parsing would lose a repeated key. Without escapes, each field name occurs in the text exactly as often as it is a
    # field, so counting finds repetitions.
    is_regular = b"\\" not in text and all(text.count(field) == len(raw_rows) for field in _FIELDS)
    return (raw_rows, metadata) if is_regular and text.count(b'"__metadata__"') <= 1 else None


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
    """A header's row for one tensor; offsets count from the end of the header."""

    begin: int
    end: int
    name: str
    code: str
    shape: tuple[int, ...]


class Header(NamedTuple):
    """The rows in the order of their bytes, and the writer's own strings beside them."""

    rows: list[Row]
    metadata: dict[str, str]
    data_start: int


def read_header(path: Path) -> Header:
    """Read and check a file's header; reads nothing after it."""
    buffer = open_buffer(path)
    length = int.from_bytes(buffer[:8], "little")
    if not 2 <= length <= min(MAX_HEADER_BYTES, len(buffer) - 8):
        raise BadFile(
            path,
            f"is truncated or not a safetensors file: it claims a header of {length} bytes "
            f"and is itself {len(buffer)} bytes long; dump it again",
        )
    text = buffer[8 : 8 + length]
    rows, metadata = _valid_rows(text) or _checked_rows(path, text)
    rows.sort(key=_by_offset)
    _check_offsets(path, rows, len(buffer) - 8 - length)
    return Header(rows, metadata, 8 + length)


def _by_offset(row: Row) -> tuple[int, int]:
    return row[:2]


def _valid_rows(text: bytes) -> tuple[list[Row], dict[str, str]] | None:
    """Rows and metadata of a header in which nothing is wrong; None for any other."""
    if (parsed := parse_valid_header(text)) is None:
        return None
    raw_rows, metadata = parsed
    rows = []
    for name, row in raw_rows.items():
        code, shape, offsets = row.dtype, row.shape, row.data_offsets
        bits = _BITS.get(code)
        if offsets is None or bits is None or len(shape) > MAX_RANK:
            return None
        begin, end = offsets
        if math.prod(shape) * bits != (end - begin) * 8:
            return None
        rows.append(Row(begin, end, name, code, shape))
    return rows, metadata


def _checked_rows(path: Path, text: bytes) -> tuple[list[Row], dict[str, str]]:
    """Rows and metadata of any header; raises a sentence about what is wrong."""
    fields = parse_json(text, path, "its header")
    if not isinstance(fields, dict):
        raise BadFile(path, "its header is not a JSON object; dump it again")
    metadata = _checked_metadata(path, fields.pop("__metadata__", {}))
    return [_row(path, name, row) for name, row in fields.items()], metadata


def _checked_metadata(path: Path, metadata: Any) -> dict[str, str]:
    if isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values()):
        return metadata
    raise BadFile(path, "its __metadata__ is not an object of strings; dump it again")


def _row(path: Path, name: str, row: Any) -> Row:
    # Plain tests, not patterns, which cost three times as much: a header may have many thousands of rows.
    try:
        code, shape, (begin, end) = row["dtype"], row["shape"], row["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise _bad_row(path, name, "no dtype, shape and data_offsets as they should be") from None
    if not (type(begin) is int and type(end) is int and 0 <= begin <= end):
        raise _bad_row(path, name, "impossible data_offsets")
    if type(code) is not str or not _is_shape(shape):
        raise _bad_row(path, name, "an impossible dtype or shape")
    if code in _BITS and math.prod(shape) * _BITS[code] != (end - begin) * 8:
        raise _bad_row(path, name, f"dtype {code} and shape {shape!r:.120}, but {end - begin!r:.40} bytes")
    return Row(begin, end, name, code, tuple(shape))


def _is_shape(shape: Any) -> bool:
    """Whether a value is a list of dimensions. A bool is an int in Python, but no dimension."""
    is_counts = type(shape) is list and len(shape) <= MAX_RANK and {int}.issuperset(map(type, shape))
    return is_counts and min(shape, default=0) >= 0


def _bad_row(path: Path, name: str, fault: str) -> BadFile:
    return BadFile(path, f"its header lies: it gives tensor {name!r:.120} {fault}; dump it again")


def _check_offsets(path: Path, rows: list[Row], data_bytes: int) -> None:
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


SUFFIX = ".safetensors"
_ORDER = "order"
FACTS_KEY = "tensordiff.facts"
"""The metadata key under which a converted dump has the facts of its run, as JSON."""
_IN_PLACE = {code: dtype for code, dtype in CODES.items() if code != "F4"}


class _Tensor(NamedTuple):
    """A tensor at the offsets of its row. A small tuple, because a file may hold many thousands."""

    file: MappedFile
    data_start: int
    row: Row

    @property
    def spec(self) -> Spec:
        """Shape and dtype; raises for a dtype that we do not read."""
        dtype = CODES.get(self.row.code)
        if dtype is None:
            raise self._refusal()
        return Spec(self.row.shape, dtype)

    def read(self) -> Array:
        """Map the values; packed ones are unpacked into a copy."""
        file, data_start, (begin, end, _, code, shape) = self
        dtype, buffer = _IN_PLACE.get(code), file.buffer
        if dtype is not None and end - begin > 0 and data_start + end <= len(buffer) and type(buffer) is not RangeFile:
            return np.ndarray(
                shape, dtype, buffer, data_start + begin
            )  # the header was checked before, the file's end here
        if code != "F4":
            return view_buffer(file.buffer, file.path, data_start + begin, self.spec)
        packed = Spec((end - begin,), DTYPES["uint8"])
        what = f"tensor {self.row.name!r:.120} unpacks to"
        refuse_beyond_memory(file.path, what, 2 * self.spec.nbytes, "dump it in another dtype")
        return _unpack(view_buffer(file.buffer, file.path, data_start + begin, packed), self.spec)

    def contiguous(self) -> FileTensor | None:
        """The same tensor by its position in the file; None if its values are packed."""
        dtype = _IN_PLACE.get(self.row.code)
        place = self.data_start + self.row.begin
        return None if dtype is None else FileTensor(self.file, place, Spec(self.row.shape, dtype))

    def _refusal(self) -> BadFile:
        _, _, name, code, _ = self.row
        why = "how its bits are packed is written nowhere" if code.startswith("F6_") else "which is not known"
        return BadFile(self.file.path, f"tensor {name!r:.120} has dtype {code!r:.40}, {why}; dump it in another dtype")


def _unpack(packed: Array, spec: Spec) -> Array:
    """Unpack two 4-bit floats per byte, the first in the low bits, as torch's ``float4_e2m1fn_x2`` stores them."""
    values = np.stack((packed & 0xF, packed >> 4), axis=-1).view(spec.dtype).reshape(spec.shape)
    values.flags.writeable = False
    return values


def try_open(at: DumpPath) -> Dump | None:
    """Open a ``.safetensors`` file or a folder that holds some."""
    if not at.is_folder:
        return join_parts(at, "safetensors", [open_file(at.path)], []) if _is_ours(at) else None
    names = at.with_suffix(SUFFIX)
    if not names:
        return None
    dump = open_parts(at, "safetensors", names, open_file)
    # Shards of our own without a manifest or journal: nobody knows what is missing.
    is_part = dump.facts.get("schema") == SCHEMA and any(map(is_shard_name, names))
    return replace(dump, interrupted=True) if is_part else dump


def _is_ours(at: DumpPath) -> bool:
    """Whether it is a safetensors file, by suffix or by header: the Hugging Face cache names files by hash."""
    if at.path.name.lower().endswith(SUFFIX):
        return True
    return at.head[8:10] == b'{"' and int.from_bytes(at.head[:8], "little") <= MAX_HEADER_BYTES


def open_file(path: Path) -> FilePart:
    """The tensors of one file."""
    with gc_paused():
        file = MappedFile(path, version_of(path))
        header = read_header(path)
        entries = [_entry(row.name, _Tensor(file, header.data_start, row)) for row in header.rows]
    order, problems = header.metadata.pop(_ORDER, None), []
    facts: dict[str, object] = {key: value for key, value in header.metadata.items() if key != FACTS_KEY}
    try:
        facts |= _facts(path, header.metadata)
    except BadFile as error:
        problems.append(Problem(path.name, error.problem))
    is_ordered = False
    if order is not None:  # it may be right even if the facts are not
        try:
            entries, is_ordered = _in_order(path, [row.name for row in header.rows], entries, order), True
        except BadFile as error:
            problems.append(Problem(path.name, error.problem))
    return FilePart(path.name, entries, is_ordered, problems, facts)


def _entry(key: str, stored: _Tensor) -> Entry:
    """An entry by its name; in a converted file, the key contains step and call if the name does not."""
    if "#" not in key or (parts := split_shard_key(key)) is None:
        return entry(key, stored)
    return entry(parts.name, stored, parts.step)._replace(call=parts.call)


def _facts(path: Path, metadata: Mapping[str, str]) -> dict[str, object]:
    """The facts of a dump of ours that was converted to a file."""
    if FACTS_KEY not in metadata:
        return {}
    facts = parse_json(metadata[FACTS_KEY].encode(errors="surrogatepass"), path, "the facts in its __metadata__")
    if not isinstance(facts, dict):
        raise BadFile(path, "the facts in its __metadata__ are not a JSON object, and are ignored")
    return {key: value for key, value in facts.items() if key in FACTS and value is not None}


def _in_order(path: Path, keys: list[str], entries: list[Entry], order: str) -> list[Entry]:
    """The entries as ``order`` lists them; a list that does not name each once is refused."""
    names = parse_json(order.encode(errors="surrogatepass"), path, "the order in its __metadata__")
    by_name = dict(zip(keys, entries, strict=True))
    is_names = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not is_names or len(names) != len(by_name) or set(names) != by_name.keys():
        raise BadFile(path, "the order in its __metadata__ does not list its tensors, each once, and is ignored")
    return [by_name[name] for name in names]
