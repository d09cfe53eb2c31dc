"""Clean ports, which must have no culprit.

Both sides are right: the reference is as transformers has it, and the candidate computes the same in another way and
in its own type.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from studies.captures import DUMPED, Dumped
from studies.museum.architectures import Architecture
from studies.museum.ports import ports_of
from studies.museum.recording import part_of, record
from studies.museum.trial import MIXES, compare


class Control(NamedTuple):
    """A clean pair of runs and what was said of it."""

    architecture: str
    port: str
    """In what the candidate is another port."""
    seed: int
    dtypes: tuple[str, str]
    dumped: Dumped
    verdict: str
    named: str
    """The layer that is named; empty where none is, as it should be."""
    step: int
    why: str


def try_architecture(architecture: Architecture, seed: int) -> Iterator[Control]:
    """All clean ports of an architecture, in every mix of types and every kind of dump."""
    for port in ports_of(architecture):
        question = port.question(architecture, seed)
        runs = {
            (dtype, is_port): record(dtype, architecture.build(seed, dtype), question, port.change if is_port else None)
            for dtype in {dtype for mix in MIXES for dtype in mix}
            for is_port in (False, True)
        }
        for dtypes in MIXES:
            sides = runs[dtypes[0], False], runs[dtypes[1], True]
            for dumped in DUMPED:
                _, outcome = compare(*(part_of(side, dumped, architecture) for side in sides))
                culprit = outcome.culprit
                yield Control(
                    architecture.name, port.name, seed, dtypes, dumped, outcome.verdict,
                    culprit.pair.reference.layer if culprit else "", culprit.pair.reference.step if culprit else -1,
                    culprit.verdict.why if culprit else "",
                )  # fmt: skip
