"""``.npy`` and ``.npz`` files: one, or a folder of them.

A ``.npy`` holds one array, named like the file; its header is read when its entry is first used, by our own bounded
parser, which accepts only literals. Arrays of Python objects would require running a pickle, and structured, text and
date arrays are not tensors: all of these are refused with a sentence.

An ``.npz`` is a zip of such arrays. Uncompressed ones, as ``numpy.savez`` writes them, are mapped in place. Compressed
ones are unpacked when read, and never into more memory than both the zip and the array's header claim.

Neither kind is ``ordered``. An ``.npz`` keeps the order of the arguments of ``savez``, which is execution order only if
the caller kept it, and nothing in the file says so.
"""

from __future__ import annotations

import ast
import math
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tensordiff.dump.dtypes import DTYPES, Array, DType
from tensordiff.dump.files import MAX_RANK, Buffer, open_buffer, refuse_beyond_memory, view_buffer
from tensordiff.dump.folders import DumpPath, FilePart, join_parts, name_files, open_parts
from tensordiff.dump.model import Dump, Entry, Problem, Spec, entry
from tensordiff.dump.readers import Format
from tensordiff.dump.readers.tools.flax import place_of
from tensordiff.dump.zip_files import DeflatedMember, Member, ZipMap, map_zip
from tensordiff.errors import BadFile

FORMATS = (
    Format(
        "numpy",
        "a `.npy` file, or a folder of them",
        "suffix; a file also by its first 6 bytes",
        "none",
    ),
    Format(
        "npz",
        "an `.npz` file, or a folder of them",
        "suffix",
        "none",
    ),
)

MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 10_012  # numpy's own limit for the text, plus the twelve bytes before it
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}  # by major version
_NUMBERS = re.compile(r"[<>|=]?[biufc]\d{1,2}")
_BFLOAT16 = ("<V2", "|V2", "V2")  # the only two-byte dtype that numpy itself lacks
_MAX_BYTES = (1 << 63) - 1
_LITTLE_ENDIAN = "save it little-endian, and it is read in place"
_DOCUMENT = re.compile(
    r"(?i)(^|/)(readme|licen[cs]e|notice)[^/]*$|\.(txt|md|json|csv|toml|ya?ml|html|png|svg|log|xml|py)$"
)


class NpyHeader(NamedTuple):
    """The content of an array's header. ``stored`` is the dtype in the file, which may be big-endian."""

    spec: Spec
    stored: DType
    is_fortran: bool
    data_start: int

    @property
    def total_bytes(self) -> int:
        """The length of header and values together."""
        return self.data_start + self.spec.nbytes

    def as_array(self, raw: Array) -> Array:
        """The bytes behind the header as an array; copied only if they are big-endian."""
        array = raw.view(self.stored).reshape(self.spec.shape, order="F" if self.is_fortran else "C")
        array = array.astype(self.spec.dtype, copy=False)
        array.flags.writeable = False
        return array


def parse_header(first_bytes: bytes, path: str | os.PathLike[str], subject: str) -> NpyHeader:
    """Read a header from an array's first bytes; ``subject`` begins an error sentence: ``its member x``."""
    length_bytes = _LENGTH_BYTES.get(first_bytes[6]) if first_bytes[:6] == MAGIC and len(first_bytes) > 6 else None
    if length_bytes is None:
        raise BadFile(path, f"{subject} does not begin as a .npy array does; was it written by something else?")
    text_start = 8 + length_bytes
    data_start = text_start + int.from_bytes(first_bytes[8:text_start], "little")
    if data_start > min(len(first_bytes), MAX_HEADER_BYTES):
        raise BadFile(path, f"{subject} has a header that is truncated or claims too many bytes; dump it again")
    descr, is_fortran, shape = _fields(first_bytes[text_start:data_start], path, subject)
    stored = _dtype(descr, path, subject)
    _check_shape(shape, stored, path, subject)
    return NpyHeader(Spec(shape, DTYPES[stored.newbyteorder("=").name]), stored, is_fortran, data_start)


def _fields(text: bytes, path: str | os.PathLike[str], subject: str) -> tuple[object, bool, tuple[int, ...]]:
    try:
        # latin-1 works for all versions: only field names may hold other characters, and those are refused.
        fields = ast.literal_eval(text.decode("latin-1").strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise BadFile(path, f"{subject} has a header that is not a Python literal; dump it again") from error
    match fields:
        case {"descr": descr, "fortran_order": bool(is_fortran), "shape": tuple(shape)} if len(fields) == 3:
            return descr, is_fortran, shape
    raise BadFile(path, f"{subject} has a header without descr, fortran_order and shape; dump it again")


def _dtype(descr: object, path: str | os.PathLike[str], subject: str) -> DType:
    if descr in _BFLOAT16:
        return DTYPES["bfloat16"]
    if isinstance(descr, str) and _NUMBERS.fullmatch(descr):
        try:
            stored: DType = np.dtype(descr)
        except TypeError as error:
            raise BadFile(path, f"{subject} has dtype {descr}, which is not known; dump it again") from error
        if stored.newbyteorder("=").name in DTYPES:
            return stored
    raise BadFile(path, f"{subject} {_unsupported(descr)}")


def _unsupported(descr: object) -> str:
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


def _check_shape(shape: tuple[object, ...], stored: DType, path: str | os.PathLike[str], subject: str) -> None:
    counts = [n for n in shape if type(n) is int and n >= 0]
    spread = math.prod(max(n, 1) for n in counts)
    if len(counts) != len(shape) or len(shape) > MAX_RANK or spread * stored.itemsize > _MAX_BYTES:
        raise BadFile(path, f"{subject} claims an impossible shape; dump it again")


@dataclass(frozen=True)
class NpyFile:
    """The array of one ``.npy`` file."""

    path: Path

    @cached_property
    def spec(self) -> Spec:
        """Shape and dtype, from the header."""
        return self._header(open_buffer(self.path)).spec

    def read(self) -> Array:
        """Map the values. The mapping lives only as long as the array, so that thousands of files do not stay open."""
        buffer = open_buffer(self.path)
        header = self._header(buffer)
        return _view(buffer, self.path, 0, header)

    def _header(self, buffer: Buffer) -> NpyHeader:
        header = parse_header(buffer[:MAX_HEADER_BYTES], self.path, "it")
        _check_length(header, len(buffer), self.path, "it")
        return header


@dataclass(frozen=True)
class NpzMember:
    """One array of an ``.npz`` file."""

    zipped: ZipMap
    name: bytes

    @property
    def is_array(self) -> bool:
        """Whether it begins like an array, as numpy itself requires of members that are not named ``.npy``."""
        try:
            return self._first_bytes.startswith(MAGIC)
        except BadFile:
            return False

    @cached_property
    def spec(self) -> Spec:
        """Shape and dtype from the header; only that much of a compressed array is unpacked."""
        return self._header.spec

    def read(self) -> Array:
        """The values: in place, or unpacked into a copy."""
        header = self._header
        if self._member.as_is:
            return _view(self.zipped.buffer, self._path, self.zipped.span(self.name).start, header)
        values = self._deflated.read()[header.data_start :]
        if header.stored != header.spec.dtype:
            what = f"{self._subject} in this machine's byte order takes"
            refuse_beyond_memory(self._path, what, header.spec.nbytes, _LITTLE_ENDIAN)
        return header.as_array(values)

    @cached_property
    def _header(self) -> NpyHeader:
        header = parse_header(self._first_bytes, self._path, self._subject)
        _check_length(header, self._member.size, self._path, self._subject)
        return header

    @property
    def _first_bytes(self) -> bytes:
        if not self._member.as_is:
            return self._deflated.first_bytes(MAX_HEADER_BYTES)
        start, size = self.zipped.span(self.name)
        return self.zipped.buffer[start : start + min(size, MAX_HEADER_BYTES)]

    @property
    def _deflated(self) -> DeflatedMember:
        zipped, member = self.zipped, self._member
        if not member.deflated:
            raise BadFile(self._path, f"{self._subject} is encrypted or packed in a way we do not read; save it again")
        span = zipped.packed_span(self.name)
        return DeflatedMember(self._path, self._subject, zipped.buffer, span, member.size, member.crc)

    @property
    def _member(self) -> Member:
        return self.zipped.member(self.name)

    @property
    def _path(self) -> Path:
        path = self.zipped.path
        return path if isinstance(path, Path) else Path(path)

    @property
    def _subject(self) -> str:
        return f"its member {_text(self.name)!r:.120}"


def only_array(data: bytes, path: Path, subject: str) -> Array:
    """The first array of an ``.npz`` that is embedded in another file."""
    zipped = map_zip(data, path)
    name = next(iter(zipped.rows), None)
    if name is None:
        raise BadFile(path, f"{subject} is an empty archive; save it again")
    return NpzMember(zipped, name).read()


def try_open(at: DumpPath) -> Dump | None:
    """Open a ``.npy`` or ``.npz`` file, or a folder that holds some."""
    if at.is_folder:
        if names := at.with_suffix(".npy"):
            return _open_npy(at, names)
        names = at.with_suffix(".npz")
        return open_parts(at, "npz", names, lambda path: open_npz(path, f"{path.name}/")) if names else None
    if at.path.name.lower().endswith(".npz"):
        return join_parts(at, "npz", [open_npz(at.path)], [])
    return _open_npy(at, [at.path.name]) if _is_npy(at) else None


def _is_npy(at: DumpPath) -> bool:
    if at.path.name.lower().endswith(".npy") and not at.head.startswith(MAGIC):
        raise BadFile(at.path, "does not begin as a .npy file does; was it written by something else?")
    return at.head.startswith(MAGIC)


def _open_npy(at: DumpPath, files: list[str]) -> Dump:
    entries = tuple(entry(name, NpyFile(at.folder / file)) for name, file in name_files(files, _stem))
    return Dump(at.path, "numpy", entries, ordered=False, problems=at.problems, files=frozenset(files))


def open_npz(path: Path, prefix: str = "") -> FilePart:
    """The arrays of an ``.npz``; ``prefix`` leads from the dump to a member."""
    zipped = map_zip(open_buffer(path), path)
    entries: list[Entry] = []
    others: list[Problem] = []
    for name in zipped.rows:
        member, text = NpzMember(zipped, name), _text(name)
        if name.lower().endswith(b".npy") or member.is_array:
            entries.append(_member_entry(_stem(text), member))
        elif not name.endswith(b"/"):
            others.append(Problem(f"{prefix}{text:.120}", "is not a .npy array", not _DOCUMENT.search(text)))
    return FilePart(path.name, entries, False, others, {})


def _member_entry(name: str, member: NpzMember) -> Entry:
    """An entry for a member, whose name may contain slashes: JAX and flax join the keys of nested modules with them."""
    if "/" not in name:
        return entry(name, member)
    layer, port, call = place_of(name.split("/"))
    return Entry(name, layer, port, call, 0, member)


def _stem(name: str) -> str:
    return name[:-4] if name.lower().endswith(".npy") else name


def _text(name: bytes) -> str:
    return name.decode(errors="backslashreplace")


def _check_length(header: NpyHeader, length: int, path: Path, subject: str) -> None:
    if header.total_bytes != length:
        raise BadFile(
            path,
            f"{subject} is truncated or its header lies: {header.spec.dtype.name} of shape "
            f"{list(header.spec.shape)!s:.120} makes {header.total_bytes} bytes and {length} are there; "
            "dump it again, one array a file",
        )


def _view(buffer: Buffer, path: Path, start: int, header: NpyHeader) -> Array:
    if header.stored != header.spec.dtype:
        refuse_beyond_memory(path, "in this machine's byte order it takes", header.spec.nbytes, _LITTLE_ENDIAN)
    raw = Spec((header.spec.nbytes,), DTYPES["uint8"])
    return header.as_array(view_buffer(buffer, path, start + header.data_start, raw))
