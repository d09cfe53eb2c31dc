"""Tables of rotary positions, which are held to less than the floor: they are made of integers, without sums."""

from __future__ import annotations

import re

from tensordiff.align.match import Pair
from tensordiff.compare.judge.history import History
from tensordiff.compare.judge.measurement import Measurement, is_golden_judged
from tensordiff.compare.judge.verdict import GROWTH, UNITS, Verdict, floor_for, growth_of
from tensordiff.compare.row import Row

_TABLE_ROUNDINGS = 4  # half steps that a table of cosines may be off by
_TABLE = re.compile(r"rotary|(?:^|[._])rope(?:[._]|$)|RotaryEmb|RoPE", re.IGNORECASE)


def _is_table(pair: Pair) -> bool:
    """Whether a layer is named like a table of rotary positions, or its class is."""
    entry = pair.reference
    kind = (entry.origin and entry.origin.module_class) or ""
    return _TABLE.search(entry.layer.rpartition(".")[2]) is not None or _TABLE.search(kind) is not None


def wrong_table(history: History, row: Row, measured: Measurement) -> Verdict | None:
    """A table of positions that is off by more than a few roundings, in a type of few bits.

    It is made of integers, without sums, so that its error is no more than that of a rounding or two.
    """
    kind, _ = floor_for(*measured.dtypes)
    if row.is_input or row.is_exact or is_golden_judged(measured) or growth_of(kind) == GROWTH:
        return None
    limit, error = _TABLE_ROUNDINGS * UNITS[kind], measured.diff.rel_l2
    if not error > limit or history.upstream.parts_of(row.pair) or not _is_table(row.pair):
        return None
    carried = max((one.diff.rel_l2 for one in history.upstream.inputs_of(row.pair) if one.diff), default=0.0)
    if carried > limit or not history.upstream.equal_integers.get(row.pair.reference.call_key, True):
        return None
    told = f"rel_l2 {error:.1e} is more than rounding of a table of positions explains ({limit:.1e} in {kind})"
    return Verdict("diverges", told)
