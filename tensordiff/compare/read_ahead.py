"""Read tensors of a store before they are needed, since waiting for a store takes most of the time.

Local files are mapped, which costs nothing, so they are not read ahead. A tensor of a running model cannot be read
ahead either; in a pair of such a tensor and one in a store, only the latter is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from tensordiff.align.index import parts_of
from tensordiff.align.match import Pair
from tensordiff.compare.row import PairValues, Row, read_pair
from tensordiff.dump import Entry
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import LiveTensor

_AT_ONCE = 16
_MOST_BYTES = 256 << 20
"""Maximum size of the values that wait to be measured; a larger tensor waits alone."""
Reads = dict[int, Future[Array]]
"""The entries of a pair that are being read ahead, by ``id``."""


def read_ahead(pairs: Sequence[Pair]) -> Iterator[PairValues | Row]:
    """Every pair in order, with its values; a few are read in parallel."""
    waiting: deque[tuple[Pair, Reads]] = deque()
    left = iter(pairs)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="tensordiff-pairs") as pool:
        try:
            while True:
                while len(waiting) < _AT_ONCE and _bytes_of(waiting) < _MOST_BYTES:
                    if (pair := next(left, None)) is None:
                        break
                    entries = (entry for entry in (pair.reference, pair.candidate) if not _is_live(entry))
                    waiting.append((pair, {id(entry): pool.submit(entry.read) for entry in entries}))
                if not waiting:
                    return
                yield _read(*waiting.popleft())
        finally:
            for _, reads in waiting:
                for one in reads.values():
                    one.cancel()


def _read(pair: Pair, reads: Reads) -> PairValues | Row:
    return read_pair(pair, lambda entry: reads[id(entry)].result() if id(entry) in reads else entry.read())


def _is_live(entry: Entry) -> bool:
    return any(isinstance(part.stored, LiveTensor) for part in parts_of(entry))


def _bytes_of(waiting: deque[tuple[Pair, Reads]]) -> int:
    """Bytes of the values that have already been read."""
    read = (one for _, reads in waiting for one in reads.values())
    return sum(one.result().nbytes for one in read if one.done() and one.exception() is None)
