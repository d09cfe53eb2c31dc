"""Reading ``.npy`` and ``.npz``: a file, or a folder of them.

A ``.npy`` holds one array, named by its file; its header is read when its entry is first asked. An
``.npz`` is a zip of such arrays. Those stored as they are, as ``numpy.savez`` leaves them, are seen
in place; those compressed are unpacked when read, and what one unpacks to is bounded by what both
the zip and the array's header claim before a byte is allocated for it.

Neither kind is ``ordered``. An ``.npz`` keeps the order of the arguments that ``savez`` was given,
which is execution order only if the caller kept it, and nothing in the file says so. Its entries
stand in that order all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tensordiff.dump.detect import Found
from tensordiff.dump.dtypes import DTYPES, Array
from tensordiff.dump.files import Buffer, map_file, view_buffer
from tensordiff.dump.inflate import Deflated
from tensordiff.dump.model import Dump, Problem, Spec, entry
from tensordiff.dump.npy_header import MAGIC, MAX_FRONT_BYTES, NpyHeader, parse_front
from tensordiff.dump.parts import Part, join, open_parts
from tensordiff.dump.zip_map import Member, ZipMap, map_zip
from tensordiff.errors import BadFile


@dataclass(frozen=True)
class NpyFile:
    """The array of one ``.npy`` file."""

    path: Path

    @cached_property
    def spec(self) -> Spec:
        """Shape and dtype, from the header."""
        return self._header(map_file(self.path)).spec

    def read(self) -> Array:
        """Map the values. The mapping lives as long as the array: a dump of thousands holds no file open."""
        buffer = map_file(self.path)
        header = self._header(buffer)
        return _view(buffer, self.path, 0, header)

    def _header(self, buffer: Buffer) -> NpyHeader:
        header = parse_front(buffer[:MAX_FRONT_BYTES], self.path, "it")
        _check_length(header, len(buffer), self.path, "it")
        return header


@dataclass(frozen=True)
class NpzMember:
    """One array of an ``.npz`` file."""

    zipped: ZipMap
    name: bytes

    @cached_property
    def spec(self) -> Spec:
        """Shape and dtype, from the header; of a compressed array no more than that is unpacked."""
        return self._header.spec

    def read(self) -> Array:
        """The values: in place, or unpacked into a copy."""
        header = self._header
        if self._member.as_is:
            return _view(self.zipped.buffer, self._path, self.zipped.span(self.name).start, header)
        return header.shape_values(self._deflated.read()[header.data_start :])

    @cached_property
    def _header(self) -> NpyHeader:
        if self._member.as_is:
            start, size = self.zipped.span(self.name)
            front = self.zipped.buffer[start : start + min(size, MAX_FRONT_BYTES)]
        else:
            front = self._deflated.front(MAX_FRONT_BYTES)
        header = parse_front(front, self._path, self._whose)
        _check_length(header, self._member.size, self._path, self._whose)
        return header

    @property
    def _deflated(self) -> Deflated:
        zipped, member = self.zipped, self._member
        if not member.deflated:
            raise BadFile(self._path, f"{self._whose} is encrypted or packed in a way we do not read; save it again")
        span = zipped.packed_span(self.name)
        return Deflated(self._path, self._whose, zipped.buffer, span, member.size, member.crc)

    @property
    def _member(self) -> Member:
        return self.zipped.member(self.name)

    @property
    def _path(self) -> Path:
        return Path(self.zipped.path)

    @property
    def _whose(self) -> str:
        return f"its member {_text(self.name)!r:.120}"


def look(found: Found) -> Dump | None:
    """Open a ``.npy`` or ``.npz`` file, or a folder that holds some."""
    if found.is_folder:
        if names := found.named(".npy"):
            return _dump_npy(found, names)
        names = found.named(".npz")
        return open_parts(found, "npz", names, _open_npz) if names else None
    if found.path.name.lower().endswith(".npz"):
        return join(found, "npz", [_open_npz(found.path)], [])
    return _dump_npy(found, [found.path.name]) if _is_npy(found) else None


def _is_npy(found: Found) -> bool:
    if found.path.name.lower().endswith(".npy") and not found.head.startswith(MAGIC):
        raise BadFile(found.path, "does not begin as a .npy file does; was it written by something else?")
    return found.head.startswith(MAGIC)


def _dump_npy(found: Found, names: list[str]) -> Dump:
    folder = found.path if found.is_folder else found.path.parent
    entries = tuple(entry(_stem(name), NpyFile(folder / name)) for name in names)
    return Dump(found.path, "numpy", entries, ordered=False, problems=found.problems)


def _open_npz(path: Path) -> Part:
    zipped = map_zip(map_file(path), path)
    arrays = [name for name in zipped.rows if name.endswith(b".npy")]
    others = [Problem(_text(name), "is not a .npy array") for name in zipped.rows if not name.endswith(b".npy")]
    entries = [entry(_stem(_text(name)), NpzMember(zipped, name)) for name in arrays]
    return Part(path.name, entries, False, others, {})


def _stem(name: str) -> str:
    return name[:-4] if name.lower().endswith(".npy") else name


def _text(name: bytes) -> str:
    return name.decode(errors="backslashreplace")


def _check_length(header: NpyHeader, length: int, path: Path, whose: str) -> None:
    if header.total_bytes != length:
        raise BadFile(
            path,
            f"{whose} is truncated or its header lies: {header.spec.dtype.name} of shape "
            f"{list(header.spec.shape)!s:.120} makes {header.total_bytes} bytes and {length} are there; "
            "dump it again, one array a file",
        )


def _view(buffer: Buffer, path: Path, start: int, header: NpyHeader) -> Array:
    raw = Spec((header.spec.nbytes,), DTYPES["uint8"])
    return header.shape_values(view_buffer(buffer, path, start + header.data_start, raw))
