"""Unpacking what a zip holds compressed, within a bound that is known and believed beforehand.

What unpacks to more or less than it claims, or to other bytes than were packed, is damaged. Memory
is taken once, for what is claimed, after checking that so few bytes can make so many.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tensordiff.dump.dtypes import Array
from tensordiff.dump.files import Buffer
from tensordiff.dump.zip_map import Span
from tensordiff.errors import BadFile

_CHUNK = 1 << 14
_MOST_FROM_ONE = 1032  # deflate makes no more than this many bytes of one


class Deflated(NamedTuple):
    """A compressed span of a file. ``whose`` begins a sentence about it: ``its member x``."""

    path: Path
    whose: str
    buffer: Buffer
    span: Span
    size: int
    crc: int

    def front(self, at_most: int) -> bytes:
        """The first bytes, as many as are wanted and one chunk yields."""
        return next(self._pieces(at_most), b"")

    def read(self) -> Array:
        """All bytes."""
        room, done, crc = self._room(), 0, 0
        for piece in self._pieces(self.size + 1):
            if done + len(piece) > self.size:
                raise self._damaged(f"it unpacks to more than the {self.size} bytes it claims")
            room[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
            done, crc = done + len(piece), zlib.crc32(piece, crc)
        if (done, crc) != (self.size, self.crc):
            raise self._damaged("what it unpacks to is not what was packed")
        return room

    def _room(self) -> Array:
        if self.size > self.span.size * _MOST_FROM_ONE:
            raise self._damaged(f"{self.span.size} bytes cannot unpack to the {self.size} it claims")
        try:
            return np.empty(self.size, np.uint8)
        except MemoryError as error:
            raise BadFile(self.path, f"{self.whose} unpacks to {self.size} bytes, more than there is memory") from error

    def _pieces(self, at_most: int) -> Iterator[bytes]:
        """What each chunk unpacks to; no piece is longer than asked."""
        engine = zlib.decompressobj(-zlib.MAX_WBITS)
        start, size = self.span
        for at in range(start, start + size, _CHUNK):
            try:
                yield engine.decompress(self.buffer[at : min(at + _CHUNK, start + size)], at_most)
            except zlib.error as error:
                raise self._damaged(str(error)) from error

    def _damaged(self, why: str) -> BadFile:
        return BadFile(self.path, f"{self.whose} is damaged ({why}); dump it again")
