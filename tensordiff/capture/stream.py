"""The tensors of a run while it runs: the child writes them into a window, and the parent takes them out.

``TensorStream`` is the reader's end of what ``process.stream_writer`` writes. A tensor that has arrived stays until it
is released, which removes it and lets the child continue, or kept, which moves it elsewhere. ``session.streaming``
decides between the two.

The window is in shared memory if that has room for it, else in the temporary directory. It is removed when the stream
is closed, however the run ended; the window of a killed process is removed when the next one is made.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

from tensordiff.capture.child import ReusableChild
from tensordiff.capture.events import Done, Failed
from tensordiff.capture.job import Job
from tensordiff.capture.process.stream_writer import JOURNAL, Window, window_path
from tensordiff.capture.runner import Run
from tensordiff.dump.files import FileTensor, MappedFile
from tensordiff.dump.model import EntryKey, Spec
from tensordiff.dump.native.manifest import encode, parse_record
from tensordiff.errors import CaptureError, WriteError, printable
from tensordiff.util.memory import shortage
from tensordiff.util.sizes import format_bytes
from tensordiff.util.temporary_folders import ClaimedFolder, make_claimed_folder, remove_abandoned

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it
_PREFIX = "tensordiff-stream-"
SCRATCH_PREFIX = "tensordiff-scratch-"
"""The prefix of temporary folders for tensors that are kept from a stream while the command runs."""
_KEEP_ELSEWHERE = "free some space, keep it elsewhere, or give --keep none"
_LOOK_S = 0.002  # how often the journal is read while nothing comes


class KeptTensor(NamedTuple):
    """A tensor in a file of its own, and its line in a manifest."""

    stored: FileTensor
    record: str

    @property
    def spec(self) -> Spec:
        """Shape and dtype."""
        return self.stored.spec

    def moved(self, path: Path, way_out: str = _KEEP_ELSEWHERE) -> KeptTensor:
        """Move the tensor to another file, whose name is that of a shard."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(self.stored.file.path, path)
        except OSError as error:
            path.unlink(missing_ok=True)
            why = (error.strerror or str(error)).lower()
            raise WriteError(
                f"{printable(path.parent)}: a tensor that is to be kept cannot be written there ({why}); {way_out}"
            ) from error
        record = encode(json.loads(self.record) | {"shard": path.name})
        return KeptTensor(replace(self.stored, file=MappedFile(path)), record)


class TensorStream:
    """A running source, and the tensors in its window."""

    def __init__(self, job: Job, child: ReusableChild | None, window_bytes: int) -> None:
        """Start the run of a job."""
        self._folder = make_window_folder(window_bytes)
        self._tensors = self._folder.path / "tensors"
        self._window = Window(window_path(self._tensors))
        self.window_bytes = window_bytes
        self.held: dict[EntryKey, KeptTensor] = {}
        """The tensors in the window, in the order they came."""
        self.arrived: set[EntryKey] = set()
        """The keys of all tensors that ever came."""
        self.news: list[EntryKey] = []
        """The keys that came since the caller last emptied this list."""
        self.held_bytes = self.most_bytes = 0
        self._released = self._read = 0
        self._rest = b""
        self._last: Done | Failed | None = None
        self._is_over = threading.Event()
        try:
            self.run = Run(replace(job, output=str(self._tensors), writes="stream", window_bytes=window_bytes), child)
        except BaseException:
            self._folder.remove()
            raise
        self._thread = threading.Thread(target=self._listen, name="tensordiff-stream", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop(self) -> None:
        """End the child if it still runs; tensors that have come stay."""
        self.run.cancel()
        self._thread.join()

    def close(self) -> None:
        """End the child if it still runs, and remove the window."""
        self.stop()
        self._window.close()
        self._folder.remove()

    def _listen(self) -> None:
        try:
            for event in self.run:
                if isinstance(event, Done | Failed):
                    self._last = event
        finally:
            self._is_over.set()

    # --- arriving tensors ------------------------------------------------------------------------

    def wait_for(self, key: EntryKey, make_room: Callable[[], bool]) -> KeptTensor:
        """Wait for a tensor.

        ``make_room`` releases others; it returns False if it cannot, and the run is then stuck.
        """
        while key not in self.arrived:
            was_over = self._is_over.is_set()
            if not self.take_new():
                if was_over:
                    raise self._ended(f"waiting for {printable(key.name)}")
                self._pause(make_room, f"waiting for {printable(key.name)}")
        return self.held[key]

    def fill(self) -> None:
        """Wait until the window is full, or every tensor has come."""
        while not self._is_over.is_set() and not self._is_stuck():
            if not self.take_new():
                self._is_over.wait(_LOOK_S)
        self._take_last("filling the window")

    def finish(self, make_room: Callable[[], bool]) -> None:
        """Let the run come to its end; raises ``CaptureError`` if it fails."""
        while not self._is_over.is_set():
            if not self.take_new():
                self._pause(make_room, "waiting for its end")
        self._take_last("waiting for its end")

    def _take_last(self, doing: str) -> None:
        self.take_new()
        if self._is_over.is_set() and not isinstance(self._last, Done):
            raise self._ended(doing)

    def _pause(self, make_room: Callable[[], bool], doing: str) -> None:
        """Wait for a moment; raises if the child waits for room and none can be made."""
        # First take what the child announced before it began to wait: it may be what is needed.
        if self._is_stuck() and not self.take_new() and not make_room():
            raise CaptureError(
                f"{printable(self.run.job.source)}: more than {format_bytes(self.window_bytes)} of this side would "
                f"have to be held at a time ({doing}), for what is measured together or because the two sides run in "
                "another order; give a larger --window, or compare dumps, without --stream"
            )
        self._is_over.wait(_LOOK_S)

    def _is_stuck(self) -> bool:
        """Whether the child waits for room, having seen everything that was released."""
        return self._window.waits_beyond == self._released and bool(self.held)

    def _ended(self, doing: str) -> CaptureError:
        if isinstance(self._last, Failed):
            return self._last.error()
        return CaptureError(
            f"{printable(self.run.job.source)}: ended before it gave what it gave when it was listed ({doing}); "
            "its two runs differ: compare dumps, without --stream"
        )

    def take_new(self) -> int:
        """Read the journal; returns how many tensors have arrived since."""
        try:
            with (self._tensors / JOURNAL).open("rb") as journal:
                journal.seek(self._read)
                data = journal.read()
        except FileNotFoundError:
            return 0
        self._read += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return sum(map(self._take, lines))

    def _take(self, line: bytes) -> bool:
        fields = json.loads(line)
        if "facts" in fields:
            return False
        entry, shard, begin, _ = parse_record(fields, self._file)
        stored = FileTensor(self._file(shard), begin, entry.spec)
        self.held[entry.key] = KeptTensor(stored, line.decode())
        self.arrived.add(entry.key)
        self.news.append(entry.key)
        self.held_bytes += stored.spec.nbytes
        self.most_bytes = max(self.most_bytes, self.held_bytes)
        return True

    def _file(self, shard: str) -> MappedFile:
        return MappedFile(self._tensors / shard)

    # --- releasing tensors -----------------------------------------------------------------------

    def release(self, key: EntryKey) -> None:
        """Remove a tensor; a reader that has it open may continue."""
        tensor = self._forget(key)
        tensor.stored.file.path.unlink(missing_ok=True)
        self._window.released = self._released

    def keep(self, key: EntryKey, path: Path, way_out: str = _KEEP_ELSEWHERE) -> KeptTensor:
        """Move a tensor to a file of its own elsewhere; ``way_out`` says what to do if that place is full."""
        tensor = self._forget(key).moved(path, way_out)
        self._window.released = self._released
        return tensor

    def _forget(self, key: EntryKey) -> KeptTensor:
        tensor = self.held.pop(key)
        self.held_bytes -= tensor.spec.nbytes
        self._released += tensor.spec.nbytes
        return tensor


def make_window_folder(nbytes: int) -> ClaimedFolder:
    """A folder for a window. Removes the folders of killed processes first, wherever they are."""
    for place in (_SHARED_MEMORY, Path(tempfile.gettempdir())):
        for prefix in (_PREFIX, SCRATCH_PREFIX):
            remove_abandoned(prefix, place)
    return make_claimed_folder(_PREFIX, _SHARED_MEMORY if _has_room(_SHARED_MEMORY, nbytes) else None)


def _has_room(folder: Path, nbytes: int) -> bool:
    """Whether there is shared memory, with plenty of room."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    return shutil.disk_usage(folder).free >= 2 * nbytes and not shortage(2 * nbytes)
