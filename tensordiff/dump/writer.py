"""Writing a dump while a model runs.

    with DumpWriter(folder, facts={"source": "hf:…", "token_ids": [1, 2]}) as writer:
        writer.add("model.layers.0-output", array)

A tensor's bytes are in a shard, and its line in the journal, before ``add`` returns: a capture that is
killed can be read up to there. Who has many at hand begins each, extends it with its bytes, and flushes
and logs them all together. Leaving the block closes the shard, writes ``manifest.json`` last and
atomically, and removes the journal. Leaving it by an exception keeps the journal and writes no
manifest, by which readers know that the dump is not whole. How a shard and a record are spelled is
decided in ``shards`` and ``manifest``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from tensordiff.dump import manifest
from tensordiff.dump.dtypes import DTYPES, name_of
from tensordiff.dump.model import EntryKey, Origin, Spec
from tensordiff.dump.names import parse_name
from tensordiff.dump.shards import Shard, create, header_bytes_for, label_bytes, views, write_all
from tensordiff.errors import WriteError, printable
from tensordiff.util.atomic_write import replace_file

_HEADER_BYTES = (256 << 10) - 8  # so that tensors begin with a page: the system takes whole ones sooner than parts
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _Begun(NamedTuple):
    """A tensor whose bytes are on their way, or there and not yet told of."""

    place: EntryKey
    spec: Spec
    origin: Origin
    begin: int
    end: int


class DumpWriter:
    """A dump being written. One thread, one ``with`` block."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        facts: Mapping[str, object] | None = None,
        *,
        overwrite: bool = False,
        shard_bytes: int = 4 << 30,
        header_bytes: int = _HEADER_BYTES,
        lasting: bool = True,
    ) -> None:
        """``lasting`` waits until the disk has it all; without, a loss of power may cost what a kill does not."""
        self._folder, self._overwrite = Path(folder), overwrite
        self._shard_bytes, self._header_bytes, self._lasting = shard_bytes, header_bytes, lasting
        self._shard: Shard | None = None
        self._shards = self._bytes = self._owed = 0
        self._journal = self._journal_end = self._lines = 0
        self._begun: list[_Begun] = []
        self._views: list[memoryview] = []
        self._records: list[str] = []
        self._places: list[EntryKey] = []
        self._seen: set[EntryKey] = set()
        self._broken = False
        self._facts = self._spelled(facts or {})
        """Each as JSON."""

    def __enter__(self) -> Self:
        with self._writing():
            self._folder.mkdir(parents=True, exist_ok=True)
            _make_room(self._folder, self._overwrite)
            self._journal = create(self._folder / manifest.JOURNAL)
            try:
                self._write_lines([f'{{"schema":{manifest.encode(manifest.SCHEMA)},"facts":{_object(self._facts)}}}'])
            except BaseException:
                os.close(self._journal)
                raise
        return self

    def add(
        self,
        name: str,
        array: ArrayLike,
        *,
        step: int = 0,
        call: int | None = None,
        module_class: str | None = None,
        source_file: str | None = None,
        source_line: int | None = None,
        injected: Sequence[str] | None = None,
    ) -> None:
        """Write one tensor. The array may be reused as soon as this returns.

        ``call`` is what the name says (``layer(2)-output``) unless given. ``injected`` names the
        reference entries whose values this tensor holds (an input) or its layer was given (an output).
        """
        array = np.asarray(array)
        origin = Origin(module_class, source_file, source_line, None if injected is None else tuple(injected))
        place = EntryKey(name, step, parse_name(name).call if call is None else call)
        self.begin(place, Spec(array.shape, array.dtype), origin)
        for view in views(array):
            self.extend(view)
            self.flush()
        self.log()

    def begin(self, place: EntryKey, spec: Spec, origin: Origin) -> None:
        """Say what the next bytes are. One that was begun before and never had all its bytes is left out."""
        spec = self._checked(place, spec)
        nbytes, label = spec.nbytes, label_bytes(place.name, spec)
        begin = self._shard_for(label, nbytes).begin(label, nbytes)
        self._begun.append(_Begun(place, spec, origin, begin, begin + nbytes))
        self._seen.add(place)
        self._owed = nbytes

    def extend(self, data: memoryview) -> None:
        """Bytes of the tensor that was begun last, to be written by ``flush``; until then they must not change."""
        self._views.append(data)
        self._owed -= len(data)

    def forget(self) -> None:
        """Let go of the bytes that are at hand and not written; the tensors that they are of are left out."""
        self._owed += sum(map(len, self._views))
        self._views = []

    def flush(self) -> None:
        """Write all the bytes that are at hand, in one go."""
        if (shard := self._shard) is not None and self._views:
            with self._writing():
                given, self._views = self._views, []
                try:
                    shard.write(given)
                except OSError:
                    self._leave_off(shard)
                    raise

    def log(self) -> None:
        """Tell in the journal of the tensors that are wholly in their shard; until then a kill loses them."""
        if (shard := self._shard) is not None and self._begun:
            with self._writing():
                self._tell(shard, self._settled(shard))

    def _settled(self, shard: Shard) -> list[_Begun]:
        """Take the tensors that are wholly in the shard from those begun, and have its header name them."""
        count = sum(begun.end <= shard.written for begun in self._begun)
        whole, self._begun = self._begun[:count], self._begun[count:]
        for place, spec, _, begin, _ in whole:
            shard.settle(manifest.shard_key(*place), spec, begin)
        return whole

    def _tell(self, shard: Shard, whole: Sequence[_Begun]) -> None:
        """Note tensors, those of which the journal has taken the line."""
        records = [manifest.record(*begun, shard.name) for begun in whole]
        before = self._lines
        try:
            self._write_lines(records)
        finally:
            told = self._lines - before
            self._records += records[:told]
            self._places += [begun.place for begun in whole[:told]]
            self._bytes += sum(begun.end - begun.begin for begun in whole[:told])

    def _leave_off(self, shard: Shard) -> None:
        """Tell of what is whole and cut off the rest; first that, for on a full disk it makes room."""
        whole = self._settled(shard)
        self._begun, self._owed = [], 0
        shard.cut()
        self._tell(shard, whole)

    def begin_part(self) -> None:
        """Write what follows into files of its own, so that ``arrange`` may move it."""
        with self._writing():
            self._close_shard()

    def arrange(self, order: Iterable[EntryKey]) -> None:
        """Put the entries of several parts into the order they ran in. Within a part they stand so already."""
        self.log()
        rank = {place: number for number, place in enumerate(order)}
        last = len(rank)
        found = sorted(zip(self._places, self._records, strict=True), key=lambda item: rank.get(item[0], last))
        self._places, self._records = [item[0] for item in found], [item[1] for item in found]

    def add_facts(self, **facts: object) -> None:
        """Say more of the run, or say it anew: what was not known when the writing began."""
        spelled = self._spelled(facts)
        with self._writing():
            self._write_lines([f'{{"facts":{_object(spelled)}}}'])
        self._facts |= spelled

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        whole = kind is None and not self._broken
        self._broken = False
        try:
            with self._writing():
                self._finish(whole)
        except WriteError:
            # What went wrong first is what the caller should hear of.
            if kind is None:
                raise
        finally:
            os.close(self._journal)
            self._broken = True

    def _finish(self, whole: bool) -> None:
        self._close_shard()
        if whole:
            self._write_manifest()
            (self._folder / manifest.JOURNAL).unlink()

    def _write_manifest(self) -> None:
        unsaid = dict.fromkeys(manifest.FACTS, "null")
        facts = {"schema": manifest.encode(manifest.SCHEMA), **unsaid, **self._facts}
        lines = "".join(f"{manifest.encode(key)}: {value},\n" for key, value in facts.items())
        entries = ",\n".join(self._records)
        _replace(self._folder, f'{{\n{lines}"entries": [\n{entries}\n]}}\n'.encode(), lasting=self._lasting)

    def _spelled(self, facts: Mapping[str, object]) -> dict[str, str]:
        """Facts as JSON, each by itself."""
        found: dict[str, str] = {}
        for key, value in facts.items():
            if key not in manifest.FACTS:
                raise self._refusal(f"no fact is called {key!r}; there are {', '.join(manifest.FACTS)}")
            try:
                found[key] = manifest.encode(value)
            except (TypeError, ValueError, RecursionError) as error:
                raise self._refusal(f"the fact {key!r} is not JSON ({error})") from error
        return found

    def _checked(self, place: EntryKey, spec: Spec) -> Spec:
        """Refuse what cannot be written; gives the dtype its one spelling, whatever the order of its bytes."""
        (name, step, call), dtype = place, DTYPES.get(name_of(spec.dtype))
        if dtype is None:
            known = ", ".join(DTYPES)
            raise self._refusal(f"{name} is of type {spec.dtype}, not written; convert it to one of {known}")
        if not manifest.are_counts(step, call):
            raise self._refusal(f"{name} has an impossible step ({step}) or call ({call})")
        if place in self._seen:
            raise self._refusal(f"{name} was written already for step {step}, call {call}; count the calls")
        return Spec(spec.shape, dtype)

    def _shard_for(self, label: int, nbytes: int) -> Shard:
        """The open shard, or the next one where this tensor would overfill it or the one before is not whole."""
        shard, is_ready = self._shard, not (self._owed or self._broken)
        if is_ready and shard is not None and shard.end + nbytes <= self._shard_bytes and shard.has_room(label):
            return shard
        with self._writing():
            self._close_shard()
            header_bytes = max(self._header_bytes, header_bytes_for(label))
            self._shard = Shard(self._folder, manifest.shard_name(self._shards), header_bytes)
            self._shards += 1
        return self._shard

    def _close_shard(self) -> None:
        if self._shard is not None:
            self.flush()
            shard, self._shard = self._shard, None
            try:
                self._leave_off(shard)
            finally:
                shard.close(lasting=self._lasting)

    def _write_lines(self, lines: Sequence[str]) -> None:
        """Put lines into the journal, behind what they tell of."""
        data = [f"{line}\n".encode() for line in lines]
        try:
            write_all(self._journal, memoryview(b"".join(data)), self._journal_end)
        finally:
            size = os.fstat(self._journal).st_size
            for line in data:
                if self._journal_end + len(line) > size:
                    break  # the disk is full; what follows would stand in the place of half a line
                self._journal_end += len(line)
                self._lines += 1

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Whatever goes wrong in here, the dump is not whole; what the disk says becomes a sentence."""
        if self._broken:
            raise self._refusal("the dump is closed, or an earlier tensor could not be written")
        try:
            yield
        except OSError as error:
            self._broken = True
            raise self._refusal(self._why(error)) from error
        except BaseException:
            self._broken = True
            raise

    def _why(self, error: OSError) -> str:
        said = (error.strerror or str(error)).lower()
        if error.errno not in _FULL:
            return f"cannot be written ({said}); check the path and its permissions"
        count, nbytes = len(self._records), self._bytes
        return (
            f"there is no room left ({said}) after {count:,} tensors, {nbytes:,} bytes; the dump can be "
            "opened up to there and is flagged as interrupted; free some space, or write elsewhere"
        )

    def _refusal(self, sentence: str) -> WriteError:
        return WriteError(printable(f"{self._folder}: {sentence}"))


def _object(spelled: Mapping[str, str]) -> str:
    """A JSON object of values that are JSON already."""
    return f"{{{','.join(f'{manifest.encode(key)}:{value}' for key, value in spelled.items())}}}"


def _make_room(folder: Path, overwrite: bool) -> None:
    """Refuse a folder with anything in it, unless that is an earlier dump which may go."""
    names = {path.name for path in folder.iterdir()}
    about = names & {manifest.MANIFEST, manifest.JOURNAL, manifest.PARTIAL_MANIFEST}
    ours = about | {name for name in names if manifest.is_shard_name(name)}
    if names and (names - ours or not about):
        raise WriteError(f"{printable(folder)}: is not empty, and not a dump of ours; choose a new folder")
    if names and not overwrite:
        raise WriteError(f"{printable(folder)}: holds a dump already; choose a new folder or allow overwriting")
    # The manifest goes first: at no moment does it describe shards that are gone.
    for name in sorted(ours, key=lambda name: (name != manifest.MANIFEST, name)):
        (folder / name).unlink()


def _replace(folder: Path, text: bytes, *, lasting: bool) -> None:
    """Put the manifest into a folder, whole or not at all."""
    replace_file(folder / manifest.MANIFEST, text, partial=folder / manifest.PARTIAL_MANIFEST, sync=lasting)
    if lasting:
        _sync(folder)


def _sync(folder: Path) -> None:
    """Make the names in a folder last through a loss of power."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
