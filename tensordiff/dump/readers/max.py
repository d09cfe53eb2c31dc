"""``.max`` files, as MAX writes them when told to print tensors as ``BINARY_MAX_CHECKPOINT``: one, or a folder.

A file holds one tensor, which is named like the file. A folder says nothing about execution order, not even by its
times, so the dump is not ``ordered``. Opening only lists the folder; a file's header is read when its entry is first
used.

A file is little-endian: 8 bytes of magic, u32 major and minor version, u64 size of what follows up to the data; then
u32 length and bytes of the name, u8 dtype, u8 rank, u32 for each dimension, u64 offset of the data, which extends to
the end of the file. Every length is given twice, and both must agree.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tensordiff.dump.dtypes import DTYPES, Array, DType
from tensordiff.dump.files import MAX_RANK, Buffer, open_buffer, view_buffer
from tensordiff.dump.folders import DumpPath, name_files
from tensordiff.dump.model import Dump, Spec, entry
from tensordiff.dump.readers import Format
from tensordiff.errors import BadFile

FORMATS = (
    Format(
        "max",
        "a `.max` file, or a folder of them",
        "suffix; a file also by its first 8 bytes",
        "none",
    ),
)

SUFFIX = ".max"
MAGIC = b"\x93\xf0\x9f\x94\xa5\x2b\x2b\x93"
_VERSION = (0, 1)
_FRONT = struct.Struct("<8sIIQI")  # magic, version, metadata size, length of the name
_METADATA_START = 24

_NAMES = {
    1: "bool", 134: "uint8", 135: "int8", 136: "uint16", 137: "int16", 138: "uint32", 139: "int32",
    140: "uint64", 141: "int64", 79: "float16", 80: "bfloat16", 81: "float32", 82: "float64",
    73: "float8_e8m0fnu", 75: "float8_e4m3fn", 76: "float8_e4m3fnuz", 77: "float8_e5m2",
    78: "float8_e5m2fnuz",
}  # fmt: skip
_CODES: dict[int, DType] = {code: DTYPES[name] for code, name in _NAMES.items()}
_PACKED = {64: "float4_e2m1fn", 65: "float6_e2m3fn", 66: "float6_e3m2fn"}


@dataclass(frozen=True)
class MaxFile:
    """The tensor of one ``.max`` file."""

    path: Path

    @cached_property
    def spec(self) -> Spec:
        """Shape and dtype, from the header."""
        return _header(open_buffer(self.path), self.path)[0]

    def read(self) -> Array:
        """Map the values. The mapping lives only as long as the array, so that thousands of files do not stay open."""
        buffer = open_buffer(self.path)
        spec, offset = _header(buffer, self.path)
        return view_buffer(buffer, self.path, offset, spec)


def try_open(at: DumpPath) -> Dump | None:
    """Open a ``.max`` file or a folder that holds some."""
    if not at.is_folder:
        return _dump(at, [at.path.name]) if _is_ours(at) else None
    names = at.with_suffix(SUFFIX)
    return _dump(at, names) if names else None


def _is_ours(at: DumpPath) -> bool:
    if at.head.startswith(MAGIC):
        return True
    if at.path.name.lower().endswith(SUFFIX):
        raise BadFile(at.path, "does not begin as a .max file does; MAX writes those as BINARY_MAX_CHECKPOINT")
    return False


def _dump(at: DumpPath, files: list[str]) -> Dump:
    entries = tuple(entry(name, MaxFile(at.folder / file)) for name, file in name_files(files, _stem))
    return Dump(at.path, "max", entries, ordered=False, problems=at.problems, files=frozenset(files))


def _stem(name: str) -> str:
    """A tensor's name from its file's: dots belong to the name, one suffix does not."""
    return name[: -len(SUFFIX)] if name.lower().endswith(SUFFIX) else name


def _header(buffer: Buffer, path: Path) -> tuple[Spec, int]:
    """Shape and dtype from a file's header, and where the values begin."""
    if buffer[:8] != MAGIC:
        raise BadFile(path, "does not begin as a .max file does; was it written by something else?")
    try:
        return _checked(buffer, path)
    except struct.error as error:
        raise BadFile(path, f"is truncated: its header does not fit in {len(buffer)} bytes; dump it again") from error


def _checked(buffer: Buffer, path: Path) -> tuple[Spec, int]:
    _, major, minor, metadata_size, key_length = _FRONT.unpack(buffer[: _FRONT.size])
    if (major, minor) != _VERSION:
        raise BadFile(path, f"is a .max file of version {major}.{minor}; only 0.1 is known")
    at = _FRONT.size + key_length + 2
    code, rank = struct.unpack("<BB", buffer[at - 2 : at])
    *shape, offset = struct.unpack(f"<{rank}IQ", buffer[at : at + struct.calcsize(f"<{rank}IQ")])
    true_size = 4 + key_length + 2 + 4 * rank + 8
    if rank > MAX_RANK or (metadata_size, offset) != (true_size, _METADATA_START + true_size):
        raise BadFile(path, f"its header contradicts itself ({rank} dimensions, data at {offset}); dump it again")
    spec = Spec(tuple(shape), _dtype(path, code))
    if len(buffer) - offset != spec.nbytes:
        raise BadFile(
            path,
            f"is truncated or its header lies: {spec.dtype.name} of shape {shape} takes {spec.nbytes} bytes, "
            f"and {len(buffer) - offset} are there; dump it again",
        )
    return spec, offset


def _dtype(path: Path, code: int) -> DType:
    if code in _PACKED:
        raise BadFile(
            path, f"holds {_PACKED[code]}, whose packing in .max files is not known; dump it in another dtype"
        )
    if code not in _CODES:
        raise BadFile(path, f"holds dtype code {code}, which is not known; dump it in another dtype")
    return _CODES[code]
