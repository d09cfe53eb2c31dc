"""Writing a dump while a model runs.

    with DumpWriter(folder, facts={"source": "hf:…", "token_ids": [1, 2]}) as writer:
        writer.add("model.layers.0-output", array)

A tensor's bytes are in a shard, and its line in the journal, before ``add`` returns: a capture that is
killed can be read up to there. Leaving the block closes the shard, writes ``manifest.json`` last and
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
from tensordiff.dump.dtypes import DTYPES, Array, name_of
from tensordiff.dump.files import MappedFile, Slab
from tensordiff.dump.model import Entry, Origin, Spec
from tensordiff.dump.names import parse_name
from tensordiff.dump.shards import Shard, create, header_bytes_for, write_all
from tensordiff.errors import WriteError, printable

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Place(NamedTuple):
    """What tells an entry from all others of a dump."""

    name: str
    step: int
    call: int


class DumpWriter:
    """A dump being written. One thread, one ``with`` block."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        facts: Mapping[str, object] | None = None,
        *,
        overwrite: bool = False,
        shard_bytes: int = 4 << 30,
        header_bytes: int = 256 << 10,
        lasting: bool = True,
    ) -> None:
        """``lasting`` waits until the disk has it all; without, a loss of power may cost what a kill does not."""
        self._folder, self._facts, self._overwrite = Path(folder), dict(facts or {}), overwrite
        self._shard_bytes, self._header_bytes, self._lasting = shard_bytes, header_bytes, lasting
        self._shard: Shard | None = None
        self._shards = self._bytes = 0
        self._journal = self._journal_end = 0
        self._records: list[str] = []
        self._places: list[Place] = []
        self._keys: set[str] = set()
        self._broken = False
        self._check_facts(self._facts)

    def __enter__(self) -> Self:
        with self._writing():
            self._folder.mkdir(parents=True, exist_ok=True)
            _make_room(self._folder, self._overwrite)
            self._journal = create(self._folder / manifest.JOURNAL)
            try:
                self._log({"schema": manifest.SCHEMA, "facts": self._facts})
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
        spec = self._spec(name, array)
        layer, port, said = parse_name(name)
        call = said if call is None else call
        key = self._new_key(name, step, call)
        origin = Origin(module_class, source_file, source_line, None if injected is None else tuple(injected))
        with self._writing():
            shard = self._shard_for(key, spec)
            stored = Slab(MappedFile(shard.path), shard.append(key, array), spec)
            entry = Entry(name, layer, port, call, step, stored, origin)
            self._records.append(self._log(manifest.record(entry, shard.path.name, stored.offset)))
            self._places.append(Place(name, step, call))
        self._keys.add(key)
        self._bytes += spec.nbytes

    def begin_part(self) -> None:
        """Write what follows into files of its own, so that ``arrange`` may move it."""
        with self._writing():
            if self._shard is not None:
                shard, self._shard = self._shard, None
                shard.close(lasting=self._lasting)

    def arrange(self, order: Iterable[Place]) -> None:
        """Put the entries of several parts into the order they ran in. Within a part they stand so already."""
        rank = {place: number for number, place in enumerate(order)}
        last = len(rank)
        found = sorted(zip(self._places, self._records, strict=True), key=lambda item: rank.get(item[0], last))
        self._places, self._records = [item[0] for item in found], [item[1] for item in found]

    def add_facts(self, **facts: object) -> None:
        """Say more of the run, or say it anew: what was not known when the writing began."""
        self._check_facts(facts)
        with self._writing():
            self._log({"facts": facts})
        self._facts.update(facts)

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
        if self._shard is not None:
            self._shard.close(lasting=self._lasting)
        if whole:
            self._write_manifest()
            (self._folder / manifest.JOURNAL).unlink()

    def _write_manifest(self) -> None:
        facts = {"schema": manifest.SCHEMA, **dict.fromkeys(manifest.FACTS), **self._facts}
        lines = "".join(f"{manifest.encode(key)}: {manifest.encode(value)},\n" for key, value in facts.items())
        entries = ",\n".join(self._records)
        _replace(self._folder, f'{{\n{lines}"entries": [\n{entries}\n]}}\n'.encode(), lasting=self._lasting)

    def _check_facts(self, facts: Mapping[str, object]) -> None:
        for key, value in facts.items():
            if key not in manifest.FACTS:
                raise self._refusal(f"no fact is called {key!r}; there are {', '.join(manifest.FACTS)}")
            try:
                manifest.encode(value)
            except (TypeError, ValueError, RecursionError) as error:
                raise self._refusal(f"the fact {key!r} is not JSON ({error})") from error

    def _spec(self, name: str, array: Array) -> Spec:
        dtype = DTYPES.get(name_of(array.dtype))
        if dtype is None:
            known = ", ".join(DTYPES)
            raise self._refusal(f"{name} is of type {array.dtype}, not written; convert it to one of {known}")
        return Spec(array.shape, dtype)

    def _new_key(self, name: str, step: int, call: int) -> str:
        if not manifest.are_counts(step, call):
            raise self._refusal(f"{name} has an impossible step ({step}) or call ({call})")
        key = manifest.shard_key(name, step, call)
        if key in self._keys:
            raise self._refusal(f"{name} was written already for step {step}, call {call}; count the calls")
        return key

    def _shard_for(self, key: str, spec: Spec) -> Shard:
        """The open shard, or the next one where this tensor would overfill it."""
        shard = self._shard
        if shard is not None and shard.has_room(key, spec) and shard.end + spec.nbytes <= self._shard_bytes:
            return shard
        if shard is not None:
            self._shard = None
            shard.close(lasting=self._lasting)
        header_bytes = max(self._header_bytes, header_bytes_for(key, spec))
        self._shard = Shard(self._folder / manifest.shard_name(self._shards), header_bytes)
        self._shards += 1
        return self._shard

    def _log(self, found: Mapping[str, object]) -> str:
        """Put a line into the journal, behind what it tells of."""
        line = manifest.encode(found)
        self._journal_end += write_all(self._journal, memoryview(f"{line}\n".encode()), self._journal_end)
        return line

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
    partial = folder / manifest.PARTIAL_MANIFEST
    try:
        with partial.open("xb") as file:
            file.write(text)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        partial.replace(folder / manifest.MANIFEST)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if lasting:
        _sync(folder)


def _sync(folder: Path) -> None:
    """Make the names in a folder last through a loss of power."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
