"""Zip files as ``torch.save`` and ``numpy.savez`` write them.

Their members are usually stored uncompressed, so a member is a range of the file and can be mapped. ``zipfile`` would
build an object per member and copy what it reads; here the table of contents is read once, and a member costs one look
at its header.

A compressed member is unpacked into memory that is allocated once, for the size it claims, after checking that so few
bytes can unpack to so many. If it unpacks to more, fewer or other bytes, it is damaged.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import numpy as np

from tensordiff.dump.dtypes import Array
from tensordiff.dump.files import Buffer, refuse_beyond_memory
from tensordiff.errors import BadFile
from tensordiff.util.mappings import raise_if_lost

MEMBER_MAGIC = b"PK\x03\x04"
_END_MAGIC = b"PK\x05\x06"

_END = Struct("<4s6xHIIH")
_END64_LOCATOR = Struct("<4s4xQ4x")
_END64 = Struct("<4s28xQQQ")
_CENTRAL = Struct("<8xHH4xIIIHHH8xI")
_CENTRAL_SIZES = Struct("<4s24xHHH12x")
_LOCAL = Struct("<4s22xHH")
_FIELD = Struct("<HH")
_WIDE = Struct("<Q")

_STORED, _DEFLATED, _ENCRYPTED = 0, 8, 1
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF  # "look in the 64-bit record"
_LONGEST_COMMENT = 0xFFFF
_MAX_MEMBERS = 1 << 20
_MAX_TABLE_BYTES = 1 << 28
_DAMAGED = "it is truncated or damaged; dump it again"


class Span(NamedTuple):
    """A range of bytes of a file."""

    start: int
    size: int


class Place(NamedTuple):
    """Where a member's own header begins, and where its bytes lie."""

    header: int
    span: Span

    @property
    def name(self) -> int:
        """Where its name begins in its own header."""
        return self.header + _LOCAL.size

    @property
    def end(self) -> int:
        """Where its bytes end."""
        return self.span.start + self.span.size


class Member(NamedTuple):
    """What a zip's table of contents says about one member."""

    header: int
    size: int
    as_is: bool
    deflated: bool
    packed: int
    crc: int


class ZipMap(NamedTuple):
    """A zip's table of contents, and where in it each member's row starts. Rows are parsed on demand."""

    path: str | os.PathLike[str]
    buffer: Buffer
    table: bytes
    rows: dict[bytes, int]

    def member(self, name: bytes) -> Member:
        """What the table says about a member."""
        row = self.rows.get(name)
        if row is None:
            raise BadFile(self.path, f"has no member {_show(name)}; {_DAMAGED}")
        try:
            return _read_row(self.table, row)
        except _BadZip as error:
            raise BadFile(self.path, f"its member {_show(name)} cannot be found ({error}); {_DAMAGED}") from error

    def span(self, name: bytes) -> Span:
        """Where a member's bytes lie, checked to be inside the file."""
        if (row := self.rows.get(name)) is not None:  # the common case first, since there may be thousands of files
            flags, method, _, packed, size, _, _, _, header = _CENTRAL.unpack_from(self.table, row)
            if not flags & _ENCRYPTED and method == _STORED and packed == size < _FULL32 > header:
                return self._locate(name, header, size)
        member = self.member(name)
        if not member.as_is:
            raise BadFile(
                self.path,
                f"its member {_show(name)} is compressed or encrypted; write it with torch.save as it is",
            )
        return self._locate(name, member.header, member.size)

    def place(self, name: bytes) -> Place:
        """Where all lies that tells of a member, and its bytes."""
        return Place(self.member(name).header, self.span(name))

    def packed_span(self, name: bytes) -> Span:
        """Where a compressed member's bytes lie, checked to be inside the file."""
        member = self.member(name)
        return self._locate(name, member.header, member.packed)

    def _locate(self, name: bytes, header: int, size: int) -> Span:
        """The bytes after a member's own header, which must name the same member."""
        raise_if_lost(self.buffer)
        named, end = header + _LOCAL.size, len(self.buffer)
        if named <= end:
            magic, name_size, extra_size = _LOCAL.unpack(self.buffer[header:named])
            start = named + name_size + extra_size
            if magic == MEMBER_MAGIC and start + size <= end and self.buffer[named : named + name_size] == name:
                return Span(start, size)
        raise BadFile(self.path, f"its member {_show(name)} is not where the zip's table says; {_DAMAGED}")


def map_zip(buffer: Buffer, path: str | os.PathLike[str]) -> ZipMap:
    """Read a zip's table of contents."""
    try:
        start, size, count = _find_table(buffer)
        table = buffer[start : start + size]
        return ZipMap(path, buffer, table, _find_rows(table, count))
    except (struct.error, _BadZip) as error:
        raise BadFile(path, f"cannot be read as a zip file ({error}); {_DAMAGED}") from error


def plain_table(buffer: Buffer) -> Span | None:
    """Where the table of contents of a small zip lies that ends with its end record; None for all others."""
    at = len(buffer) - _END.size
    magic, count, size, start, comment_size = _END.unpack(buffer[at:]) if at >= 0 else (b"", 0, 0, 0, 0)
    is_plain = magic == _END_MAGIC and not comment_size and count < _FULL16 and max(size, start) < _FULL32
    return Span(start, size) if is_plain and start + size <= at else None


def name_in_row(row: int) -> int:
    """Where a member's name begins in its row."""
    return row + _CENTRAL.size


def checksum_in_row(row: int) -> Span:
    """Where a member's checksum lies in its row."""
    return Span(row + 16, 4)


class _BadZip(Exception):
    """A zip's table of contents is damaged or contradicts itself."""


def _find_table(buffer: Buffer) -> tuple[int, int, int]:
    """Start, size and number of members of the table of contents."""
    at = _find_end(buffer)
    _, count, size, start, _ = _END.unpack(buffer[at : at + _END.size])
    if (count == _FULL16 or size == _FULL32 or start == _FULL32) and at >= _END64_LOCATOR.size:
        magic, at64 = _END64_LOCATOR.unpack(buffer[at - _END64_LOCATOR.size : at])
        if magic == b"PK\x06\x07":
            return _find_table64(buffer, at64)
    return _check_table(buffer, start, size, count)


def _check_table(buffer: Buffer, start: int, size: int, count: int) -> tuple[int, int, int]:
    if count > _MAX_MEMBERS or size > _MAX_TABLE_BYTES or start + size > len(buffer):
        raise _BadZip(f"claims a table of {count} members at byte {start}")
    return start, size, count


def _find_end(buffer: Buffer) -> int:
    """The position of the end record. A comment follows it, whose length it gives; usually there is none."""
    last = len(buffer) - _END.size
    first, at = max(last - _LONGEST_COMMENT, 0), last
    while at >= 0:
        if buffer[at : at + 4] == _END_MAGIC and _END.unpack(buffer[at : at + _END.size])[4] == last - at:
            return at
        at = buffer.rfind(_END_MAGIC, first, at + 3)
    raise _BadZip("no table of contents at its end")


def _find_table64(buffer: Buffer, at: int) -> tuple[int, int, int]:
    if at + _END64.size > len(buffer):
        raise _BadZip("its 64-bit end record lies outside")
    magic, count, size, start = _END64.unpack(buffer[at : at + _END64.size])
    if magic != b"PK\x06\x06":
        raise _BadZip("its 64-bit end record is missing")
    return _check_table(buffer, start, size, count)


def _find_rows(table: bytes, count: int) -> dict[bytes, int]:
    rows: dict[bytes, int] = {}
    at, fixed, read_sizes = 0, _CENTRAL.size, _CENTRAL_SIZES.unpack_from
    for _ in range(count):
        magic, name_size, extra_size, comment_size = read_sizes(table, at)
        if magic != b"PK\x01\x02":
            raise _BadZip("its table of contents is garbled")
        name_end = at + fixed + name_size
        rows[table[at + fixed : name_end]] = at
        at = name_end + extra_size + comment_size
    if at > len(table) or len(rows) != count:
        raise _BadZip("its table of contents is cut, or names a member twice")
    return rows


def _read_row(table: bytes, at: int) -> Member:
    flags, method, crc, packed, size, name_size, extra_size, _, header = _CENTRAL.unpack_from(table, at)
    if size == _FULL32 or packed == _FULL32 or header == _FULL32:
        extra = at + _CENTRAL.size + name_size
        size, packed, header = _widen(table[extra : extra + extra_size], size, packed, header)
    plain = not flags & _ENCRYPTED
    as_is, deflated = plain and method == _STORED and packed == size, plain and method == _DEFLATED
    return Member(header, size, as_is, deflated, packed, crc)


def _widen(extra: bytes, *values: int) -> list[int]:
    """Replace the values that did not fit in 32 bits by the 64-bit ones, which come in the same order."""
    wide = [value for (value,) in _WIDE.iter_unpack(_wide_field(extra))]
    if len(wide) < values.count(_FULL32):
        raise _BadZip("a 64-bit size is missing")
    supply = iter(wide)
    return [next(supply) if value == _FULL32 else value for value in values]


def _wide_field(extra: bytes) -> bytes:
    """The 64-bit values among a member's extra fields."""
    at = 0
    while at + _FIELD.size <= len(extra):
        kind, size = _FIELD.unpack_from(extra, at)
        at += _FIELD.size
        if kind == 1:
            size = min(size, len(extra) - at)
            return extra[at : at + size - size % _WIDE.size]
        at += size
    return b""


def _show(name: bytes) -> str:
    text = name.decode("utf-8", "backslashreplace")
    return repr(text if len(text) <= 100 else text[:100] + "…")


_CHUNK = 1 << 14
_MAX_RATIO = 1032  # deflate unpacks one byte to at most this many


class DeflatedMember(NamedTuple):
    """A compressed member. ``subject`` begins an error sentence: ``its member x``."""

    path: Path
    subject: str
    buffer: Buffer
    span: Span
    size: int
    crc: int

    def first_bytes(self, at_most: int) -> bytes:
        """The first bytes, at most as many as one chunk unpacks to."""
        return next(self._pieces(at_most), b"")

    def read(self) -> Array:
        """All bytes."""
        out, done, crc = self._allocate(), 0, 0
        for piece in self._pieces(self.size + 1):
            if done + len(piece) > self.size:
                raise self._damaged(f"it unpacks to more than the {self.size} bytes it claims")
            out[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
            done, crc = done + len(piece), zlib.crc32(piece, crc)
        if (done, crc) != (self.size, self.crc):
            raise self._damaged("what it unpacks to is not what was packed")
        return out

    def _allocate(self) -> Array:
        if self.size > self.span.size * _MAX_RATIO:
            raise self._damaged(f"{self.span.size} bytes cannot unpack to the {self.size} it claims")
        instead = "save it uncompressed, as numpy.savez does, and it is read in place"
        refuse_beyond_memory(self.path, f"{self.subject} unpacks to", self.size, instead)
        try:
            return np.empty(self.size, np.uint8)
        except MemoryError as error:
            raise BadFile(
                self.path, f"{self.subject} unpacks to {self.size} bytes, more than there is memory"
            ) from error

    def _pieces(self, at_most: int) -> Iterator[bytes]:
        """What each chunk unpacks to, cut to ``at_most`` bytes."""
        engine = zlib.decompressobj(-zlib.MAX_WBITS)
        start, size = self.span
        for at in range(start, start + size, _CHUNK):
            try:
                yield engine.decompress(self.buffer[at : min(at + _CHUNK, start + size)], at_most)
            except zlib.error as error:
                raise self._damaged(str(error)) from error

    def _damaged(self, why: str) -> BadFile:
        return BadFile(self.path, f"{self.subject} is damaged ({why}); dump it again")
