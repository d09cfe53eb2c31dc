"""What a child writes if no dump is wanted: a listing of tensors, or a stream of them.

A listing is a dump without values, except for the few integers that a run of the other side may need (token ids).

A stream is a folder that never fills up. Every tensor is a shard of its own and a line in a journal. The reader removes
each shard when it is done with it, and says so in a file of two numbers, the ``Window``. The writer waits while more
unread bytes are waiting than the window allows, so the model is slowed down if its reader, or the other side of a
comparison, is slower. One tensor always passes, however large.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from pathlib import Path

from tensordiff.dump.model import EntryKey, Origin, Spec
from tensordiff.dump.native import manifest
from tensordiff.dump.native.writer import DumpWriter

JOURNAL = "stream.jsonl"
"""The journal of a stream. It has another name than that of a dump, because the tensors it lists are soon gone."""
UNWRITTEN = manifest.shard_name(99_999_999)
"""The shard that a listing names for tensors without values; there is no such file."""

_LOOK_S = 0.002  # how long a waiting writer sleeps before it checks again
_KEPT_IN_LISTING = 1 << 12  # bytes of token ids, at most
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def window_path(folder: str | os.PathLike[str]) -> Path:
    """The path of the window of a stream in a folder."""
    return Path(f"{os.fspath(folder)}.window")


class Window:
    """Two numbers that the writer and the reader of a stream share; each is written by one process and read by the
    other.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    @property
    def released(self) -> int:
        """Bytes that the reader has removed so far."""
        return self._get(0)

    @released.setter
    def released(self, nbytes: int) -> None:
        self._set(0, nbytes)

    @property
    def waits_beyond(self) -> int:
        """The writer waits until more bytes than this are removed; -1 if it does not wait."""
        return self._get(8) - 1

    @waits_beyond.setter
    def waits_beyond(self, nbytes: int) -> None:
        self._set(8, nbytes + 1)

    def _get(self, offset: int) -> int:
        return int.from_bytes(os.pread(self._file, 8, offset), "little")

    def _set(self, offset: int, number: int) -> None:
        os.pwrite(self._file, number.to_bytes(8, "little"), offset)


class ListingWriter(DumpWriter):
    """Lists what a dump would contain. It takes no space, whatever the size of the tensors."""

    journal_name = JOURNAL

    def __init__(
        self, folder: str | os.PathLike[str], facts: Mapping[str, object] | None = None, *, durable: bool = True
    ) -> None:
        super().__init__(folder, facts, durable=durable)
        self._is_written = False
        self._end = 8

    def begin(self, key: EntryKey, spec: Spec, origin: Origin) -> None:
        """List a tensor; its bytes are dropped, unless they may be token ids."""
        self._is_written = spec.dtype.kind in "iub" and spec.nbytes <= _KEPT_IN_LISTING
        if self._is_written:
            super().begin(key, spec, origin)
            return
        self.flush()
        self.log()  # so that entries stay in order
        spec = self._checked(key, spec)
        begin, self._end = self._end, self._end + spec.nbytes
        self._records.append(manifest.record(key, spec, origin, begin, self._end, UNWRITTEN))
        self._keys.append(key)
        self._seen.add(key)

    def extend(self, data: memoryview) -> None:
        """Take bytes of the last tensor."""
        if self._is_written:
            super().extend(data)


class StreamWriter(DumpWriter):
    """Writes tensors for a reader that removes them."""

    journal_name = JOURNAL
    reserves_space = False

    def __init__(
        self, folder: str | os.PathLike[str], facts: Mapping[str, object] | None = None, window_bytes: int = 0
    ) -> None:
        super().__init__(folder, facts, shard_bytes=1, header_bytes=0, durable=False)
        self._window_bytes, self._window = window_bytes, Window(window_path(folder))
        self._sent = 0

    def begin(self, key: EntryKey, spec: Spec, origin: Origin) -> None:
        """Publish the previous tensor, and wait until there is room for this one."""
        with self._writing():
            self._close_shard()
        self._wait_for_room(spec.nbytes)
        super().begin(key, spec, origin)
        self._sent += spec.nbytes

    def _wait_for_room(self, nbytes: int) -> None:
        has_waited = False
        while (unread := self._sent - (released := self._window.released)) and unread + nbytes > self._window_bytes:
            self._window.waits_beyond, has_waited = released, True
            time.sleep(_LOOK_S)
        if has_waited:
            self._window.waits_beyond = -1

    def _finish(self, whole: bool) -> None:  # noqa: ARG002 - a stream has no manifest that would say so
        """Publish the last tensor. A stream has no manifest."""
        self._close_shard()
        self._window.close()

    def _reason(self, error: OSError) -> str:
        reason = (error.strerror or str(error)).lower()
        if error.errno not in _FULL:
            return f"cannot be written ({reason}); the folder is that of a stream: set TMPDIR to another"
        return f"there is no room left for what is streamed ({reason}); give a smaller --window, or free some space"
