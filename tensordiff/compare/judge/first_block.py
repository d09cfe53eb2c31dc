"""The first block of a dump that holds blocks alone, in few bits: nothing quiet ran before it to stand out from.

But its own tokens say what rounding is. It is even: all tokens of a block are off by about as much, but for a few that
may have taken other experts. Where most tokens are many times as far off as the quietest one, that is no rounding: the
first token of a causal model sees only itself, and rows of a batch may not be hit at all.
"""

from __future__ import annotations

import numpy as np

from tensordiff.compare.judge.history import History
from tensordiff.compare.judge.measurement import Measurement
from tensordiff.compare.judge.tokens import errors_of_tokens, token_errors
from tensordiff.compare.judge.verdict import GROWTH, Verdict, floor_for, growth_of
from tensordiff.compare.row import Row

_FEWEST = 8  # tokens
_FEW = 0.3  # share of the tokens that may have taken other experts
_TIMES = 8.0  # how much further off than the quietest token the others are


def uneven_block(history: History, row: Row, measured: Measurement) -> Verdict | None:
    """The verdict on a first block above rounding, most tokens of which are far further off than the quietest."""
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
    return Verdict("diverges", f"{told}, and the quietest is off by {quietest:.1e}, others by {most:.1e} and more")
