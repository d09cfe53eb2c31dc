"""A finding, and the words of those that come from values.

Values are looked at in two places: ``dump.lint`` reads every byte of one dump, ``compare.lint_rows`` has what was
measured of a pair anyway. Both find the same things, and say them here.

What is wrong with one dump, before any number is believed.

``lint_headers`` asks what can be told without reading tensors. ``lint_values`` reads every entry
once and keeps a few facts of each (a digest, whether it is all zero or holds NaN), so that memory
does not grow with the dump.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np

from tensordiff.dump.dtypes import Array, is_float
from tensordiff.dump.model import CallKey, Dump, Entry
from tensordiff.errors import DumpError

Level = Literal["error", "warning", "note"]
SHOWN = 5
"""Findings of one kind, and names in one finding, that are told one by one; the others are counted."""


class Finding(NamedTuple):
    """Something that makes numbers less than true."""

    level: Level
    where: str
    what: str
    why: str
    do: str


def nan_findings(held: Sequence[tuple[str, int]]) -> Iterator[Finding]:
    """Entries, in execution order, and how many NaN each holds."""
    if held:
        yield Finding(
            "warning", held[0][0], f"holds {held[0][1]} NaN{_others(held)}",
            "a NaN spreads to everything computed from it", "look for the first layer that has one",
        )  # fmt: skip


def inf_findings(held: Sequence[tuple[str, int]]) -> Iterator[Finding]:
    """Entries, in execution order, and how many +inf each holds; -inf is what masks are made of."""
    if held:
        yield Finding(
            "warning", held[0][0], f"holds {held[0][1]} +inf{_others(held)}",
            "it is an overflow, unless it is meant, and becomes NaN where it is subtracted or normalized",
            "look for the first layer that has one, and run that in a wider type",
        )  # fmt: skip


def _others(held: Sequence[tuple[str, int]]) -> str:
    """Who else holds some."""
    names = [name for name, _ in held[1:]]
    return f", and {_counted(names, 'more entry holds', 'more entries hold')} some: {listed(names)}" if names else ""


def zero_findings(outputs: Sequence[str], inputs: Sequence[str]) -> Iterator[Finding]:
    """Entries of nothing but zeros."""
    if outputs:
        yield Finding(
            "warning", listed(outputs), f"{_counted(outputs, 'output is', 'outputs are')} all zero",
            "a buffer that was never written looks like this", "check that the hook ran after the kernel did",
        )  # fmt: skip
    if inputs:
        yield Finding(
            "note", listed(inputs), f"{_counted(inputs, 'input is', 'inputs are')} all zero",
            "an empty cache or a first state is; activations that were recorded too early look the same",
            "check that it was copied when the layer was called",
        )  # fmt: skip


def identical_findings(groups: Iterable[Sequence[str]]) -> Iterator[Finding]:
    """Entries of several blocks that hold the same bytes, each group in execution order."""
    yield from _few(
        Finding(
            "warning", listed(others), f"{'is' if len(others) == 1 else 'are'} byte for byte {first}",
            "a replayed graph or a reused buffer gives every layer the same values",
            "capture without graph replay, and copy tensors inside the hook",
        )
        for first, *others in groups
    )  # fmt: skip


def broken_chain_findings(breaks: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Inputs of blocks, each with the output of the block before, which it should be."""
    yield from _few(
        Finding(
            "warning", given, f"is not what {gave} gave",
            "one of the two was overwritten after it was recorded, or something runs between the blocks",
            "copy tensors inside the hook; compare the blocks' inputs, not only their outputs",
        )
        for given, gave in breaks
    )  # fmt: skip


def _few(findings: Iterator[Finding]) -> Iterator[Finding]:
    """The first of a kind, and one that counts the rest."""
    last = None
    for last in islice(findings, SHOWN):
        yield last
    if last is not None and (more := sum(1 for _ in findings)):
        yield last._replace(where="", what=f"{more} more like these")


def listed(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _counted(names: Sequence[str], one: str, many: str) -> str:
    return f"{len(names)} {one if len(names) == 1 else many}"


# Numbered things that run one after the other, unlike experts or shards.
_BLOCK = re.compile(r"(?:layers?|blocks?|(?:^|\.)h)\.(\d{1,9})$")
# What depends on positions alone is rightly the same in every block.
_SHARED = re.compile(r"rotary|rope|position|mask|alibi|relative", re.I)
# What may well be nothing but zeros: masks that hide nothing, places, ids, and what is yet empty.
_OFTEN_ZERO = re.compile(r"mask|bias|alibi|position|cache|past|ids?$|types?$|ind(ex|ices)|len|offset|step", re.I)
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")
_CHUNK = 1 << 18


class EntryFacts(NamedTuple):
    """What is kept of an entry that was read."""

    entry: Entry
    digest: tuple[object, ...]
    is_constant: bool
    is_zero: bool
    nan: int
    inf: int
    """How many +inf."""


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
    for problem in dump.problems[:SHOWN]:
        yield Finding("warning", problem.file, problem.sentence, "it is left out", "dump it again, or remove it")
    if len(dump.problems) > SHOWN:
        rest = len(dump.problems) - SHOWN
        yield Finding(
            "warning", "", f"{rest} more files were left out", "they are not compared", "mend those, and look again"
        )


def read_facts(dump: Dump) -> Iterator[EntryFacts | Finding]:
    """Read every entry once; an unreadable one is a finding."""
    for entry in dump.entries:
        try:
            yield facts_of(entry)
        except DumpError as error:
            yield Finding("error", entry.name, str(error), "it cannot be compared", "dump it again")


def facts_of(entry: Entry) -> EntryFacts:
    """The few facts kept of an entry."""
    array = entry.read()
    first = array.reshape(-1)[:1]
    crc, constant, nan, inf = 0, True, 0, 0
    for part in chunks(array):
        crc = zlib.crc32(np.ascontiguousarray(part).view(np.uint8).data, crc)
        with np.errstate(all="ignore"):
            constant = constant and bool((part == first).all())
            if is_float(array.dtype):
                nan += int(np.count_nonzero(np.isnan(part)))
                inf += overflows(part)
    digest = (entry.spec.dtype.name, array.size, crc)
    return EntryFacts(entry, digest, constant, constant and array.size > 0 and not first[0], nan, inf)


def chunks(array: Array) -> Iterator[Array]:
    """Flat parts, small enough that what is computed of them is."""
    flat = array.reshape(-1)
    return (flat[begin : begin + _CHUNK] for begin in range(0, flat.size, _CHUNK))


def overflows(part: Array) -> int:
    """How many are +inf; of complex numbers, infinite anyhow."""
    infinite = np.isinf(part)
    return int(np.count_nonzero(infinite if part.dtype.kind == "c" else infinite & (part > 0)))


def lint_values(facts: Iterable[EntryFacts]) -> Iterator[Finding]:
    """Findings from the facts of all entries."""
    kept = list(facts)
    yield from nan_findings([(fact.entry.name, fact.nan) for fact in kept if fact.nan])
    yield from inf_findings([(fact.entry.name, fact.inf) for fact in kept if fact.inf])
    zeros = [fact.entry for fact in kept if fact.is_zero and is_never_zero(fact.entry)]
    yield from zero_findings(*by_port(zeros))
    yield from identical_findings(_identical(kept))
    yield from broken_chain_findings(_breaks(kept))


def is_never_zero(entry: Entry) -> bool:
    """Whether a healthy run never has nothing but zeros here: outputs in floats, and what is not named as if it may."""
    dtype = entry.spec.dtype
    if entry.spec.size == 1 or not (is_float(dtype) or dtype.kind in "iu"):
        return False
    is_activation = is_float(dtype) and not entry.is_input
    return is_activation or not _OFTEN_ZERO.search(entry.port if entry.is_input else entry.layer)


def by_port(entries: Iterable[Entry]) -> tuple[list[str], list[str]]:
    """Names of outputs, and of inputs."""
    names: tuple[list[str], list[str]] = [], []
    for entry in entries:
        names[entry.is_input].append(entry.name)
    return names


def _identical(kept: list[EntryFacts]) -> Iterator[list[str]]:
    """The same layer of two blocks never computes the same bytes: the capture saw one of them twice."""
    groups: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for fact in kept:
        place = None if fact.is_constant else block_part(fact.entry)
        if place is not None:
            groups[(*place, *fact.digest)].append(fact.entry.name)
    return (names for names in groups.values() if len(names) > 1)


def block_part(entry: Entry) -> tuple[object, ...] | None:
    """What an output has in common with its like in other blocks; None for what has none, or is rightly the same."""
    if entry.is_input or not is_float(entry.spec.dtype) or _SHARED.search(entry.layer):
        return None
    layer = _NUMBER.sub("{i}", entry.layer)
    return (layer, entry.port, entry.step, entry.call) if "{i}" in layer else None


def _breaks(kept: list[EntryFacts]) -> Iterator[tuple[str, str]]:
    """What a block gives is among what the next one gets, where both were dumped and have one shape."""
    outputs = {f.entry.call_key: f for f in kept if f.entry.port in ("output", "output_0")}
    got: dict[CallKey, list[EntryFacts]] = defaultdict(list)
    for fact in kept:
        place = call_of_block_before(fact.entry)
        if fact.entry.is_input and place in outputs and fact.entry.spec == outputs[place].entry.spec:
            got[place].append(fact)
    for place, inputs in got.items():
        if all(fact.digest != outputs[place].digest for fact in inputs):
            yield inputs[0].entry.name, outputs[place].entry.name


def call_of_block_before(entry: Entry) -> CallKey:
    """The same call of the block before, ``layers.3`` for ``layers.4``; the layer is empty where there is none."""
    found = _BLOCK.search(entry.layer)
    before = f"{entry.layer[: found.start(1)]}{int(found[1]) - 1}" if found and int(found[1]) else ""
    return CallKey(before, entry.step, entry.call)
