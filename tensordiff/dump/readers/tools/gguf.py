"""GGUF files: llama.cpp's weights, and whatever else its library was asked to write.

A header of keys and values, a row for each tensor (name, dimensions with the fastest first, type, offset), then the
data. Quantized tensors are dequantized to float32 when read (``ggml_blocks``). Versions 2 and 3 are read. There is no
execution order.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

from tensordiff.dump.dtypes import DTYPES, Array
from tensordiff.dump.files import (
    MAX_RANK,
    Buffer,
    MappedFile,
    is_possible,
    open_buffer,
    refuse_beyond_memory,
    version_of,
    view_buffer,
)
from tensordiff.dump.folders import DumpPath, FilePart, join_parts, open_parts
from tensordiff.dump.model import Dump, Entry, Problem, Spec, entry
from tensordiff.dump.readers import Format
from tensordiff.dump.readers.tools.ggml_blocks import BLOCKS, PLAIN, UNREAD, dequantize
from tensordiff.errors import BadFile

FORMAT = "gguf"
FORMATS = (
    Format(
        FORMAT,
        "a GGUF file, or a folder of them; quantized tensors are dequantized",
        "`.gguf`; a file also by its first 4 bytes",
        "none",
    ),
)

SUFFIX, MAGIC = ".gguf", b"GGUF"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LONGEST = 1 << 24
_MOST = 1 << 22
_ALIGNMENT = "general.alignment"


@dataclass(frozen=True)
class QuantizedTensor:
    """A tensor of blocks, each with scales of its own."""

    file: MappedFile
    offset: int
    shape: tuple[int, ...]
    code: int
    name: str

    @property
    def spec(self) -> Spec:
        """The spec as it is read: float32."""
        return Spec(self.shape, DTYPES["float32"])

    def read(self) -> Array:
        """The values, dequantized."""
        elements, nbytes, _ = BLOCKS[self.code]
        blocks = math.prod(self.shape) // elements
        path = self.file.path
        refuse_beyond_memory(path, f"tensor {self.name!r:.120} dequantizes to", 3 * self.spec.nbytes, "split it")
        raw = view_buffer(self.file.buffer, path, self.offset, Spec((blocks, nbytes), DTYPES["uint8"]))
        values = dequantize(raw, self.code).reshape(self.shape)
        values.flags.writeable = False
        return values

    def read_rows(self, start: int, stop: int) -> Array:
        """Some of the values along the first axis; no more than these are dequantized."""
        elements, nbytes, _ = BLOCKS[self.code]
        blocks = math.prod(self.shape[1:]) // elements if len(self.shape) > 1 else 0
        if not blocks:
            return self.read()[start:stop]
        spec = Spec(((stop - start) * blocks, nbytes), DTYPES["uint8"])
        raw = view_buffer(self.file.buffer, self.file.path, self.offset + start * blocks * nbytes, spec)
        return dequantize(raw, self.code).reshape(stop - start, *self.shape[1:])


@dataclass(frozen=True)
class PlainTensor:
    """A tensor of numbers."""

    file: MappedFile
    offset: int
    spec: Spec

    def read(self) -> Array:
        """Map the values."""
        return view_buffer(self.file.buffer, self.file.path, self.offset, self.spec)


class _Cursor:
    """Reads a header from its start, never past its end."""

    def __init__(self, buffer: Buffer, path: Path) -> None:
        self.buffer, self.path, self.at = buffer, path, 4

    def take(self, code: str) -> int:
        size = struct.calcsize(f"<{code}")
        if self.at + size > len(self.buffer):
            raise BadFile(self.path, "is truncated: its header does not fit in the file; copy it again")
        (value,) = struct.unpack(f"<{code}", self.buffer[self.at : self.at + size])
        self.at += size
        return int(value) if code not in "fd" else 0

    def skip(self, size: int) -> None:
        if size > len(self.buffer) - self.at:
            raise BadFile(self.path, "is truncated: its header does not fit in the file; copy it again")
        self.at += size

    def text(self) -> str:
        size = self.take("Q")
        start = self.at
        self.skip(size)
        if size > _LONGEST:
            raise BadFile(self.path, f"names something with {size} characters; its header is damaged")
        return self.buffer[start : self.at].decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> int | None:
        """A value if it is a number; None for text and lists, which are skipped."""
        if kind in _SCALARS:
            return self.take(_SCALARS[kind])
        if kind == _STRING:
            self.skip(self.take("Q"))
        elif kind == _ARRAY and depth < 4:
            inner, count = self.take("I"), self.take("Q")
            if inner in _SCALARS:
                self.skip(count * struct.calcsize(f"<{_SCALARS[inner]}"))
                return None
            if count > _MOST * 16:
                raise BadFile(self.path, f"has a list of {count} items in its header; it is damaged")
            for _ in range(count):
                self.value(inner, depth + 1)
        else:
            raise BadFile(self.path, f"has a value of kind {kind} in its header, which is not known; is it damaged?")
        return None


def try_open(at: DumpPath) -> Dump | None:
    """Open a ``.gguf`` file, or a folder that holds some."""
    if not at.is_folder:
        is_ours = at.path.name.lower().endswith(SUFFIX) or at.head.startswith(MAGIC)
        return join_parts(at, FORMAT, [open_file(at.path)], []) if is_ours else None
    if not (names := at.with_suffix(SUFFIX)):
        return None
    others = at.with_suffix(".safetensors", ".pt", ".pth", ".bin", ".npy", ".npz", ".max") or at.has_steps
    return open_parts(at, FORMAT, names, open_file) if not others else None


def open_file(path: Path) -> FilePart:
    """The tensors of one file."""
    buffer = open_buffer(path)
    if buffer[:4] != MAGIC:
        raise BadFile(path, "does not begin as a GGUF file does; was it written by something else?")
    cursor = _Cursor(buffer, path)
    version, count, pairs = cursor.take("I"), cursor.take("Q"), cursor.take("Q")
    if version not in (2, 3):
        raise BadFile(path, f"is GGUF of version {version}; 2 and 3 are known (big-endian files are not)")
    if count > _MOST or pairs > _MOST:
        raise BadFile(path, f"claims {count} tensors and {pairs} keys; its header is damaged")
    alignment = 32
    for _ in range(pairs):
        key = cursor.text()
        value = cursor.value(cursor.take("I"))
        alignment = value if key == _ALIGNMENT and value else alignment
    if not 0 < alignment <= _LONGEST:
        raise BadFile(path, f"claims that its tensors are aligned to {alignment} bytes; its header is damaged")
    rows = [_row(cursor) for _ in range(count)]
    start = -(-cursor.at // alignment) * alignment
    file = MappedFile(path, version_of(path))
    made = [_entry(file, len(buffer), start, *row) for row in rows]
    entries = [item for item in made if isinstance(item, Entry)]
    if not entries:
        raise BadFile(path, "holds no tensor; is it a vocabulary alone?")
    return FilePart(path.name, entries, False, [item for item in made if isinstance(item, Problem)], {})


def _row(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name, rank = cursor.text(), cursor.take("I")
    if rank > MAX_RANK:
        raise BadFile(cursor.path, f"gives tensor {name!r:.120} {rank} dimensions; its header is damaged")
    shape = tuple(cursor.take("Q") for _ in range(rank))
    return name, shape[::-1], cursor.take("I"), cursor.take("Q")


def _entry(
    file: MappedFile, size: int, start: int, name: str, shape: tuple[int, ...], code: int, offset: int
) -> Entry | Problem:
    at = start + offset
    if not is_possible(Spec(shape, DTYPES["float64"])):
        return Problem(file.path.name, f"tensor {name!r:.120} claims an impossible shape; it is left out", True)
    if code in PLAIN:
        spec = Spec(shape, DTYPES[PLAIN[code]])
        end, stored = at + spec.nbytes, PlainTensor(file, at, spec)
    elif code in BLOCKS:
        elements, nbytes, _ = BLOCKS[code]
        if not shape or shape[-1] % elements:
            return Problem(file.path.name, f"tensor {name!r:.120} is not made of whole blocks; it is left out", True)
        end = at + math.prod(shape) // elements * nbytes
        stored = QuantizedTensor(file, at, shape, code, name)  # type: ignore[assignment]
    else:
        kind = UNREAD.get(code, f"number {code}")
        why = f"tensor {name!r:.120} is of type {kind}, which is not read; convert the file to F16 or Q8_0"
        return Problem(file.path.name, f"{why}; it is left out", is_unread=True)
    if end > size:
        why = f"is truncated: tensor {name!r:.120} ends at byte {end} of {size}; copy it again"
        return Problem(file.path.name, why, is_unread=True)
    return entry(name, stored)
