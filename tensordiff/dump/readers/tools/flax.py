"""flax's msgpack: nested maps whose leaves are arrays, as ``flax.serialization`` writes parameters and intermediates.

An array is extension type 1: msgpack of shape, dtype and bytes. What ``sow`` kept of a module lies under ``__call__``
in a tuple, which becomes a map with the keys ``0``, ``1``: these are calls. Large arrays are cut into chunks. Nobody
sorts the maps, but nothing says that their order is that of execution.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from tensordiff.dump.dtypes import DTYPES, Array
from tensordiff.dump.files import Bytes, is_possible, map_file, refuse_beyond_memory
from tensordiff.dump.folders import DumpPath, FilePart, join_parts, open_parts
from tensordiff.dump.model import Dump, Entry, Problem, Spec
from tensordiff.dump.names import parse_name
from tensordiff.dump.readers import Format
from tensordiff.errors import BadFile

FORMAT = "flax"
FORMATS = (
    Format(
        FORMAT,
        "flax's parameters or intermediates, one file or a folder",
        "`.msgpack`",
        "none",
    ),
)

SUFFIX = ".msgpack"
_ARRAY, _SCALAR = 1, 3
_CHUNKED = "__msgpack_chunked_array__"
_MOST_DEPTH = 100
_NUMBERED = re.compile(r"^([A-Za-z]\w*?)_(\d{1,6})$")
_COLLECTIONS = frozenset(("intermediates", "params", "batch_stats"))
CALL = "__call__"


@dataclass(frozen=True)
class PackedArray:
    """An array whose bytes lie within a msgpack file."""

    path: Path
    spec: Spec
    parts: tuple[memoryview, ...]

    def read(self) -> Array:
        """The values, mapped unless they are cut into chunks."""
        if len(self.parts) == 1:
            return np.frombuffer(self.parts[0], self.spec.dtype).reshape(self.spec.shape)
        refuse_beyond_memory(self.path, "an array in chunks takes", self.spec.nbytes, "save it in another format")
        whole = np.frombuffer(b"".join(self.parts), self.spec.dtype).reshape(self.spec.shape)
        whole.flags.writeable = False
        return whole


def try_open(at: DumpPath) -> Dump | None:
    """Open a ``.msgpack`` file or a folder that holds some."""
    if not at.is_folder:
        is_ours = at.path.name.lower().endswith(SUFFIX)
        return join_parts(at, FORMAT, [open_file(at.path)], []) if is_ours else None
    names = at.with_suffix(SUFFIX)
    # Beside a checkpoint in another format, it is a copy of the same weights.
    is_copy = any(name.startswith("flax_model") for name in names) and "config.json" in at.files
    others = is_copy and (at.with_suffix(".safetensors") or at.with_suffix(".bin"))
    return open_parts(at, FORMAT, names, open_file) if names and not others and not at.has_steps else None


def open_file(path: Path) -> FilePart:
    """The arrays of one file."""
    buffer = map_file(path)
    try:
        content = msgspec.msgpack.decode(memoryview(buffer), ext_hook=lambda code, data: _Extension(code, data))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise BadFile(path, f"is no msgpack, or is truncated ({error!s:.120}); save it again") from error
    made = list(_leaves(path, buffer, content, [], 0))
    entries = [item for item in made if isinstance(item, Entry)]
    if not entries:
        raise BadFile(path, "holds no array as flax writes it")
    return FilePart(path.name, entries, False, [item for item in made if isinstance(item, Problem)], {})


@dataclass(frozen=True)
class _Extension:
    code: int
    data: memoryview


def _leaves(path: Path, buffer: Bytes, value: object, keys: list[str], depth: int) -> Iterator[Entry | Problem]:
    name = ".".join(keys) or path.stem
    if why := _why_unread(value, depth):
        yield Problem(path.name, f"its array {name!r:.120} {why}; it is left out", is_unread=True)
        return
    try:
        if isinstance(value, _Extension):
            yield _entry(name, keys, _array(path, [value]))
        elif isinstance(value, dict) and _CHUNKED in value:
            yield _entry(name, keys, _chunked(path, value))
        elif isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, below in items:
                yield from _leaves(path, buffer, below, [*keys, str(key)], depth + 1)
    except ValueError as error:
        yield Problem(path.name, f"its array {name!r:.120} {error}; it is left out", is_unread=True)


def _why_unread(value: object, depth: int) -> str | None:
    if isinstance(value, _Extension) and value.code not in (_ARRAY, _SCALAR):
        return f"is an extension of kind {value.code}, which is not read"
    if isinstance(value, dict | list) and depth >= _MOST_DEPTH:
        return f"lies deeper than {_MOST_DEPTH} levels"
    return None


def _entry(name: str, keys: list[str], stored: PackedArray) -> Entry:
    layer, port, call = place_of(keys)
    return Entry(name, layer, port, call, 0, stored)


def place_of(keys: list[str]) -> tuple[str, str, int]:
    """Layer, port and call from the keys that lead to an array."""
    keys, call = keys[keys[0] in _COLLECTIONS if len(keys) > 1 else 0 :], 1
    if CALL in keys[:-1] and keys[-1].isdecimal():
        keys, call = keys[:-1], int(keys[-1]) + 1
    keys = [key for key in keys if key != CALL]
    split = [part for key in keys for part in _parts(key)]
    layer, port, named = parse_name(".".join(split) or "model")
    return layer, port, call if call > 1 else named


def _parts(key: str) -> tuple[str, ...]:
    """Split a key like ``layers_1``, the second of the layers."""
    match = _NUMBERED.match(key)
    return (match[1], match[2]) if match else (key,)


def _array(path: Path, extensions: list[_Extension]) -> PackedArray:
    parts, spec = [], None
    for extension in extensions:
        try:
            shape, name, data = msgspec.msgpack.decode(extension.data, type=tuple[list[int], str, memoryview])
        except (msgspec.MsgspecError, ValueError) as error:
            raise ValueError(f"is not written as flax does ({error!s:.80})") from error
        dtype = DTYPES.get(name)
        if dtype is None:
            raise ValueError(f"has dtype {name[:40]!r}, which is not one we read")
        spec = Spec(tuple(shape), dtype)
        if not is_possible(spec) or spec.nbytes != data.nbytes:
            raise ValueError("has another number of bytes than its shape takes")
        parts.append(data)
    if spec is None:
        raise ValueError("has no bytes")
    return PackedArray(path, spec, tuple(parts))


def _chunked(path: Path, value: dict[object, object]) -> PackedArray:
    shape, chunks = value.get("shape"), value.get("chunks")
    sizes = list(shape.values()) if isinstance(shape, dict) else shape
    pieces = list(chunks.values()) if isinstance(chunks, dict) else chunks
    if not isinstance(sizes, list) or not isinstance(pieces, list) or not all(type(n) is int for n in sizes):
        raise ValueError("is cut into chunks in a way we do not know")
    arrays = [_array(path, [piece]) for piece in pieces if isinstance(piece, _Extension)]
    if len(arrays) != len(pieces) or not arrays or math.prod(sizes) != sum(a.spec.size for a in arrays):
        raise ValueError("is cut into chunks that are not the whole")
    spec = Spec(tuple(sizes), arrays[0].spec.dtype)
    if not is_possible(spec) or any(array.spec.dtype != spec.dtype for array in arrays):
        raise ValueError("is cut into chunks that do not fit together")
    return PackedArray(path, spec, tuple(part for array in arrays for part in array.parts))
