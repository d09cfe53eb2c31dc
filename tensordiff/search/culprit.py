"""The first culprit: where inputs agree and the output does not.

In execution order a module's parts come before the module, so the first that diverges is the
smallest that can be named; what contains it diverges too and says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensordiff.compare.engine import Row


def culprits(rows: Sequence[Row]) -> list[Row]:
    """Every row that diverges by itself, in order: not a module that only contains one that does."""
    found: list[Row] = []
    for row in rows:
        if row.verdict.name == "diverges" and not any(contains(row, inner) for inner in found):
            found.append(row)
    return found


def first_culprit(rows: Sequence[Row]) -> Row | None:
    """The first place that is wrong by itself; outputs before inputs, which nothing computes."""
    found = culprits(rows)
    return next((row for row in found if not row.is_input), found[0] if found else None)


def contains(outer: Row, inner: Row) -> bool:
    """Whether one layer is a module around another."""
    prefix, name = outer.pair.reference.layer, inner.pair.reference.layer
    return name.startswith(prefix + ".") and outer.pair.reference.step == inner.pair.reference.step
