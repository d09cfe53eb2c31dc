"""A side of a comparison that is a source: what it will give, what has come of it, and what of that is held.

``StreamedSide`` decides how long a tensor is held. What the judge may read again after its last pair was judged (the
inputs of a module that still runs, the latest outputs) is held, or spilled to the temporary directory where the window
has no room for it. The rest is let go some time later: the window is used, so what is looked at for a hint is usually
there still. Around the first layers that diverge everything is held longer. What is not here any more is fetched: the
source runs once more for those layers alone, before the comparison or after it. In the midst of it that is impossible,
and an error says so: nothing is judged otherwise than with dumps.
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

Follow = Callable[[Run, str], Done]
"""Runs to the end, and shows how far it is; the text says which side it is."""
Started = Callable[[Run], None]
"""Is told of every run that begins, from the thread that compares: to cancel it from another, or to read its log."""

_NEAR = 8  # wrong layers around which everything is held for as long as there is room
_FOR_NEAR = 4  # ... which is this part of the window
_SPILL_ELSEWHERE = "free some space, set TMPDIR to another folder, or give a larger --window"


@dataclass(frozen=True, eq=False, slots=True)
class StreamedTensor(LiveTensor):
    """A tensor of a source, read when it comes."""

    side: StreamedSide
    key: EntryKey
    spec: Spec

    def read(self) -> Array:
        """The values; may wait for the model to compute them."""
        return self.side.read(self)


class StreamedSide:
    """A side that is a source: what it will give, and what has come of it."""

    def __init__(
        self, side: Side, job: Job, options: StreamOptions, window_bytes: int, started: Started = lambda _: None
    ) -> None:
        self.side, self.job, self._started = side, job, started
        self.dump: Dump
        """What was listed; its entries are read from the stream."""
        self.kept: dict[EntryKey, KeptTensor] = {}
        """What stays, in a file each."""
        self.not_kept = 0
        """Tensors that diverge and did not fit into the window's size on disk."""
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
        self._uses: Counter[EntryKey] = Counter()
        """How many pairs of an entry are still to be judged."""
        self._looks: Counter[EntryKey] = Counter()
        """How many pairs of an entry the judge may still read."""
        self._judged: dict[EntryKey, None] = {}
        """What the judge may read again, all pairs of which were judged: held, or spilled."""
        self._spilled: dict[EntryKey, KeptTensor] = {}
        self._spills = 0
        self._spent: deque[EntryKey] = deque()
        self._wrong: list[Entry] = []
        self._near: deque[EntryKey] = deque()
        self._near_bytes = self._kept_bytes = 0
        self._entries: dict[EntryKey, Entry] = {}
        self._inputs: dict[CallKey, list[EntryKey]] = {}
        self._listed_keys: set[EntryKey] = set()
        self._listed: dict[EntryKey, Entry] = {}
        """Entries whose values the listing has: integers, such as token ids."""

    def close(self) -> None:
        """End the child, and remove all that is not kept; that can still be read."""
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

    def list_entries(self, follow: Follow) -> Path:
        """Run the source once without writing values; the folder of the listing."""
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
        """Start the run, unless it was."""
        self._running()

    def fill(self) -> Dump:
        """Wait until the window is full; the dump of what has come so far, which is the beginning of the run."""
        stream = self._running()
        stream.fill()
        return replace(self.dump, entries=tuple(e for e in self.dump.entries if e.key in stream.arrived))

    def _running(self) -> TensorStream:
        """The stream, started where it was not."""
        if self._stream is None:
            self._stream = TensorStream(self.job, self._child, self.window_bytes)
            self._started(self._stream.run)
        return self._stream

    def expect(self, entries: Iterable[Entry]) -> None:
        """The entries that will be compared, once for each time; all others may go as soon as they come."""
        self._uses, self._is_measuring = Counter(entry.key for entry in entries), True
        self._looks = self._uses.copy()
        if self._stream is not None:
            self._spent.extend(key for key in self._stream.held if not self._uses[key])
            self._stream.news.clear()

    def read(self, tensor: StreamedTensor) -> Array:
        """The values of an entry: that are here, that come, or that are fetched again."""
        key, stream = tensor.key, self._stream
        here = self.kept.get(key) or (stream.held.get(key) if stream else None)
        here = here or self._spilled.get(key) or self._fetched.get(key)
        if here is None and not self._is_measuring and key in self._listed:
            return self._listed[key].read()
        here = here or self._await(key)
        if here.spec != tensor.spec:
            raise CaptureError(
                f"{printable(self.job.source)}: {printable(key.name)} has the shape {list(here.spec.shape)}, and had "
                f"{list(tensor.spec.shape)} when it was listed; its two runs differ: compare dumps, without "
                "--stream"
            )
        return here.stored.read()

    def _await(self, key: EntryKey) -> KeptTensor:
        """A tensor that comes, or is fetched where it came before, or would have to be waited for too long."""
        if self._is_closed:
            raise CaptureError(
                f"{printable(self.job.source)}: {printable(key.name)} was not kept when the stream ended; capture the "
                "source into a dump to look at it"
            )
        is_early = self._stream is None and not self._is_measuring
        if self._is_finished or (is_early and _bytes_of(self._entries.values()) > self.window_bytes):
            return self._fetch(key)
        stream = self._running()
        if key in stream.arrived:
            raise ReleasedError(
                f"{printable(self.job.source)}: {printable(key.name)} is needed again to judge what came after it, "
                f"and was let go; give a larger --window than {format_bytes(self._options.window_bytes)}, or compare "
                "dumps, without --stream"
            )
        return stream.wait_for(key, self._make_room)

    def finish(self) -> None:
        """Let the run come to its end."""
        if self._stream is not None and not self._is_finished:
            self._stream.finish(self._make_room)
            self._refuse_other(self._stream.arrived)
            self._sort_news()
            self._trim(self.window_bytes // 2)
            self._is_finished = True
            self.most_bytes = self._stream.most_bytes

    def _refuse_other(self, arrived: Set[EntryKey]) -> None:
        """Refuse a run that gave something else than when it was listed: that was not aligned, nor compared."""
        other = arrived ^ self._listed_keys
        if other and not self.dump.unread:
            raise CaptureError(
                f"{printable(self.job.source)}: {printable(min(other).name)} came in only one of two runs; its two "
                "runs differ: compare dumps, without --stream"
            )

    def stop(self) -> None:
        """End the run where it is."""
        if self._stream is not None and not self._is_finished:
            self._stream.stop()
            self._is_finished = True
            self.most_bytes = self._stream.most_bytes

    def _fetch(self, key: EntryKey) -> KeptTensor:
        """Run the source again for the layer of an entry, and those around it if they are not too large."""
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

    def judged(self, entry: Entry, *, is_wrong: bool) -> None:
        """A pair of an entry was judged."""
        parts = [part for part in parts_of(entry) if isinstance(part.stored, StreamedTensor)]
        if is_wrong:
            for part in parts:
                self.keep_call(part)
        for part in parts:
            self._uses[part.key] -= 1
            if not self._uses[part.key]:
                self._judged[part.key] = None
        self._sort_news()
        self._trim(self.window_bytes // 2)

    def let_go(self, entry: Entry) -> None:
        """A pair of an entry is read no more by the judge."""
        for part in parts_of(entry):
            if not isinstance(part.stored, StreamedTensor):
                continue
            self._looks[part.key] -= 1
            if self._looks[part.key]:
                continue
            del self._judged[part.key]
            spilled = self._spilled.pop(part.key, None)
            if spilled is not None:
                spilled.stored.file.path.unlink(missing_ok=True)
            else:
                self._spent.append(part.key)

    def keep_call(self, entry: Entry) -> None:
        """Keep an entry, and, of an output, what its layer was given; as far as it is here."""
        if len(self._wrong) < _NEAR:
            self._wrong.append(entry)
        for key in self._with_inputs(entry):
            if self._options.keep != "none" and (key in self._running().held or key in self._spilled):
                self._keep(key)

    def keep_surely(self, entry: Entry) -> None:
        """Keep an entry and what its layer was given; what is not here any more is fetched."""
        for key in self._with_inputs(entry):
            if key in self.kept:
                continue
            if key in self._running().held or key in self._spilled:
                self._keep(key)
            else:
                tensor = self._fetched.get(key) or self._fetch(key)
                self.kept[key] = tensor.moved(self._next_path())
                self._kept_bytes += tensor.spec.nbytes

    def _with_inputs(self, entry: Entry) -> list[EntryKey]:
        return [entry.key, *(() if entry.is_input else self._inputs.get(entry.call_key, ()))]

    def _keep(self, key: EntryKey) -> None:
        stream, spilled = self._running(), self._spilled.get(key)
        nbytes = (spilled or stream.held[key]).spec.nbytes
        if self._options.keep != "all" and self._kept_bytes + nbytes > self.window_bytes:
            self.not_kept += 1
            return
        self.kept[key] = spilled.moved(self._next_path()) if spilled else stream.keep(key, self._next_path())
        self._spilled.pop(key, None)
        self._kept_bytes += nbytes

    def _next_path(self) -> Path:
        return (self._options.folder or self._scratch) / self.side / shard_name(len(self.kept))

    def _sort_news(self) -> None:
        """Of what has come, what nothing is compared with may go."""
        stream = self._running()
        news, stream.news = stream.news, []
        if self._is_measuring:
            self._spent.extend(key for key in news if not self._looks[key])

    def _trim(self, most_bytes: int) -> bool:
        """Let go what nothing needs, the oldest first, until no more than so much is held; whether anything went."""
        stream, has_gone = self._running(), False
        while self._spent and stream.held_bytes > most_bytes:
            key = self._spent.popleft()
            if key not in stream.held:
                continue  # it is kept
            if self._options.keep == "all":
                self._keep(key)
            elif self._is_near_wrong(key) and self._near_bytes < self.window_bytes // _FOR_NEAR:
                self._near.append(key)
                self._near_bytes += stream.held[key].spec.nbytes
                continue
            else:
                stream.release(key)
            has_gone = True
        return has_gone

    def _make_room(self) -> bool:
        """Let go what can be, since the run cannot go on otherwise; False where nothing can."""
        self._sort_news()
        half = self.window_bytes // 2
        if self._trim(half) or self._trim(0) or self._spill(half) or self._spill(0):
            return True
        stream, has_gone = self._running(), bool(self._near)
        for key in self._near:
            if key in stream.held:
                stream.release(key)
        self._near.clear()
        self._near_bytes = 0
        return has_gone

    def _spill(self, most_bytes: int) -> bool:
        """Move what the judge may read again to the temporary directory, until no more than so much is held."""
        stream, has_gone = self._running(), False
        for key in self._judged:
            if stream.held_bytes <= most_bytes:
                break
            if key not in stream.held:
                continue  # it is kept, or spilled already
            if self._options.keep == "all":
                self._keep(key)
            else:
                path = self._scratch / "spilled" / shard_name(self._spills)
                self._spilled[key] = stream.keep(key, path, _SPILL_ELSEWHERE)
                self._spills += 1
            has_gone = True
        return has_gone

    def spilled_files(self) -> list[Path]:
        """The files of what was moved out of the window, since the judge may read it again."""
        return [tensor.stored.file.path for tensor in self._spilled.values()]

    def _is_near_wrong(self, key: EntryKey) -> bool:
        entry = self._entries.get(key)
        return entry is not None and any(w.step == key.step and _is_near(entry.layer, w.layer) for w in self._wrong)

    # --- what stays ------------------------------------------------------------------------------

    def write_kept(self, error: str | None = None) -> None:
        """Make a dump of what is kept, if anything is; ``error`` is why the comparison ended before its end."""
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
    """Whether a layer is the wrong one, a part of it, what it is a part of, or beside it."""
    parent = parent_of(wrong)
    return layer in (wrong, parent) or layer.startswith(f"{wrong}.") or (bool(parent) and parent_of(layer) == parent)
