"""torch.distributed.checkpoint: ``.metadata`` and ``__<rank>_<n>.distcp``, as FSDP and torchtitan save them.

``.metadata`` is a pickle with the size of each tensor, its pieces, and the bytes of each piece in which file; every
piece is a complete torch file of its own. A tensor is assembled from its pieces. There is no execution order: these are
parameters.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tensordiff.dump.dtypes import DTYPES, Array, DType
from tensordiff.dump.files import MAX_RANK, map_file, open_buffer, refuse_beyond_memory
from tensordiff.dump.folders import DumpPath, member_path
from tensordiff.dump.model import Dump, Entry, Problem, Spec, entry
from tensordiff.dump.names import shared_wrapper
from tensordiff.dump.readers import SUFFIXES, Format
from tensordiff.dump.readers.torch.archive import open_archive_bytes
from tensordiff.dump.readers.torch.pickle import unpickle
from tensordiff.dump.readers.torch.reader import tensor_of
from tensordiff.dump.readers.torch.records import Record
from tensordiff.dump.readers.torch.tensors import BadPickle, TorchDType
from tensordiff.errors import BadFile

FORMAT = "torch-dcp"
FORMATS = (
    Format(
        FORMAT,
        "a checkpoint of `torch.distributed.checkpoint`",
        "`.metadata` beside `.distcp` files",
        "none",
    ),
)

METADATA, SUFFIX = ".metadata", ".distcp"
_BIG = 1 << 62


class Piece(NamedTuple):
    """Part of a tensor: its position and size in the tensor, and its bytes in a file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: Path
    at: int
    length: int


class PiecedTensor(NamedTuple):
    """A tensor that is stored in pieces."""

    name: str
    spec: Spec
    pieces: tuple[Piece, ...]

    def read(self) -> Array:
        """Assemble the pieces."""
        if len(self.pieces) == 1 and self.pieces[0].sizes == self.spec.shape:
            return self._piece(self.pieces[0])
        file = self.pieces[0].file
        needed = self.spec.nbytes + self.spec.size
        refuse_beyond_memory(file, f"its tensor {self.name!r:.120} takes", needed, "save it in one piece")
        whole, is_filled = np.empty(self.spec.shape, self.spec.dtype), np.zeros(self.spec.shape, bool)
        for piece in self.pieces:
            where = tuple(slice(o, o + n) for o, n in zip(piece.offsets, piece.sizes, strict=True))
            whole[where], is_filled[where] = self._piece(piece), True
        if not is_filled.all():
            raise BadFile(file, f"its pieces of {self.name!r:.120} lie over one another and leave gaps; save it again")
        whole.flags.writeable = False
        return whole

    def _piece(self, piece: Piece) -> Array:
        buffer = open_buffer(piece.file)
        if piece.at + piece.length > len(buffer):
            end = piece.at + piece.length
            raise BadFile(piece.file, f"is truncated: it should hold bytes up to {end}; copy it again")
        values = tensor_of(open_archive_bytes(piece.file, buffer[piece.at : piece.at + piece.length]), self.name)
        if values.shape != piece.sizes or values.dtype != self.spec.dtype:
            raise BadFile(piece.file, f"holds other than {METADATA} says of {self.name!r:.120}; save it again")
        return values


def try_open(at: DumpPath) -> Dump | None:
    """Open a checkpoint folder."""
    if not at.is_folder:
        if at.path.name.endswith(SUFFIX):
            raise BadFile(at.path, f"is one of the files of a distributed checkpoint; open its folder, {at.folder}")
        return None
    files = at.with_suffix(SUFFIX)
    if not files:
        return None
    if METADATA not in at.files and (at.has_steps or set(at.with_suffix(*SUFFIXES)) - set(files)):
        return None  # they lie beside other tensors, and are reported as leftovers
    if METADATA not in at.files:
        raise BadFile(at.path, f"holds {SUFFIX} files and no {METADATA}, which says what is in them; copy that too")
    path = at.path / METADATA
    try:
        content = unpickle(map_file(path)).value
    except BadPickle as error:
        raise BadFile(path, str(error)) from error
    made = list(_tensors(at, path, content))
    entries = tuple(item for item in made if isinstance(item, Entry))
    problems = tuple(item for item in made if isinstance(item, Problem))
    wrapper = shared_wrapper(item.layer for item in entries)
    entries = tuple(item._replace(layer=item.layer.removeprefix(wrapper)) for item in entries)
    if not entries:
        raise BadFile(path, "names no tensor; was something else saved here?")
    return Dump(at.path, FORMAT, entries, False, (*at.problems, *problems), files=frozenset(files))


def _tensors(at: DumpPath, path: Path, content: object) -> Iterator[Entry | Problem]:
    attributes = content.attributes if isinstance(content, Record) else {}
    described, stored = attributes.get("state_dict_metadata"), attributes.get("storage_data")
    if not isinstance(described, dict) or not isinstance(stored, dict):
        raise BadFile(path, "is no metadata of a distributed checkpoint, or of a kind we do not know")
    places: dict[str, dict[tuple[int, ...], Record]] = defaultdict(dict)
    for index, info in stored.items():
        fields = index.attributes if isinstance(index, Record) else {}
        if isinstance(name := fields.get("fqn"), str) and isinstance(info, Record):
            places[name][_counts(fields.get("offset")) or ()] = info
    for name, about in described.items():
        if not isinstance(name, str) or not isinstance(about, Record) or about.of.name != "TensorStorageMetadata":
            continue  # bytes: a step, a learning rate
        try:
            yield entry(name, _pieced(at, name, about, places[name]))
        except (BadFile, ValueError) as error:
            yield Problem(METADATA, f"its tensor {name!r:.120} cannot be found ({error}); it is left out", True)


def _pieced(at: DumpPath, name: str, about: Record, places: dict[tuple[int, ...], Record]) -> PiecedTensor:
    shape, chunks = _counts(about.attributes.get("size")), about.attributes.get("chunks")
    if shape is None or not isinstance(chunks, list) or len(shape) > MAX_RANK or math.prod(shape) >= _BIG:
        raise ValueError("its size is not told as it should be")
    spec = Spec(shape, _dtype(about.attributes.get("properties")))
    pieces = tuple(_piece(at, chunk, places, shape) for chunk in chunks)
    if sum(math.prod(piece.sizes) for piece in pieces) != spec.size or len({p.offsets for p in pieces}) != len(pieces):
        raise ValueError("its pieces are not the whole")
    return PiecedTensor(name, spec, pieces)


def _dtype(properties: object) -> DType:
    dtype = properties.attributes.get("dtype") if isinstance(properties, Record) else None
    if dtype is None and isinstance(properties, Record) and isinstance(properties.state, tuple) and properties.state:
        dtype = properties.state[0]
    if isinstance(dtype, TorchDType) and dtype.name in DTYPES:
        return DTYPES[dtype.name]
    raise ValueError("its dtype is not one we read")


def _piece(at: DumpPath, chunk: object, places: dict[tuple[int, ...], Record], whole: tuple[int, ...]) -> Piece:
    fields = chunk.attributes if isinstance(chunk, Record) else {}
    offsets, sizes = _counts(fields.get("offsets")), _counts(fields.get("sizes"))
    if offsets is None or sizes is None or not len(offsets) == len(sizes) == len(whole):
        raise ValueError("a piece of it is not told as it should be")
    if any(o + n > w for o, n, w in zip(offsets, sizes, whole, strict=True)):
        raise ValueError("a piece of it lies outside")
    info = places.get(offsets) or (places.get(()) if not any(offsets) else None)
    about = info.attributes if info is not None else {}
    name, begin, length = (about.get(key) for key in ("relative_path", "offset", "length"))
    if not isinstance(name, str) or type(begin) is not int or type(length) is not int or min(begin, length) < 0:
        raise ValueError("where a piece of it lies is not told")
    if name not in at.files:
        raise BadFile(at.path, f"{name:.120} is not there; copy it too")
    return Piece(offsets, sizes, member_path(at.path, name), begin, length)


def _counts(value: object) -> tuple[int, ...] | None:
    if type(value) is tuple and all(type(n) is int and 0 <= n < _BIG for n in value):
        return value
    return None
