"""What is wrong with one dump, before any number is believed.

``lint_headers`` asks what can be told without reading tensors. ``lint_values`` reads every entry
once and keeps a few facts of each (a digest, whether it is all zero or holds NaN), so that memory
does not grow with the dump.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import numpy as np

from tensordiff.dump.dtypes import Array, is_float
from tensordiff.dump.model import Dump, Entry
from tensordiff.errors import DumpError

Level = Literal["error", "warning", "note"]
_Place = tuple[str, int, int]
# Numbered things that run one after the other, unlike experts or shards.
_BLOCK = re.compile(r"(?:layers?|blocks?|(?:^|\.)h)\.(\d{1,9})$")
# What depends on positions alone is rightly the same in every block.
_SHARED = re.compile(r"rotary|rope|position|mask|alibi|relative", re.I)
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")
_CHUNK = 1 << 18
_SHOWN = 5


class Finding(NamedTuple):
    """Something that makes numbers less than true."""

    level: Level
    where: str
    what: str
    why: str
    do: str


class Facts(NamedTuple):
    """What is kept of an entry that was read."""

    entry: Entry
    digest: tuple[object, ...]
    is_constant: bool
    is_zero: bool
    nan: int
    inf: int


def lint_headers(dump: Dump) -> Iterator[Finding]:
    """Findings that need no tensor."""
    if dump.interrupted:
        yield Finding(
            "warning", "", f"the capture was interrupted after {len(dump)} entries",
            "layers that ran later are missing", "capture again to the end",
        )  # fmt: skip
    if not dump.entries:
        yield Finding("error", "", "the dump holds no tensors", "there is nothing to compare", "capture again")
    if not dump.ordered and dump.entries:
        yield Finding(
            "note", "", f"a {dump.format} dump does not say in which order its layers ran",
            "the first divergent layer is the first in the other side's order, or by name",
            "compare it with a dump that has an order",
        )  # fmt: skip
    for problem in dump.problems[:_SHOWN]:
        yield Finding("warning", problem.file, problem.sentence, "it is left out", "dump it again, or remove it")
    if len(dump.problems) > _SHOWN:
        rest = len(dump.problems) - _SHOWN
        yield Finding(
            "warning", "", f"{rest} more files were left out", "they are not compared", "see tensordiff lint --json"
        )


def read_facts(dump: Dump) -> Iterator[Facts | Finding]:
    """Read every entry once; an unreadable one is a finding."""
    for entry in dump.entries:
        try:
            yield facts_of(entry)
        except DumpError as error:
            yield Finding("error", entry.name, str(error), "it cannot be compared", "dump it again")


def facts_of(entry: Entry) -> Facts:
    """The few facts kept of an entry."""
    array = entry.read()
    first = array.reshape(-1)[:1]
    crc, constant, nan, inf = 0, True, 0, 0
    for part in _parts(array):
        crc = zlib.crc32(np.ascontiguousarray(part).view(np.uint8).data, crc)
        with np.errstate(all="ignore"):
            constant = constant and bool((part == first).all())
            if is_float(array.dtype):
                nan += int(np.count_nonzero(np.isnan(part)))
                inf += int(np.count_nonzero(np.isinf(part)))
    digest = (entry.spec.dtype.name, array.size, crc)
    return Facts(entry, digest, constant, constant and array.size > 0 and not first[0], nan, inf)


def _parts(array: Array) -> Iterator[Array]:
    flat = array.reshape(-1)
    return (flat[begin : begin + _CHUNK] for begin in range(0, flat.size, _CHUNK))


def lint_values(facts: Iterable[Facts]) -> Iterator[Finding]:
    """Findings from the facts of all entries."""
    kept = list(facts)
    yield from _odd_values(kept)
    yield from _zeros(kept)
    yield from _identical(kept)
    yield from _breaks(kept)


def _odd_values(kept: list[Facts]) -> Iterator[Finding]:
    for fact in kept:
        if fact.nan:
            yield Finding(
                "warning", fact.entry.name, f"holds {fact.nan} NaN", "a NaN spreads to everything computed from it",
                "look for the first layer that has one",
            )  # fmt: skip
            return


def _zeros(kept: list[Facts]) -> Iterator[Finding]:
    zeros = [
        fact.entry.name for fact in kept if fact.is_zero and not fact.entry.is_input and is_float(fact.entry.spec.dtype)
    ]
    if zeros:
        yield Finding(
            "warning", ", ".join(zeros[:_SHOWN]), f"{len(zeros)} outputs are all zero",
            "a buffer that was never written looks like this", "check that the hook ran after the kernel did",
        )  # fmt: skip


def _identical(kept: list[Facts]) -> Iterator[Finding]:
    """The same layer of two blocks never computes the same bytes: the capture saw one of them twice."""
    seen: dict[tuple[object, ...], str] = {}
    for fact in kept:
        entry = fact.entry
        if entry.is_input or fact.is_constant or not is_float(entry.spec.dtype) or _SHARED.search(entry.layer):
            continue
        key = (_NUMBER.sub("{i}", entry.layer), entry.port, entry.step, entry.call, *fact.digest)
        if "{i}" in str(key[0]) and key in seen:
            yield Finding(
                "warning", entry.name, f"is byte for byte {seen[key]}",
                "a replayed graph or a reused buffer gives every layer the same values",
                "capture without graph replay, and copy tensors inside the hook",
            )  # fmt: skip
            return
        seen.setdefault(key, entry.name)


def _breaks(kept: list[Facts]) -> Iterator[Finding]:
    """What a block gives is among what the next one gets, where both were dumped and have one shape."""
    outputs = {_place(f.entry, f.entry.layer): f for f in kept if f.entry.port in ("output", "output_0")}
    got: dict[_Place, list[Facts]] = defaultdict(list)
    for fact in kept:
        place = _place(fact.entry, _previous(fact.entry.layer))
        if fact.entry.is_input and place in outputs and fact.entry.spec == outputs[place].entry.spec:
            got[place].append(fact)
    for place, inputs in got.items():
        if all(fact.digest != outputs[place].digest for fact in inputs):
            yield Finding(
                "warning", inputs[0].entry.name, f"is not what {outputs[place].entry.name} gave",
                "one of the two was overwritten after it was recorded, or something runs between the blocks",
                "copy tensors inside the hook; compare the blocks' inputs, not only their outputs",
            )  # fmt: skip
            return


def _place(entry: Entry, layer: str) -> _Place:
    return layer, entry.step, entry.call


def _previous(layer: str) -> str:
    """The block before this one: ``layers.3`` for ``layers.4``; nothing for what is not a block."""
    found = _BLOCK.search(layer)
    return f"{layer[: found.start(1)]}{int(found[1]) - 1}" if found and int(found[1]) else ""
