"""One side of a streamed comparison: what its source will produce, what has arrived, and what is still held.

``StreamedSide`` decides how long a tensor is held. Tensors that the judge may read again after their last pair was
judged (inputs of a module that still runs, the latest outputs) are held, or spilled to the temporary directory if they
do not fit into the window. Other tensors are released later, oldest first, as the window fills, so those that a hint
looks at are usually still there. Around the first layers that diverge, everything is held longer. A tensor that is gone
is fetched: the source runs once more for those layers alone, before or after the comparison. During the comparison that
is impossible and raises an error, so that every verdict is the one that dumps would give.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace
from pathlib import Path

from tensordiff.align.index import parts_of
from tensordiff.align.rules.rule import Side
from tensordiff.capture.child import ReusableChild
from tensordiff.capture.events import Done
from tensordiff.capture.job import Job
from tensordiff.capture.process.stream_writer import UNWRITTEN
from tensordiff.capture.runner import Run
from tensordiff.capture.stream import SCRATCH_PREFIX, KeptTensor, TensorStream
from tensordiff.compare.judge.parents import parent_of
from tensordiff.dump import Dump, Entry, open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.dump.files import FileTensor
from tensordiff.dump.model import CallKey, EntryKey, LiveTensor, Spec
from tensordiff.dump.native.manifest import shard_name
from tensordiff.dump.native.writer import write_manifest
from tensordiff.errors import CaptureError, ReleasedError, printable
from tensordiff.session.streaming.options import StreamOptions
from tensordiff.util.sizes import format_bytes
from tensordiff.util.temporary_folders import make_claimed_folder

FollowRun = Callable[[Run, str], Done]
"""Follows a run to its end and shows its progress; the text names the side."""
OnRunStarted = Callable[[Run], None]
"""Called with every run that starts, from the comparing thread, so that another thread can cancel it or read its
log."""

_MOST_WRONG_ENTRIES = 8  # number of wrong entries around which everything is held as long as there is room
_SHARE_NEAR_WRONG = 4  # tensors near wrong entries may take 1/4 of the window
_SPILL_ELSEWHERE = "free some space, set TMPDIR to another folder, or give a larger --window"


@dataclass(frozen=True, eq=False, slots=True)
class StreamedTensor(LiveTensor):
    """A tensor of a running source, read when it arrives."""

    side: StreamedSide
    key: EntryKey
    spec: Spec

    def read(self) -> Array:
        """The values; may wait for the model to compute them."""
        return self.side.read(self)


class StreamedSide:
    """A side that is a source: what it will produce, and what has arrived."""

    def __init__(
        self, side: Side, job: Job, options: StreamOptions, window_bytes: int, started: OnRunStarted = lambda _: None
    ) -> None:
        self.side, self.job, self._started = side, job, started
        self.dump: Dump
        """The listed dump, whose entries are read from the stream."""
        self.kept: dict[EntryKey, KeptTensor] = {}
        """Tensors that are kept, each in a file."""
        self.not_kept = 0
        """The number of diverging tensors that exceeded the window's size on disk."""
        self.most_bytes = 0
        self.window_bytes = window_bytes
        """This side's share of the window."""
        self._options = options
        self._claimed = make_claimed_folder(SCRATCH_PREFIX)
        self._scratch = self._claimed.path
        self._child = ReusableChild()
        self._stream: TensorStream | None = None
        self._is_finished = self._is_closed = False
        self._fetched: dict[EntryKey, KeptTensor] = {}
        self._is_measuring = False
        self._judgements_left: Counter[EntryKey] = Counter()
        """How many pairs of each entry are still to be judged."""
        self._reads_left: Counter[EntryKey] = Counter()
        """How many pairs of each entry the judge may still read."""
        self._rereadable: dict[EntryKey, None] = {}
        """Entries whose pairs were all judged but that the judge may read again; they are held or spilled."""
        self._spilled: dict[EntryKey, KeptTensor] = {}
        self._spills = 0
        self._releasable: deque[EntryKey] = deque()
        self._wrong_entries: list[Entry] = []
        self._held_near_wrong: deque[EntryKey] = deque()
        self._held_near_wrong_bytes = self._kept_bytes = 0
        self._entries: dict[EntryKey, Entry] = {}
        self._inputs: dict[CallKey, list[EntryKey]] = {}
        self._listed_keys: set[EntryKey] = set()
        self._listed: dict[EntryKey, Entry] = {}
        """Entries whose values are in the listing: integers, such as token ids."""

    def close(self) -> None:
        """End the child process and delete everything that is not kept; kept tensors can still be read."""
        self._is_closed = True
        self._fetched.clear()
        self._spilled.clear()
        try:
            if self._stream is not None:
                self._stream.close()
                self._stream.held.clear()
        finally:
            self._child.close()
            self._claimed.remove()

    # --- what it will give -----------------------------------------------------------------------

    def list_entries(self, follow: FollowRun) -> Path:
        """Run the source once without writing values; returns the folder of the listing."""
        folder = self._scratch / "listing"
        run = Run(replace(self.job, output=str(folder), writes="listing"), self._child)
        self._started(run)
        follow(run, f"{self.side}, listing")
        listed = open_dump(folder)
        if not all(isinstance(entry.stored, FileTensor) for entry in listed.entries):
            raise CaptureError(
                f"{printable(self.job.source)}: its tensors are put together from several parts, which is not done "
                "with --stream; leave it out"
            )
        self.dump = replace(
            listed,
            path=Path(str(self.job.source)),
            entries=tuple(e._replace(stored=StreamedTensor(self, e.key, e.spec)) for e in listed.entries),
            problems=tuple(problem for problem in listed.problems if problem.file != UNWRITTEN),
        )
        for entry in self.dump.entries:
            self._entries[entry.key] = entry
            if entry.is_input:
                self._inputs.setdefault(entry.call_key, []).append(entry.key)
        self._listed_keys = {entry.key for entry in (*listed.entries, *listed.parameters)}
        self._listed = {e.key: e for e in listed.entries if _is_in_listing(e)}
        return folder

    # --- what comes ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the run unless it has started."""
        self._started_stream()

    def fill(self) -> Dump:
        """Wait until the window is full; returns a dump of what has arrived, the beginning of the run."""
        stream = self._started_stream()
        stream.fill()
        return replace(self.dump, entries=tuple(e for e in self.dump.entries if e.key in stream.arrived))

    def _started_stream(self) -> TensorStream:
        """The stream, which is started if necessary."""
        if self._stream is None:
            self._stream = TensorStream(self.job, self._child, self.window_bytes)
            self._started(self._stream.run)
        return self._stream

    def expect(self, entries: Iterable[Entry]) -> None:
        """Set the entries that will be compared, once per pair; all others may be released on arrival."""
        self._judgements_left, self._is_measuring = Counter(entry.key for entry in entries), True
        self._reads_left = self._judgements_left.copy()
        if self._stream is not None:
            self._releasable.extend(key for key in self._stream.held if not self._judgements_left[key])
            self._stream.news.clear()

    def read(self, tensor: StreamedTensor) -> Array:
        """The values of an entry, which is available, arrives, or is fetched."""
        key, stream = tensor.key, self._stream
        here = self.kept.get(key) or (stream.held.get(key) if stream else None)
        here = here or self._spilled.get(key) or self._fetched.get(key)
        if here is None and not self._is_measuring and key in self._listed:
            return self._listed[key].read()
        here = here or self._wait_or_fetch(key)
        if here.spec != tensor.spec:
            raise CaptureError(
                f"{printable(self.job.source)}: {printable(key.name)} has the shape {list(here.spec.shape)}, and had "
                f"{list(tensor.spec.shape)} when it was listed; its two runs differ: compare dumps, without "
                "--stream"
            )
        return here.stored.read()

    def _wait_or_fetch(self, key: EntryKey) -> KeptTensor:
        """Wait for a tensor, or fetch it if it has passed or the wait would be too long."""
        if self._is_closed:
            raise CaptureError(
                f"{printable(self.job.source)}: {printable(key.name)} was not kept when the stream ended; capture the "
                "source into a dump to look at it"
            )
        is_early = self._stream is None and not self._is_measuring
        if self._is_finished or (is_early and _bytes_of(self._entries.values()) > self.window_bytes):
            return self._fetch(key)
        stream = self._started_stream()
        if key in stream.arrived:
            raise ReleasedError(
                f"{printable(self.job.source)}: {printable(key.name)} is needed again to judge what came after it, "
                f"and was let go; give a larger --window than {format_bytes(self._options.window_bytes)}, or compare "
                "dumps, without --stream"
            )
        return stream.wait_for(key, self._make_room)

    def finish(self) -> None:
        """Let the run finish."""
        if self._stream is not None and not self._is_finished:
            self._stream.finish(self._make_room)
            self._refuse_other(self._stream.arrived)
            self._release_unused_arrivals()
            self._trim(self.window_bytes // 2)
            self._is_finished = True
            self.most_bytes = self._stream.most_bytes

    def _refuse_other(self, arrived: Set[EntryKey]) -> None:
        """Refuse a run whose entries differ from the listing: they were neither aligned nor compared."""
        other = arrived ^ self._listed_keys
        if other and not self.dump.unread:
            raise CaptureError(
                f"{printable(self.job.source)}: {printable(min(other).name)} came in only one of two runs; its two "
                "runs differ: compare dumps, without --stream"
            )

    def stop(self) -> None:
        """Stop the run."""
        if self._stream is not None and not self._is_finished:
            self._stream.stop()
            self._is_finished = True
            self.most_bytes = self._stream.most_bytes

    def _fetch(self, key: EntryKey) -> KeptTensor:
        """Run the source again for an entry's layer, and for the layers around it if they are not too large."""
        layers = self._layers_around(self._entries[key])
        regex = f"^(?:{'|'.join(map(re.escape, sorted(layers)))})$"
        job = replace(self.job, settings=replace(self.job.settings, layers=regex))
        with TensorStream(job, self._child, max(self.window_bytes, self._bytes_of_layers(layers))) as stream:
            self._started(stream.run)
            stream.finish(lambda: False)
            for each in list(stream.held):
                self._fetched[each] = stream.keep(each, self._scratch / shard_name(len(self._fetched)))
        if key not in self._fetched:
            raise CaptureError(
                f"{printable(self.job.source)}: {printable(key.name)} was listed and did not come again; its "
                "two runs differ: compare dumps, without --stream"
            )
        return self._fetched[key]

    def _layers_around(self, entry: Entry) -> set[str]:
        near = {other.layer for other in self.dump.entries if _is_near(other.layer, entry.layer)}
        return near if self._bytes_of_layers(near) <= self.window_bytes // 2 else {entry.layer}

    def _bytes_of_layers(self, layers: set[str]) -> int:
        return _bytes_of(entry for entry in self.dump.entries if entry.layer in layers)

    # --- what goes -------------------------------------------------------------------------------

    def note_judged(self, entry: Entry, *, is_wrong: bool) -> None:
        """Note that a pair of an entry was judged."""
        parts = [part for part in parts_of(entry) if isinstance(part.stored, StreamedTensor)]
        if is_wrong:
            for part in parts:
                self.keep_call(part)
        for part in parts:
            self._judgements_left[part.key] -= 1
            if not self._judgements_left[part.key]:
                self._rereadable[part.key] = None
        self._release_unused_arrivals()
        self._trim(self.window_bytes // 2)

    def release(self, entry: Entry) -> None:
        """Note that the judge will not read a pair of an entry again."""
        for part in parts_of(entry):
            if not isinstance(part.stored, StreamedTensor):
                continue
            self._reads_left[part.key] -= 1
            if self._reads_left[part.key]:
                continue
            del self._rereadable[part.key]
            spilled = self._spilled.pop(part.key, None)
            if spilled is not None:
                spilled.stored.file.path.unlink(missing_ok=True)
            else:
                self._releasable.append(part.key)

    def keep_call(self, entry: Entry) -> None:
        """Keep an entry and, for an output, the inputs of its layer, as far as they are available."""
        if len(self._wrong_entries) < _MOST_WRONG_ENTRIES:
            self._wrong_entries.append(entry)
        for key in self._with_inputs(entry):
            if self._options.keep != "none" and (key in self._started_stream().held or key in self._spilled):
                self._keep(key)

    def keep_or_fetch(self, entry: Entry) -> None:
        """Keep an entry and the inputs of its layer; fetch those that are no longer available."""
        for key in self._with_inputs(entry):
            if key in self.kept:
                continue
            if key in self._started_stream().held or key in self._spilled:
                self._keep(key)
            else:
                tensor = self._fetched.get(key) or self._fetch(key)
                self.kept[key] = tensor.moved(self._next_path())
                self._kept_bytes += tensor.spec.nbytes

    def _with_inputs(self, entry: Entry) -> list[EntryKey]:
        return [entry.key, *(() if entry.is_input else self._inputs.get(entry.call_key, ()))]

    def _keep(self, key: EntryKey) -> None:
        stream, spilled = self._started_stream(), self._spilled.get(key)
        nbytes = (spilled or stream.held[key]).spec.nbytes
        if self._options.keep != "all" and self._kept_bytes + nbytes > self.window_bytes:
            self.not_kept += 1
            return
        self.kept[key] = spilled.moved(self._next_path()) if spilled else stream.keep(key, self._next_path())
        self._spilled.pop(key, None)
        self._kept_bytes += nbytes

    def _next_path(self) -> Path:
        return (self._options.folder or self._scratch) / self.side / shard_name(len(self.kept))

    def _release_unused_arrivals(self) -> None:
        """Mark arrived tensors that nothing is compared with as releasable."""
        stream = self._started_stream()
        news, stream.news = stream.news, []
        if self._is_measuring:
            self._releasable.extend(key for key in news if not self._reads_left[key])

    def _trim(self, most_bytes: int) -> bool:
        """Release tensors that are not needed, oldest first, down to a number of bytes; returns whether any was
        released."""
        stream, has_gone = self._started_stream(), False
        while self._releasable and stream.held_bytes > most_bytes:
            key = self._releasable.popleft()
            if key not in stream.held:
                continue  # already kept
            if self._options.keep == "all":
                self._keep(key)
            elif self._is_near_wrong(key) and self._held_near_wrong_bytes < self.window_bytes // _SHARE_NEAR_WRONG:
                self._held_near_wrong.append(key)
                self._held_near_wrong_bytes += stream.held[key].spec.nbytes
                continue
            else:
                stream.release(key)
            has_gone = True
        return has_gone

    def _make_room(self) -> bool:
        """Release what can be released because the run cannot continue otherwise; returns whether anything was."""
        self._release_unused_arrivals()
        half = self.window_bytes // 2
        if self._trim(half) or self._trim(0) or self._spill(half) or self._spill(0):
            return True
        stream, has_gone = self._started_stream(), bool(self._held_near_wrong)
        for key in self._held_near_wrong:
            if key in stream.held:
                stream.release(key)
        self._held_near_wrong.clear()
        self._held_near_wrong_bytes = 0
        return has_gone

    def _spill(self, most_bytes: int) -> bool:
        """Spill tensors that the judge may read again to the temporary directory, down to a number of bytes."""
        stream, has_gone = self._started_stream(), False
        for key in self._rereadable:
            if stream.held_bytes <= most_bytes:
                break
            if key not in stream.held:
                continue  # already kept or spilled
            if self._options.keep == "all":
                self._keep(key)
            else:
                path = self._scratch / "spilled" / shard_name(self._spills)
                self._spilled[key] = stream.keep(key, path, _SPILL_ELSEWHERE)
                self._spills += 1
            has_gone = True
        return has_gone

    def spilled_files(self) -> list[Path]:
        """The files of spilled tensors, which the judge may read again."""
        return [tensor.stored.file.path for tensor in self._spilled.values()]

    def _is_near_wrong(self, key: EntryKey) -> bool:
        entry = self._entries.get(key)
        return entry is not None and any(
            w.step == key.step and _is_near(entry.layer, w.layer) for w in self._wrong_entries
        )

    # --- what stays ------------------------------------------------------------------------------

    def write_kept(self, error: str | None = None) -> None:
        """Write the kept tensors as a dump, if there are any; ``error`` is why the comparison ended early."""
        if self._options.keep == "all" and self._stream is not None and error is None:
            for key in list(self._stream.held):
                self._keep(key)
        folder = self._options.folder
        if folder is None or self._options.keep == "none" or not self.kept:
            return
        order = {entry.key: number for number, entry in enumerate(self.dump.entries)}
        records = [self.kept[key].record for key in sorted(self.kept, key=lambda key: order.get(key, len(order)))]
        told = self.dump.facts.get("notes")
        what = "that diverge, and the inputs of their layers" if self._options.keep == "diverging" else "of the run"
        note = f"kept of a stream: {len(records):,} of {len(self.dump):,} tensors, those {what}"
        notes = [*(told if isinstance(told, list) else ()), note]
        write_manifest(folder / self.side, {**self.dump.facts, "notes": notes, "error": error}, records)


def _bytes_of(entries: Iterable[Entry]) -> int:
    return sum(entry.spec.nbytes for entry in entries)


def _is_in_listing(entry: Entry) -> bool:
    return isinstance(entry.stored, FileTensor) and entry.stored.file.path.name != UNWRITTEN


def _is_near(layer: str, wrong: str) -> bool:
    """Whether a layer is the wrong one, a part of it, its parent, or a sibling."""
    parent = parent_of(wrong)
    return layer in (wrong, parent) or layer.startswith(f"{wrong}.") or (bool(parent) and parent_of(layer) == parent)
