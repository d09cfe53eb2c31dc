"""Pairs that must meet less than the floor, because more is known about them: integers, tables, the first block.

Integers such as ids remain integers if one side stores them as floats: every number must be the same. The other cases
concern types of few bits.

A table of rotary positions is computed from integers, without sums, so its error is a rounding or two. The first block
of a dump that holds only blocks has no earlier pair to stand out from, but its own tokens show what rounding is: it is
even, so all tokens of a block are off by about as much, except a few that may have taken other experts. If most tokens
are many times as far off as the quietest one, that is not rounding: a bug may spare some tokens, since the first token
of a causal model sees only itself, and some rows of a batch may not be affected at all.
"""

from __future__ import annotations

import re

import numpy as np

from tensordiff.align.match import Pair
from tensordiff.compare.judge.evidence import History, Measurement, is_golden_judged
from tensordiff.compare.judge.uneven_errors import errors_of_tokens, token_errors
from tensordiff.compare.judge.verdict import GROWTH, UNITS, Verdict, floor_for, growth_for, growth_of
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.row import Row

_TABLE_ROUNDINGS = 4  # half steps that a table of cosines may be off by
_TABLE = re.compile(r"rotary|(?:^|[._])rope(?:[._]|$)|RotaryEmb|RoPE", re.IGNORECASE)
_OTHER_INTEGER = 0.5
_FEWEST = 8  # tokens
_FEW = 0.3  # share of the tokens that may have taken other experts
_TIMES = 8.0  # factor over the error of the quietest token


def _is_table(pair: Pair) -> bool:
    """Whether a layer's name or class is that of a table of rotary positions."""
    entry = pair.reference
    kind = (entry.origin and entry.origin.module_class) or ""
    return _TABLE.search(entry.layer.rpartition(".")[2]) is not None or _TABLE.search(kind) is not None


def wrong_table(history: History, row: Row, measured: Measurement) -> Verdict | None:
    """The verdict on a table of positions that is off by more than a few roundings, in a type of few bits.

    The table is computed from integers, without sums, so its error should be no more than a rounding or two.
    """
    if growth_for(measured.dtypes) == GROWTH or row.is_input or row.is_exact or is_golden_judged(measured):
        return None
    kind, _ = floor_for(*measured.dtypes)
    limit, error = _TABLE_ROUNDINGS * UNITS[kind], measured.diff.rel_l2
    if not error > limit or history.upstream.parts_of(row.pair) or not _is_table(row.pair):
        return None
    carried = max((one.diff.rel_l2 for one in history.upstream.inputs_of(row.pair) if one.diff), default=0.0)
    if carried > limit or not history.upstream.has_equal_integers(row.pair):
        return None
    told = f"rel_l2 {error:.1e} is more than rounding of a table of positions explains ({limit:.1e} in {kind})"
    return Verdict("diverges", told)


def wrong_integer(diff: Diff, dtypes: tuple[str, str]) -> Verdict | None:
    """The verdict on integers that one side stores as floats: a float that is nearer to another integer is wrong."""
    if dtypes[0] == dtypes[1]:
        return None
    kinds = [floor_for(name, name)[0] == "exact" for name in dtypes]
    if kinds[0] == kinds[1] or diff.apart or not diff.max_abs >= _OTHER_INTEGER:
        return None
    told = f"{dtypes[0]} against {dtypes[1]}: integers, of which one is off by {diff.max_abs:.3g}"
    return Verdict("diverges", told)


def uneven_block(history: History, row: Row, measured: Measurement) -> Verdict | None:
    """The verdict on a first block if most tokens are above rounding and far further off than the quietest one."""
    kind, floor = floor_for(*measured.dtypes)
    if row.is_input or measured.diff.apart or growth_of(kind) == GROWTH or measured.golden is not None:
        return None
    if history.upstream.worst is not None or not row.pair.reference.layer.rpartition(".")[2].isdigit():
        return None
    if history.upstream.has_inputs(row.pair) or history.upstream.parts_of(row.pair):
        return None
    visible = history.padding.visible(row)
    errors = errors_of_tokens(visible.ref, visible.cand) if visible else token_errors(row.pair)
    if errors is None or errors.size < _FEWEST:
        return None
    quietest, most = float(errors.min()), float(np.quantile(errors, 1 - _FEW))
    if not (most > floor.agrees and most > _TIMES * quietest):
        return None
    told = f"rel_l2 {measured.diff.rel_l2:.1e}; nothing before it was dumped, but rounding is even among tokens"
    return Verdict("diverges", f"{told}, and the best one is off by {quietest:.1e}, others by {most:.1e} and more")
