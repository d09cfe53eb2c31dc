"""Byte ranges of a remote file: cached blocks, read-ahead, and parallel reads of large tensors.

``RangeFile`` takes the place of a mapped file. It is deliberately no buffer: code that treats it as memory fails at
once, instead of reading bytes that were never fetched. Small reads go through blocks of one mebibyte, of which a
bounded number is cached for all files together. A tensor of many blocks is fetched in parallel pieces, into memory or,
if it is large, into a file that has no name and disappears with the process.
"""

from __future__ import annotations

import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from tensordiff.errors import StoreError, printable
from tensordiff.util.mappings import Mapping, map_pages
from tensordiff.util.remote import store
from tensordiff.util.remote.paths import RemotePath
from tensordiff.util.sizes import format_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK = 1 << 20
KEPT_BYTES = 256 << 20
"""Bytes of blocks, of all files, that are kept in memory."""
PIECE = 8 << 20
"""Bytes of one request of a large read, and the most that is read ahead at a time."""
AT_ONCE = 8
"""How many requests are under way at the same time."""
_LARGE = 8 * BLOCK  # reads of this size or more do not go through blocks
_ON_DISK = 64 << 20  # reads of this size or more are kept in a file rather than in memory
_MOST_AHEAD = 16 * BLOCK
_SIBLINGS = 32  # files of a folder whose first block is fetched ahead


@cache
def pool() -> ThreadPoolExecutor:
    """The threads that wait for stores."""
    return ThreadPoolExecutor(AT_ONCE, thread_name_prefix="tensordiff-store")


@final
class RangeFile:
    """A remote file that is read in ranges."""

    def __init__(self, path: RemotePath, size: int) -> None:
        self.path, self.size = path, size
        self._next = -1  # the block after the last that was read
        self._ahead = BLOCK
        self._whole: weakref.ref[Mapping] | None = None

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> bytes:
        start, end, step = part.indices(self.size)
        if step != 1:
            raise ValueError("a remote file is read in ranges")
        return self._read(start, max(start, end))

    def rfind(self, mark: bytes, start: int, end: int) -> int:
        """The last position of ``mark`` between two positions; -1 if there is none."""
        at = self[start:end].rfind(mark)
        return at if at < 0 else start + at

    def array(self, start: int, nbytes: int) -> NDArray[Any]:
        """Bytes as a read-only array."""
        import numpy as np

        if nbytes < _ON_DISK:
            return np.frombuffer(self._read(start, start + nbytes), np.uint8)
        return np.frombuffer(self._on_disk(start, start + nbytes), np.uint8)

    def whole(self) -> Mapping | bytes:
        """The whole file, for formats whose readers need a local one."""
        if self.size < _ON_DISK:
            return self._read(0, self.size)
        mapping = self._whole() if self._whole is not None else None
        if mapping is None:
            mapping = self._on_disk(0, self.size)
            self._whole = weakref.ref(mapping)
        return mapping

    # --- small reads: through blocks ----------------------------------------------------------------

    def _read(self, start: int, end: int) -> bytes:
        if end - start >= _LARGE:
            return b"".join(self._pieces(start, end))
        first, last = start // BLOCK, max(start, end - 1) // BLOCK
        waits = _blocks.fetch(self, first, last + 1)
        self._read_ahead(first, last + 1)
        data = b"".join(wait.result() for wait in waits)
        return data[start - first * BLOCK : end - first * BLOCK]

    def _read_ahead(self, first: int, end: int) -> None:
        """Request the next blocks already if blocks are read in order, more of them each time."""
        if first == 0 and end == 1 and self._next < 0:
            _siblings.read_ahead(self.path)
        if first == self._next and end > first:
            self._ahead = min(2 * self._ahead, _MOST_AHEAD)
            _blocks.fetch(self, end, end + self._ahead // BLOCK)
        elif first not in (self._next, self._next - 1):
            self._ahead = BLOCK
        self._next = end

    # --- large reads: in parallel pieces -------------------------------------------------------------

    def _pieces(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes in order; at most ``AT_ONCE`` pieces wait to be taken."""
        waiting: list[Future[bytes]] = []
        starts = iter(range(start, end, PIECE))
        try:
            for at in starts:
                waiting.append(pool().submit(store.read, self.path, at, min(at + PIECE, end), self.size))
                if len(waiting) >= AT_ONCE:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            for one in waiting:
                one.cancel()

    def _on_disk(self, start: int, end: int) -> Mapping:
        folder = spill_folder()
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                for piece in self._pieces(start, end):
                    file.write(piece)
                file.flush()
                return map_pages(file.fileno(), end - start, self.path)
        except OSError as error:
            size, why = format_bytes(end - start), (error.strerror or str(error)).lower()
            raise StoreError(
                f"{printable(self.path)}: {size} of it are kept on disk while they are read, and {printable(folder)} "
                f"cannot take them ({why}); set XDG_CACHE_HOME to a folder with room"
            ) from error


def spill_folder() -> Path:
    """The user's cache folder, for files that have no name."""
    from platformdirs import user_cache_path

    folder = user_cache_path("tensordiff", appauthor=False)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class _Blocks:
    """The blocks, of all files, that were read recently or are being fetched."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[RemotePath, int, int], Future[bytes]] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def fetch(self, file: RangeFile, first: int, end: int) -> list[Future[bytes]]:
        """The blocks from ``first`` up to ``end``; missing neighbours are fetched by one request."""
        end = min(end, -(-file.size // BLOCK))
        with self._lock:
            keys = [(file.path, file.size, number) for number in range(first, end)]
            missing = [key[2] for key in keys if not self._has(key)]
            for run in _runs(missing):
                self._request(file, run)
            for key in keys:
                self._kept.move_to_end(key)
            waits = [self._kept[key] for key in keys]
            while self._kept_bytes > KEPT_BYTES:
                (_, size, number), _ = self._kept.popitem(last=False)
                self._kept_bytes -= _block_bytes(size, number)
            return waits

    def _has(self, key: tuple[RemotePath, int, int]) -> bool:
        """Whether a block is there or on its way; one that could not be fetched is requested again."""
        kept = self._kept.get(key)
        return kept is not None and not (kept.done() and kept.exception() is not None)

    def _request(self, file: RangeFile, run: range) -> None:
        start, end = run.start * BLOCK, min(run.stop * BLOCK, file.size)
        whole = pool().submit(store.read, file.path, start, end, file.size)
        for number in run:
            part: Future[bytes] = Future()
            key = file.path, file.size, number
            self._kept_bytes += 0 if key in self._kept else _block_bytes(file.size, number)
            self._kept[key] = part
            whole.add_done_callback(_copy_slice(part, (number - run.start) * BLOCK))

    def clear(self) -> None:
        """Forget all blocks."""
        with self._lock:
            self._kept.clear()
            self._kept_bytes = 0


def _block_bytes(size: int, number: int) -> int:
    return min(BLOCK, size - number * BLOCK)


def _copy_slice(part: Future[bytes], at: int) -> Any:
    def done(whole: Future[bytes]) -> None:
        if (error := whole.exception()) is not None:
            part.set_exception(error)
        else:
            part.set_result(whole.result()[at : at + BLOCK])

    return done


def _runs(numbers: list[int]) -> Iterator[range]:
    """Ascending numbers as ranges of consecutive ones, none longer than a piece."""
    begin = 0
    for k in range(1, len(numbers) + 1):
        is_end = k == len(numbers) or numbers[k] != numbers[k - 1] + 1 or k - begin >= PIECE // BLOCK
        if is_end and k > begin:
            yield range(numbers[begin], numbers[k - 1] + 1)
            begin = k


class _Siblings:
    """Reads ahead in folders whose files are opened one after the other: dumps with one tensor per file."""

    def __init__(self) -> None:
        self._reads: dict[Path, int] = {}
        self._lock = threading.Lock()

    def read_ahead(self, path: RemotePath) -> None:
        """Request the first block of the files that follow this one, more with each file that is opened."""
        with self._lock:
            ahead = self._reads[path.parent] = min(2 * self._reads.get(path.parent, 0) or 1, _SIBLINGS)
        if ahead < 4:
            return
        for name, size in store.files_after(path, ahead):
            _blocks.fetch(RangeFile(path.with_name(name), size), 0, 1)


_blocks = _Blocks()
_siblings = _Siblings()


def clear() -> None:
    """Forget what was read of all files."""
    _blocks.clear()
