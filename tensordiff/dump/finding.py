"""A finding, and the words of those that come from values.

Values are looked at in two places: ``dump.lint`` reads every byte of one dump, ``compare.lint_rows`` has what was
measured of a pair anyway. Both find the same things, and say them here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple

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


def nan_found(held: Sequence[tuple[str, int]]) -> Iterator[Finding]:
    """Entries, in execution order, and how many NaN each holds."""
    if held:
        yield Finding(
            "warning", held[0][0], f"holds {held[0][1]} NaN{_others(held)}",
            "a NaN spreads to everything computed from it", "look for the first layer that has one",
        )  # fmt: skip


def inf_found(held: Sequence[tuple[str, int]]) -> Iterator[Finding]:
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


def zeros_found(outputs: Sequence[str], inputs: Sequence[str]) -> Iterator[Finding]:
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


def same_found(groups: Iterable[Sequence[str]]) -> Iterator[Finding]:
    """Entries of several blocks that hold the same bytes, each group in execution order."""
    yield from _few(
        Finding(
            "warning", listed(others), f"{'is' if len(others) == 1 else 'are'} byte for byte {first}",
            "a replayed graph or a reused buffer gives every layer the same values",
            "capture without graph replay, and copy tensors inside the hook",
        )
        for first, *others in groups
    )  # fmt: skip


def breaks_found(breaks: Iterable[tuple[str, str]]) -> Iterator[Finding]:
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
