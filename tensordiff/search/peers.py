"""Layers that amplify an error although all other layers of their kind do not.

In 16-bit types a healthy layer may amplify the incoming error a few times, so an amplification of five does not make a
culprit. But all norms of a model amplify by about one, so a single norm that amplifies by five is wrong. That is known
only after all of them have been measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tensordiff.compare.judge.excuses import is_norm
from tensordiff.compare.judge.routes import is_router
from tensordiff.compare.judge.uneven_errors import even_error
from tensordiff.compare.judge.verdict import GROWTH, Verdict, floor_for, growth_for
from tensordiff.compare.row import Row

_PEERS = 4  # other layers of a kind that are needed to recognize an outlier
_TIMES_OTHERS = 3.0  # factor over the largest amplification of the others
_LEAST_AMPLIFICATION = 4.0  # least amplification of an outlier
_HALF_WRONG = 0.5  # incoming error beyond which nothing can be concluded


def with_peer_outlier(rows: Sequence[Row]) -> Sequence[Row]:
    """Let the first layer that is an outlier among its kind diverge; rows are unchanged if something already
    diverges."""
    if any(row.verdict.name == "diverges" for row in rows):
        return rows
    modules = {row.pair.reference.layer.rpartition(".")[0] for row in rows}
    kinds: defaultdict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        if _is_comparable(row) and row.pair.reference.layer not in modules:
            kinds[_kind(row), row.pair.reference.step].append(row)
    found = [outlier for group in kinds.values() if (outlier := _outlier(group, rows)) is not None]
    if not found:
        return rows
    first = min(found, key=lambda one: next(k for k, row in enumerate(rows) if row is one[0]))
    return [
        _as_culprit(row, first[1], len(kinds[_kind(row), row.pair.reference.step])) if row is first[0] else row
        for row in rows
    ]


def _is_comparable(row: Row) -> bool:
    if row.is_input or row.is_exact or row.diff is None or row.dtypes is None or not row.amplification:
        return False
    is_short = growth_for(row.computed_in or row.dtypes) != GROWTH
    return is_short and not row.after_flips and not is_router(row.pair)  # its weights jump at thresholds


def _kind(row: Row) -> str:
    """The kind of a layer: its class plus, unless it is a norm, its name within its module."""
    entry = row.pair.reference
    name = entry.layer.rpartition(".")[2]
    kind = (entry.origin.module_class if entry.origin else None) or name
    return f"{kind} {row.shape and row.shape[-1]}" if is_norm(entry) else f"{kind} {name}"


def _outlier(group: Sequence[Row], rows: Sequence[Row]) -> tuple[Row, float] | None:
    """The row that amplifies far more than all others of its group, and the largest amplification among the others."""
    if len(group) <= _PEERS:
        return None
    ordered = sorted(group, key=lambda row: row.amplification or 0.0)
    last, before = ordered[-1], ordered[-2]
    most, error = max(before.amplification or 0.0, 1.0), last.diff.rel_l2 if last.diff else 0.0
    floor = floor_for(*(last.computed_in or last.dtypes or ("float32", "float32")))[1]
    times = last.amplification or 0.0
    if not (error > floor.agrees / 2 and times >= _LEAST_AMPLIFICATION and times >= _TIMES_OTHERS * most):
        return None
    came = error / times
    given = [row for row in rows if row.is_input and row.pair.reference.call_key == last.pair.reference.call_key]
    even = max((even_error(row.pair) for row in given if row.shape == last.shape), default=0.0)
    if not given or came > _HALF_WRONG or error < _LEAST_AMPLIFICATION * even:
        return None  # explained by tokens of very different sizes
    return last, most


def _as_culprit(row: Row, most: float, peers: int) -> Row:
    error = row.diff.rel_l2 if row.diff else 0.0
    told = f"rel_l2 {error:.1e} is {row.amplification:.1f} times the error of its input"
    return row._replace(
        verdict=Verdict(
            "diverges", f"{told}, and none of the {peers - 1} others of its kind multiplies by more than {most:.1f}"
        )
    )
