"""What is wrong with a dump, before any number is believed.

``lint_headers`` finds what can be told without reading tensors. ``lint_values`` needs every entry read once and keeps
only a few facts of each (a digest, whether it is all zero or holds NaN), so that memory does not grow with the dump.
``compare.lint`` finds the same things from values it has measured anyway, and words them with the functions here.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np

from tensordiff.dump.arithmetic import tf32_in
from tensordiff.dump.block_chain import is_computed_between
from tensordiff.dump.dtypes import Array, is_float
from tensordiff.dump.model import CallKey, Dump, Entry, Problem
from tensordiff.errors import DumpError
from tensordiff.util.mappings import count_losses, raise_losses

Level = Literal["error", "warning", "note"]
SHOWN = 5
"""How many findings of one kind, and names in one finding, are listed; the rest are counted."""


class Finding(NamedTuple):
    """Something that makes the numbers of a dump doubtful."""

    level: Level
    where: str
    what: str
    why: str
    do: str


def nan_findings(counts: Sequence[tuple[str, int]]) -> Iterator[Finding]:
    """Findings about NaN, from the entries that hold some, in execution order, and how many each holds."""
    if counts:
        yield Finding(
            "warning", counts[0][0], f"holds {counts[0][1]} NaN{_other_entries(counts)}",
            "a NaN spreads to everything computed from it", "look for the first layer that has one",
        )  # fmt: skip


def inf_findings(counts: Sequence[tuple[str, int]]) -> Iterator[Finding]:
    """Findings about +inf, from the entries that hold some, and how many. -inf is not counted: masks consist of it."""
    if counts:
        yield Finding(
            "warning", counts[0][0], f"holds {counts[0][1]} +inf{_other_entries(counts)}",
            "it is an overflow, unless it is meant, and becomes NaN where it is subtracted or normalized",
            "look for the first layer that has one, and run that in a wider type",
        )  # fmt: skip


def _other_entries(counts: Sequence[tuple[str, int]]) -> str:
    """A phrase about the other entries that hold some."""
    names = [name for name, _ in counts[1:]]
    return (
        f", and {_count_phrase(names, 'more entry holds', 'more entries hold')} some: {listed(names)}" if names else ""
    )


def zero_findings(outputs: Sequence[str], inputs: Sequence[str]) -> Iterator[Finding]:
    """Findings about outputs and inputs that are all zero, from their names."""
    if outputs:
        yield Finding(
            "warning", listed(outputs), f"{_count_phrase(outputs, 'output is', 'outputs are')} all zero",
            "a buffer that was never written looks like this", "check that the hook ran after the kernel did",
        )  # fmt: skip
    if inputs:
        yield Finding(
            "note", listed(inputs), f"{_count_phrase(inputs, 'input is', 'inputs are')} all zero",
            "an empty cache or a first state is; activations that were recorded too early look the same",
            "check that it was copied when the layer was called",
        )  # fmt: skip


def identical_findings(groups: Iterable[Sequence[str]]) -> Iterator[Finding]:
    """Findings about groups of entries of several blocks that hold the same bytes, each in execution order."""
    yield from _first_few(
        Finding(
            "warning", listed(others), f"{'is' if len(others) == 1 else 'are'} byte for byte {first}",
            "a replayed graph or a reused buffer gives every layer the same values",
            "capture without graph replay, and copy tensors inside the hook",
        )
        for first, *others in groups
    )  # fmt: skip


def broken_chain_findings(breaks: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Findings about inputs of blocks that are not the output of the previous block, each with that output."""
    yield from _first_few(
        Finding(
            "warning", block_input, f"is not what {previous_output} gave",
            "one of the two was overwritten after it was recorded, or something runs between the blocks",
            "copy tensors inside the hook; compare the blocks' inputs, not only their outputs",
        )
        for block_input, previous_output in breaks
    )  # fmt: skip


def _first_few(findings: Iterator[Finding]) -> Iterator[Finding]:
    """The first findings of a kind, and one that counts the rest."""
    last = None
    for last in islice(findings, SHOWN):
        yield last
    if last is not None and (more := sum(1 for _ in findings)):
        yield last._replace(where="", what=f"{more} more like these")


def listed(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _count_phrase(names: Sequence[str], one: str, many: str) -> str:
    return f"{len(names)} {one if len(names) == 1 else many}"


# Numbered modules that run one after the other, unlike experts or shards.
_BLOCK = re.compile(r"(?:layers?|blocks?|(?:^|\.)h)\.(\d{1,9})$")
# Tensors that depend only on positions are the same in every block.
_SAME_IN_ALL_BLOCKS = re.compile(r"rotary|rope|position|mask|alibi|relative", re.I)
# Tensors that are often all zero: masks that hide nothing, positions, ids, empty caches.
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
    """How many elements are +inf."""


def lint_headers(dump: Dump) -> Iterator[Finding]:
    """Findings that need no tensor to be read."""
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
    if dump.statistics and not dump.is_summarized:
        yield Finding(
            "warning", "", "the dump holds statistics of tensors and no values",
            "equal statistics do not prove equal values, so it is never said to agree", "dump the values to be sure",
        )  # fmt: skip
    yield from arithmetic_findings(dump)
    yield from _problem_findings([problem for problem in dump.problems if problem.is_unread], "error")
    yield from _problem_findings([problem for problem in dump.problems if not problem.is_unread], "warning")


def arithmetic_findings(dump: Dump) -> Iterator[Finding]:
    """Findings about arithmetic that is less precise than the dtypes of the dump suggest."""
    if (where := tf32_in(dump)) != "nowhere":
        what = "matrix products" if where == "everywhere" else "convolutions"
        yield Finding(
            "warning", "", f"its float32 {what} ran in TF32",
            "TF32 keeps 10 bits of every factor: errors near 1e-3 are its own",
            "capture it again with --deterministic, which rules TF32 out",
        )  # fmt: skip
    flags: Any = dump.facts.get("flags")
    if isinstance(flags, dict) and flags.get("fp16_accumulation") is True and dump.facts.get("dtype") == "float16":
        yield Finding(
            "warning", "", "its float16 matrix products were summed in float16",
            "sums of many terms lose what float32 would keep: errors above 1e-2 may be its own",
            "set torch.backends.cuda.matmul.allow_fp16_accumulation = False",
        )  # fmt: skip


def _problem_findings(problems: Sequence[Problem], level: Level) -> Iterator[Finding]:
    """Findings about what was left out: the first few, and a count. Unread tensors are errors, as for ``compare``."""
    why = "what it holds is not compared, so the dump cannot be said to agree" if level == "error" else "it is left out"
    for problem in problems[:SHOWN]:
        if problem.do:
            yield Finding(level, problem.file, problem.sentence, "so the dump cannot be said to agree", problem.do)
        else:
            yield Finding(level, problem.file, problem.sentence, why, "dump it again, or move it out of the dump")
    if (rest := len(problems) - SHOWN) > 0:
        left = f"{rest:,} more {'file was' if rest == 1 else 'files were'} left out"
        yield Finding(level, "", left, "they are not compared", "fix those first, then lint again")


def read_facts(dump: Dump) -> Iterator[EntryFacts | Finding]:
    """Read every entry once; an unreadable one is a finding."""
    for entry in dump.entries:
        try:
            yield facts_of(entry)
        except DumpError as error:
            yield Finding("error", entry.name, str(error), "it cannot be compared", "dump it again")


def facts_of(entry: Entry) -> EntryFacts:
    """Read an entry, and keep a few facts of it."""
    before = count_losses()
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
    raise_losses(before, entry.name)
    digest = (entry.spec.dtype.name, array.size, crc)
    return EntryFacts(entry, digest, constant, constant and array.size > 0 and not first[0], nan, inf)


def chunks(array: Array) -> Iterator[Array]:
    """The elements in flat parts, so that temporary arrays stay small."""
    flat = array.reshape(-1)
    return (flat[begin : begin + _CHUNK] for begin in range(0, flat.size, _CHUNK))


def overflows(part: Array) -> int:
    """How many elements are +inf; for complex numbers, how many are infinite in any way."""
    infinite = np.isinf(part)
    with np.errstate(invalid="ignore"):  # some dtypes warn when a NaN is compared
        return int(np.count_nonzero(infinite if part.dtype.kind == "c" else infinite & (part > 0)))


def lint_values(facts: Iterable[EntryFacts]) -> Iterator[Finding]:
    """Findings from the facts of all entries."""
    read = list(facts)
    yield from nan_findings([(fact.entry.name, fact.nan) for fact in read if fact.nan])
    yield from inf_findings([(fact.entry.name, fact.inf) for fact in read if fact.inf])
    zeros = [fact.entry for fact in read if fact.is_zero and is_never_zero(fact.entry)]
    yield from zero_findings(*by_port(zeros))
    yield from identical_findings(_identical(read))
    yield from broken_chain_findings(_broken_chains(read))


def is_never_zero(entry: Entry) -> bool:
    """Whether all zeros would be suspicious: float outputs, and others whose name does not suggest a mask or index."""
    dtype = entry.spec.dtype
    if entry.spec.size == 1 or not (is_float(dtype) or dtype.kind in "iu"):
        return False
    is_activation = is_float(dtype) and not entry.is_input
    return is_activation or not _OFTEN_ZERO.search(entry.port if entry.is_input else entry.layer)


def by_port(entries: Iterable[Entry]) -> tuple[list[str], list[str]]:
    """The names of outputs, and of inputs."""
    names: tuple[list[str], list[str]] = [], []
    for entry in entries:
        names[entry.is_input].append(entry.name)
    return names


def _identical(facts: list[EntryFacts]) -> Iterator[list[str]]:
    """Groups of the same layer in several blocks with the same bytes: the capture recorded one of them twice."""
    groups: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for fact in facts:
        part = None if fact.is_constant else block_part(fact.entry)
        if part is not None:
            groups[(*part, *fact.digest)].append(fact.entry.name)
    return (names for names in groups.values() if len(names) > 1)


def block_part(entry: Entry) -> tuple[object, ...] | None:
    """A key that an output shares with its counterparts in other blocks; None if equal values are normal."""
    if entry.is_input or not is_float(entry.spec.dtype) or _SAME_IN_ALL_BLOCKS.search(entry.layer):
        return None
    layer = _NUMBER.sub("{i}", entry.layer)
    return (layer, entry.port, entry.step, entry.call) if "{i}" in layer else None


def _broken_chains(facts: list[EntryFacts]) -> Iterator[tuple[str, str]]:
    """Inputs of blocks that should hold the previous block's output and do not, if both were dumped in one shape."""
    outputs = {f.entry.call_key: f for f in facts if f.entry.port in ("output", "output_0")}
    inputs_of: dict[CallKey, list[EntryFacts]] = defaultdict(list)
    inputs_after: dict[CallKey, list[EntryFacts]] = defaultdict(list)
    for fact in facts:
        if fact.entry.is_input:
            for key, group in ((fact.entry.call_key, inputs_of), (call_of_block_before(fact.entry), inputs_after)):
                if key in outputs and fact.entry.spec == outputs[key].entry.spec:
                    group[key].append(fact)
    for before, inputs in inputs_after.items():
        block_input, previous_output = inputs[0], outputs[before]
        if any(fact.digest == previous_output.digest for fact in inputs) or _comes_from_between(
            facts, previous_output, block_input
        ):
            continue
        if not is_computed_between(
            block_input.entry, previous_output.entry, (fact.entry for fact in inputs_of[before])
        ):
            yield block_input.entry.name, previous_output.entry.name


def _comes_from_between(facts: list[EntryFacts], previous_output: EntryFacts, block_input: EntryFacts) -> bool:
    """Whether a block's input is the output of a module that ran after the previous block, such as a norm."""
    inside = f"{block_input.entry.layer}."
    between = facts[facts.index(previous_output) + 1 : facts.index(block_input)]
    return any(
        fact.digest == block_input.digest and not fact.entry.is_input and not fact.entry.layer.startswith(inside)
        for fact in between
    )


def call_of_block_before(entry: Entry) -> CallKey:
    """The same call of the previous block, ``layers.3`` for ``layers.4``; the layer is empty if there is none."""
    block = _BLOCK.search(entry.layer)
    layer = f"{entry.layer[: block.start(1)]}{int(block[1]) - 1}" if block and int(block[1]) else ""
    return CallKey(layer, entry.step, entry.call)
