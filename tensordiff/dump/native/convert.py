"""Converting any dump into one of ours, or into a safetensors file, one tensor at a time.

Layer, port, call and step become part of a tensor's name as our own captures spell them, so what a reader found out
about a foreign dump is kept. A dump whose order is not known says so after conversion, too. A safetensors file gets its
final name when it is complete; one of our dumps has no manifest until then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

from tensordiff.dump.dtypes import name_of
from tensordiff.dump.files import reason
from tensordiff.dump.model import Dump, Entry, EntryKey, Origin, Problem, Spec
from tensordiff.dump.native.manifest import shard_key
from tensordiff.dump.native.shards import views
from tensordiff.dump.native.writer import DumpWriter
from tensordiff.dump.readers.safetensors import CODES, FACTS_KEY, MAX_HEADER_BYTES, SUFFIX
from tensordiff.errors import DumpError, WriteError, printable
from tensordiff.util.atomic_write import follow_link, replacing

Step = Entry | Problem
"""What was written, or could not be."""

_CODES = {name_of(dtype): code for code, dtype in CODES.items() if code != "F4"}


def convert(dump: Dump, target: Path, *, overwrite: bool = False) -> Iterator[Step]:
    """Write a dump to a new folder, or to a file whose name ends in ``.safetensors``."""
    if dump.statistics:
        raise WriteError(f"{printable(dump.path)}: holds statistics and no values; there are no tensors to write")
    dump = replace(dump, entries=(*dump.entries, *dump.parameters), parameters=())
    if target.name.lower().endswith(SUFFIX):
        return _to_safetensors(dump, target, overwrite)
    return _to_folder(dump, target, overwrite)


def names_of(dump: Dump) -> list[EntryKey]:
    """A key for each entry that spells layer, port and call; the entry's own name if that would not be unique."""
    keys: list[EntryKey] = []
    seen: set[EntryKey] = set()
    for entry in dump.entries:
        call = f"({entry.call})" if entry.call > 1 else ""
        key = EntryKey(f"{entry.layer}{call}-{entry.port}", entry.step, entry.call)
        if key in seen:
            key = key._replace(name=f"{entry.name}")
        number = 2
        while key in seen:
            key, number = key._replace(name=f"{entry.name}~{number}"), number + 1
        seen.add(key)
        keys.append(key)
    return keys


def _to_folder(dump: Dump, folder: Path, overwrite: bool) -> Iterator[Step]:
    facts = _facts(dump) | ({} if dump.ordered else {"order": "unknown"})
    with DumpWriter(folder, facts, overwrite=overwrite) as writer:
        for key, entry in zip(names_of(dump), dump.entries, strict=True):
            origin = entry.origin or Origin()
            try:
                array = entry.read()
            except DumpError as error:
                yield Problem(entry.name, str(error), is_unread=True)
                continue
            writer.add(
                key.name, array, step=key.step, call=key.call, module_class=origin.module_class,
                source_file=origin.source_file, source_line=origin.source_line, injected=origin.injected,
            )  # fmt: skip
            yield entry


_KEPT = ("token_ids", "prompt", "dtype", "device", "versions", "source")
_SIGNATURE = "signature"


def _facts(dump: Dump) -> dict[str, object]:
    """What is known about the run: for our dumps all facts but the signature; for others a few."""
    if dump.format == "tensordiff":
        return {key: value for key, value in dump.facts.items() if key != _SIGNATURE}
    return {"framework": dump.format} | {key: dump.facts[key] for key in _KEPT if key in dump.facts}


def _to_safetensors(dump: Dump, target: Path, overwrite: bool) -> Iterator[Step]:
    """Write a safetensors file.

    Specs are known before values, so the header comes first and values follow as they are read.
    """
    if target.exists() and not overwrite:
        raise WriteError(f"{printable(target)}: is there already; choose a new name or allow overwriting (--force)")
    rows: list[tuple[str, Entry, Spec]] = []
    for key, entry in zip(names_of(dump), dump.entries, strict=True):
        try:
            spec = entry.spec
        except DumpError as error:
            yield Problem(entry.name, str(error), is_unread=True)
            continue
        if name_of(spec.dtype) not in _CODES:
            why = f"is {name_of(spec.dtype)}, which safetensors does not hold; write a folder instead"
            yield Problem(entry.name, why, is_unread=True)
            continue
        rows.append((shard_key(*key), entry, spec))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(follow_link(target)) as file:
            file.write(_header(target, rows, _metadata(dump, [name for name, _, _ in rows])))
            for _, entry, spec in rows:
                _write(file, entry, spec)
                yield entry
    except OSError as error:
        raise WriteError(
            f"{printable(target)}: cannot be written ({reason(error)}); check the path and its space"
        ) from error


def _write(file: IO[bytes], entry: Entry, spec: Spec) -> None:
    array = entry.read()
    if Spec(array.shape, array.dtype.newbyteorder("=")) != spec:
        raise WriteError(f"{printable(entry.name)}: its values are not what its header says; nothing was written")
    for view in views(array):
        file.write(view)


def _metadata(dump: Dump, names: list[str]) -> dict[str, str]:
    facts = {FACTS_KEY: json.dumps(_facts(dump))} if dump.format == "tensordiff" else {}
    return facts | ({"order": json.dumps(names)} if dump.ordered else {})


def _header(target: Path, rows: list[tuple[str, Entry, Spec]], metadata: dict[str, str]) -> bytes:
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    begin = 0
    for name, _, spec in rows:
        if name in header:
            twice = f"two tensors would be called {printable(name)}"
            raise WriteError(f"{printable(target)}: {twice}; write a folder instead")
        end = begin + spec.nbytes
        header[name] = {"dtype": _CODES[name_of(spec.dtype)], "shape": list(spec.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise WriteError(f"{printable(target)}: has too many tensors for one file; write a folder instead")
    return len(text).to_bytes(8, "little") + text


__all__ = ["convert", "names_of"]
