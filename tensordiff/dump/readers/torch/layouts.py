"""Files of ``torch.save`` that are laid out as one that was read before, for folders of a hundred thousand of them.

Such files hold one tensor each, and those of one shape differ in little: in the name of the folder that their members
lie in, which is that of the file, in values, and in checksums, which nobody looks at. So where a file was read in
full, its other bytes are kept, with the places of that name. A later file that has the same bytes, with its own name
in those places, would be found by the reader to hold the same tensor at the same place, as the reader looks at
nothing else. One that differs anywhere is read in full.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from tensordiff.dump.dtypes import Array
from tensordiff.dump.files import Buffer, Bytes, view_buffer
from tensordiff.dump.model import Spec
from tensordiff.dump.readers.torch.tensors import Tensor
from tensordiff.dump.zip_files import Span, ZipMap, checksum_in_row, name_in_row, plain_table
from tensordiff.errors import BadFile
from tensordiff.util.remote.ranges import RangeFile

_PICKLE = b"/data.pkl"
_RANDOM = b"/.data/serialization_id"
_NAME_SIZE, _NAME = slice(26, 28), 30  # within the first member's header, which the file begins with
_MOST_BYTES = 1 << 13  # of a layout: those of one tensor have some two thousand
_MOST_KEYS, _MOST_ALIKE = 1 << 10, 8
_WORTH_KEEPING = 4  # files of one key, as to keep a layout takes as long as to read two or three of them
_Key = tuple[int, bytes]
"""The size of a file and of its first member's name: files that differ in these are laid out differently."""


class _Stretch(NamedTuple):
    """Bytes of a file that must be these, with the folder's name between the parts."""

    span: slice
    parts: tuple[bytes, ...]


class Layout(NamedTuple):
    """Where the values lie, and all that the reader looks at in such a file."""

    start: int
    spec: Spec
    stretches: tuple[_Stretch, ...]

    def values(self, buffer: Buffer, path: str) -> Array:
        """The values of a file that has this layout.

        They lie inside: a file has the same size as the one that the layout was learned of, where this was checked.
        """
        if type(buffer) is bytes:
            return np.ndarray(self.spec.shape, self.spec.dtype, buffer, self.start)
        return view_buffer(buffer, path, self.start, self.spec)


class Layouts:
    """The layouts that were seen. Threads may share it: at worst one of two that are kept at once is lost."""

    def __init__(self) -> None:
        self._known: dict[_Key, tuple[Layout, ...]] = {}
        self._read: dict[_Key, int] = {}

    def find(self, buffer: Buffer) -> Layout | None:
        """The layout of a file, if one that was read before has the same in every byte that the reader looks at."""
        if type(buffer) is RangeFile:  # each look at it would be a request
            return None
        size = buffer[_NAME_SIZE]
        known = self._known.get((len(buffer), size))
        if known is None:
            return None
        folder = buffer[_NAME : _NAME + int.from_bytes(size, "little") - len(_PICKLE)]
        if b"/" in folder:  # the reader would take what stands before it for the folder
            return None
        for layout in known:
            for span, parts in layout.stretches:
                if buffer[span] != folder.join(parts):
                    break
            else:
                return layout
        return None

    def learn(self, zipped: ZipMap, folder: bytes, tensor: Tensor) -> None:
        """Keep the layout of a file that was read in full, if it is one of a plain tensor, and there are more alike."""
        buffer = zipped.buffer
        if type(buffer) is RangeFile:
            return
        if len(self._read) >= _MOST_KEYS:
            self._read.clear()
            self._known.clear()
        key = len(buffer), buffer[_NAME_SIZE]
        self._read[key] = count = self._read.get(key, 0) + 1
        alike = self._known.get(key, ())
        if count % _WORTH_KEEPING or len(alike) >= _MOST_ALIKE:
            return
        try:
            layout = _layout_of(zipped, buffer, folder, tensor)
        except BadFile:  # of a member that no tensor needs: each such file is read in full
            return
        if layout is not None and layout not in alike:
            self._known[key] = (layout, *alike)


def _layout_of(zipped: ZipMap, buffer: Bytes, folder: bytes, tensor: Tensor) -> Layout | None:
    """The layout of a file that holds this tensor; None where the reader might look at more than the stretches, or
    would not map the values as they are.

    All that tells it how to read must come before the values or in the table of contents behind them. Members must not
    overlap, lest the folder's name, which may be any, stand where a size or an offset does.
    """
    if tensor.strides is not None or tensor.conjugate or tensor.negative or 0 in tensor.spec.shape:
        return None
    names, values = list(zipped.rows), folder + b"/data/" + tensor.storage.key.encode("utf-8", "surrogatepass")
    if not folder or names[0] != folder + _PICKLE or values not in zipped.rows:
        return None
    if not all(name.startswith(folder + b"/") for name in names):
        return None
    table = plain_table(buffer)
    before, after = names[: names.index(values) + 1], names[names.index(values) + 1 :]
    if table is None or not _is_as_mapped(zipped, folder + b"/byteorder", after):
        return None
    places = [zipped.place(name) for name in before]
    ends, begins = [0, *(place.end for place in places)], [*(place.header for place in places), table.start]
    if begins[0] or any(end > begin for end, begin in zip(ends, begins, strict=True)):
        return None
    headers, tail = Span(0, places[-1].span.start), Span(table.start, len(buffer) - table.start)
    if headers.size + tail.size > _MOST_BYTES or places[-1].span.size < tensor.storage.nbytes:
        return None
    rows = {name: table.start + row for name, row in zipped.rows.items()}
    differing = [checksum_in_row(rows[name]) for name in (values, folder + _RANDOM) if name in rows]
    stretches = (
        *_stretches(buffer, headers, [place.name for place in places], len(folder)),
        *_stretches(buffer, tail, [*map(name_in_row, rows.values())], len(folder), sorted(differing)),
    )
    return Layout(headers.size + tensor.offset * tensor.spec.dtype.itemsize, tensor.spec, stretches)


def _is_as_mapped(zipped: ZipMap, order: bytes, after: Collection[bytes]) -> bool:
    """Whether values are in this machine's byte order, as the member ``order`` says, and not behind them."""
    if order not in zipped.rows:
        return True
    start, size = zipped.span(order)
    return order not in after and zipped.buffer[start : start + size] == b"little"


def _stretches(
    buffer: Bytes, span: Span, names: Iterable[int], size: int, left_out: Iterable[Span] = ()
) -> Iterator[_Stretch]:
    """A range of a file without what is left out of it; ``names`` is where the folder's name begins, of that size."""
    at, end = span.start, span.start + span.size
    for begin, length in (*left_out, Span(end, 0)):
        within = [name for name in names if at <= name < begin]
        edges = zip((at, *(name + size for name in within)), (*within, begin), strict=True)
        yield _Stretch(slice(at, begin), tuple(buffer[one:other] for one, other in edges))
        at = begin + length
