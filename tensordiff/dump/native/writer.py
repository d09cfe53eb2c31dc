"""Writing a dump while a model runs.

    with DumpWriter(folder, facts={"source": "hf:…", "token_ids": [1, 2]}) as writer:
        writer.add("model.layers.0-output", array)

When ``add`` returns, the tensor's bytes are in a shard and its line is in the journal: a capture that is killed can be
read up to there. Callers with many tensors at hand use ``begin`` and ``extend`` for each, then ``flush`` and ``log``
once for all. Leaving the block closes the shard, writes ``manifest.json`` last and atomically, and removes the journal.
If an exception leaves the block, the journal stays and no manifest is written; that is how readers know that the dump
is incomplete. The format of shards and records is in ``shards`` and ``manifest``.
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

from tensordiff.dump.dtypes import DTYPES, name_of
from tensordiff.dump.files import reason
from tensordiff.dump.model import EntryKey, Origin, Spec
from tensordiff.dump.names import parse_name
from tensordiff.dump.native import manifest
from tensordiff.dump.native.shards import Shard, create, header_bytes_for, row_bytes, views, write_all
from tensordiff.errors import WriteError, printable
from tensordiff.util.atomic_write import follow_link, is_temporary_name, replace_file

_HEADER_BYTES = (256 << 10) - 8  # so that tensors begin at a page: the system writes whole pages faster than parts
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _PendingTensor(NamedTuple):
    """A tensor that was begun and is not in the journal yet."""

    key: EntryKey
    spec: Spec
    origin: Origin
    begin: int
    end: int


class DumpWriter:
    """A dump being written, by one thread in one ``with`` block."""

    journal_name = manifest.JOURNAL
    reserves_space = True
    """Whether space is reserved ahead of what is written, which is quicker on a disk."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        facts: Mapping[str, object] | None = None,
        *,
        overwrite: bool = False,
        shard_bytes: int = 4 << 30,
        header_bytes: int = _HEADER_BYTES,
        durable: bool = True,
    ) -> None:
        """``durable`` waits for the disk at the end; without it, a power failure (but not a kill) may lose data."""
        self._folder, self._overwrite = Path(folder), overwrite
        self._shard_bytes, self._header_bytes, self._durable = shard_bytes, header_bytes, durable
        self._shard: Shard | None = None
        self._shards = self._bytes = self._missing = 0
        self._journal = self._journal_end = self._lines = 0
        self._pending: list[_PendingTensor] = []
        self._views: list[memoryview] = []
        self._records: list[str] = []
        self._keys: list[EntryKey] = []
        self._seen: set[EntryKey] = set()
        self._broken = False
        self._facts = self._as_json(facts or {})
        """The JSON text of each fact."""

    def __enter__(self) -> Self:
        with self._writing():
            follow_link(self._folder).mkdir(parents=True, exist_ok=True)
            _empty_folder(self._folder, self._overwrite)
            self._journal = create(self._folder / self.journal_name)
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

        ``call`` defaults to what the name says (``layer(2)-output``). ``injected`` names the reference entries whose
        values this tensor holds (an input) or its layer was given (an output).
        """
        array = np.asarray(array)
        origin = Origin(module_class, source_file, source_line, None if injected is None else tuple(injected))
        key = EntryKey(name, step, parse_name(name).call if call is None else call)
        self.begin(key, Spec(array.shape, array.dtype), origin)
        for view in views(array):
            self.extend(view)
            self.flush()
        self.log()

    def begin(self, key: EntryKey, spec: Spec, origin: Origin) -> None:
        """Announce the tensor whose bytes come next; an earlier one that never got all its bytes is left out."""
        spec = self._checked(key, spec)
        nbytes, row_size = spec.nbytes, row_bytes(key.name, spec)
        begin = self._shard_for(row_size, nbytes).begin(row_size, nbytes)
        self._pending.append(_PendingTensor(key, spec, origin, begin, begin + nbytes))
        self._seen.add(key)
        self._missing = nbytes

    def extend(self, data: memoryview) -> None:
        """Add bytes to the tensor begun last. ``flush`` writes them; until then they must not change."""
        self._views.append(data)
        self._missing -= len(data)

    def forget(self) -> None:
        """Discard the bytes that are not written yet; their tensors are left out of the dump."""
        self._missing += sum(map(len, self._views))
        self._views = []

    def flush(self) -> None:
        """Write all the bytes that were added, in one go."""
        if (shard := self._shard) is not None and self._views:
            with self._writing():
                data, self._views = self._views, []
                try:
                    shard.write(data)
                except OSError:
                    self._abandon_rest(shard)
                    raise

    def log(self) -> None:
        """Add the tensors that are complete in their shard to the journal; until then a kill loses them."""
        if (shard := self._shard) is not None and self._pending:
            with self._writing():
                self._record(shard, self._take_finished(shard))

    def _take_finished(self, shard: Shard) -> list[_PendingTensor]:
        """Move the complete tensors from the pending ones into the shard's header, and return them."""
        count = sum(pending.end <= shard.written for pending in self._pending)
        whole, self._pending = self._pending[:count], self._pending[count:]
        for key, spec, _, begin, _ in whole:
            shard.settle(manifest.shard_key(*key), spec, begin)
        return whole

    def _record(self, shard: Shard, whole: Sequence[_PendingTensor]) -> None:
        """Write tensors to the journal; only those whose line was written belong to the dump."""
        records = [manifest.record(*pending, shard.name) for pending in whole]
        before = self._lines
        try:
            self._write_lines(records)
        finally:
            logged = self._lines - before
            self._records += records[:logged]
            self._keys += [pending.key for pending in whole[:logged]]
            self._bytes += sum(pending.end - pending.begin for pending in whole[:logged])

    def _abandon_rest(self, shard: Shard) -> None:
        """Keep what is complete and cut off the rest, before writing the journal: on a full disk that makes room."""
        whole = self._take_finished(shard)
        self._pending, self._missing = [], 0
        shard.cut()
        self._record(shard, whole)

    def begin_part(self) -> None:
        """Start a new shard, so that ``arrange`` may move what follows."""
        with self._writing():
            self._close_shard()

    def arrange(self, order: Iterable[EntryKey]) -> None:
        """Put the entries of several parts into execution order. Within a part they are in order already."""
        self.log()
        rank = {key: number for number, key in enumerate(order)}
        last = len(rank)
        in_order = sorted(zip(self._keys, self._records, strict=True), key=lambda item: rank.get(item[0], last))
        self._keys, self._records = [item[0] for item in in_order], [item[1] for item in in_order]

    def add_facts(self, **facts: object) -> None:
        """Add or replace facts of the run that were not known when writing began."""
        as_json = self._as_json(facts)
        with self._writing():
            self._write_lines([f'{{"facts":{_object(as_json)}}}'])
        self._facts |= as_json

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_complete = kind is None and not self._broken
        self._broken = False
        try:
            with self._writing():
                self._finish(is_complete)
        except WriteError:
            # The first error is the one to report.
            if kind is None:
                raise
        finally:
            os.close(self._journal)
            self._broken = True

    def _finish(self, is_complete: bool) -> None:
        self._close_shard()
        if is_complete:
            self._write_manifest()
            (self._folder / self.journal_name).unlink()

    def _write_manifest(self) -> None:
        _write_whole(self._folder, _manifest_text(self._facts, self._records), durable=self._durable)

    def _as_json(self, facts: Mapping[str, object]) -> dict[str, str]:
        """The JSON text of each fact."""
        texts: dict[str, str] = {}
        for key, value in facts.items():
            if key not in manifest.FACTS:
                raise self._error(f"there is no fact {key!r}; there are {', '.join(manifest.FACTS)}")
            try:
                texts[key] = manifest.encode(value)
            except (TypeError, ValueError, RecursionError) as error:
                raise self._error(f"the fact {key!r} is not JSON ({error})") from error
        return texts

    def _checked(self, key: EntryKey, spec: Spec) -> Spec:
        """Refuse what cannot be written; returns the spec with the dtype in native byte order."""
        (name, step, call), dtype = key, DTYPES.get(name_of(spec.dtype))
        if dtype is None:
            known = ", ".join(DTYPES)
            raise self._error(f"{name} is of type {spec.dtype}, not written; convert it to one of {known}")
        if not manifest.are_counts(step, call):
            raise self._error(f"{name} has an impossible step ({step}) or call ({call})")
        if key in self._seen:
            raise self._error(f"{name} was written already for step {step}, call {call}; count the calls")
        return Spec(spec.shape, dtype)

    def _shard_for(self, row_size: int, nbytes: int) -> Shard:
        """The open shard, or a new one if this tensor does not fit or the previous one is incomplete."""
        shard, is_ready = self._shard, not (self._missing or self._broken)
        if is_ready and shard is not None and shard.end + nbytes <= self._shard_bytes and shard.has_room(row_size):
            return shard
        with self._writing():
            self._close_shard()
            header_bytes = max(self._header_bytes, header_bytes_for(row_size))
            name = manifest.shard_name(self._shards)
            self._shard = Shard(self._folder, name, header_bytes, reserves_space=self.reserves_space)
            self._shards += 1
        return self._shard

    def _close_shard(self) -> None:
        if self._shard is not None:
            self.flush()
            shard, self._shard = self._shard, None
            try:
                self._abandon_rest(shard)
            finally:
                shard.close(durable=self._durable)

    def _write_lines(self, lines: Sequence[str]) -> None:
        """Append lines to the journal, after the bytes they describe are written."""
        data = [f"{line}\n".encode() for line in lines]
        try:
            write_all(self._journal, memoryview(b"".join(data)), self._journal_end)
        finally:
            size = os.fstat(self._journal).st_size
            for line in data:
                if self._journal_end + len(line) > size:
                    break  # the disk is full; the next line must not overwrite half a line
                self._journal_end += len(line)
                self._lines += 1

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Mark the dump as broken if anything fails in the block, and turn an ``OSError`` into a sentence."""
        if self._broken:
            raise self._error("the dump is closed, or an earlier tensor could not be written")
        try:
            yield
        except OSError as error:
            self._broken = True
            raise self._error(self._reason(error)) from error
        except BaseException:
            self._broken = True
            raise

    def _reason(self, error: OSError) -> str:
        why = reason(error)
        if error.errno == errno.EFAULT:  # the system read from a mapping whose file was truncated
            return "a file that was copied from became shorter meanwhile; let its writer finish, and start again"
        if error.errno not in _FULL:
            return f"cannot be written ({why}); check the path and its permissions"
        count, nbytes = len(self._records), self._bytes
        return (
            f"there is no room left ({why}) after {count:,} tensors, {nbytes:,} bytes; the dump can be "
            "opened up to there and is flagged as interrupted; free some space, or write elsewhere"
        )

    def _error(self, sentence: str) -> WriteError:
        return WriteError(printable(f"{self._folder}: {sentence}"))


def write_manifest(folder: Path, facts: Mapping[str, object], records: Iterable[str]) -> None:
    """Make a dump of shards that are in a folder already; ``records`` are their lines of a journal, in order."""
    as_json = {key: manifest.encode(value) for key, value in facts.items() if key in manifest.FACTS}
    try:
        _write_whole(folder, _manifest_text(as_json, records), durable=True)
    except OSError as error:
        raise WriteError(
            f"{printable(folder)}: its manifest cannot be written ({reason(error)}); free some space"
        ) from error


def _manifest_text(facts: Mapping[str, str], records: Iterable[str]) -> bytes:
    """The manifest, from the JSON text of each fact and each entry."""
    unsaid = dict.fromkeys(manifest.FACTS, "null")
    every = {"schema": manifest.encode(manifest.SCHEMA), **unsaid, **facts}
    lines = "".join(f"{manifest.encode(key)}: {value},\n" for key, value in every.items())
    entries = ",\n".join(records)
    return f'{{\n{lines}"entries": [\n{entries}\n]}}\n'.encode()


def _object(as_json: Mapping[str, str]) -> str:
    """A JSON object from keys and JSON texts."""
    return f"{{{','.join(f'{manifest.encode(key)}:{value}' for key, value in as_json.items())}}}"


def _empty_folder(folder: Path, overwrite: bool) -> None:
    """Remove an earlier dump from the folder if ``overwrite`` allows; refuse anything else in it."""
    names = {path.name for path in folder.iterdir()}
    about = names & {manifest.MANIFEST, manifest.JOURNAL, manifest.PARTIAL_MANIFEST}
    ours = about | {name for name in names if manifest.is_shard_name(name) or is_temporary_name(name)}
    if names and (names - ours or not about):
        raise WriteError(f"{printable(folder)}: is not empty, and not a dump of ours; choose a new folder")
    if names and not overwrite:
        raise WriteError(
            f"{printable(folder)}: holds a dump already; choose a new folder, or allow overwriting (overwrite=True, "
            "--force)"
        )
    # The manifest goes first, so that it never describes shards that are gone.
    for name in sorted(ours, key=lambda name: (name != manifest.MANIFEST, name)):
        (folder / name).unlink()


def _write_whole(folder: Path, text: bytes, *, durable: bool) -> None:
    """Put the manifest into a folder, whole or not at all."""
    replace_file(folder / manifest.MANIFEST, text, sync=durable)
    if durable:
        _sync(folder)


def _sync(folder: Path) -> None:
    """Make the names in a folder survive a power failure."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
