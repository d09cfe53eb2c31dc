"""What the dumps say of their runs, side by side, and what was asked of the comparison."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tensordiff import __version__
from tensordiff.errors import printable
from tensordiff.report.compared import Asked
from tensordiff.report.words import cut

_LONGEST = 200


class Fact(NamedTuple):
    """One thing both runs may say of themselves; empty where one does not."""

    name: str
    reference: str
    candidate: str

    @property
    def differs(self) -> bool:
        """Whether both say it, and not the same."""
        return bool(self.reference and self.candidate) and self.reference != self.candidate


def facts_of_both(reference: Mapping[str, object], candidate: Mapping[str, object]) -> tuple[Fact, ...]:
    """Everything either dump says, by name, in the reference's order."""
    ours, theirs = dict(_flat(reference)), dict(_flat(candidate))
    names = dict.fromkeys((*ours, *theirs))
    return tuple(Fact(printable(name), ours.get(name, ""), theirs.get(name, "")) for name in names)


def _flat(facts: Mapping[str, object], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif value is not None:
            yield f"{before}{name}", cut(printable(_text(value)), _LONGEST)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def settings_of(asked: Asked) -> tuple[tuple[str, str], ...]:
    """How the comparison was made: what the user said, and by which tensordiff."""
    limits = asked.limits
    said = (
        ("rules", asked.rules), ("tolerances", asked.tolerances), ("injected", asked.injected),
        ("golden", asked.golden), ("atol", limits.tolerance and limits.tolerance.atol),
        ("rtol", limits.tolerance and limits.tolerance.rtol), ("threshold", limits.threshold),
        ("step", asked.step), ("only", asked.only), ("tensordiff", __version__),
    )  # fmt: skip
    return tuple((name, printable(value)) for name, value in said if value is not None)
