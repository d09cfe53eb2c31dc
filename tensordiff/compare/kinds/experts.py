"""Kinds that experts have: one of them is wrong, or tokens are sent to others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensordiff.compare.kinds.places import token_errors
from tensordiff.compare.kinds.seen import Evidence, Hint, Seen, listed
from tensordiff.dump.dtypes import Array

_MOST = 1 << 12  # experts there may be
_NOT_BY_CHANCE = 0.2  # share of the tokens, above what near-ties may flip


def one_expert(seen: Seen, routes: Sequence[Array]) -> Hint | None:
    """The tokens that are wrong are those that were sent to one expert."""
    tokens = seen.groups * seen.tokens
    for taken in routes:
        sent = taken.reshape(-1, taken.shape[-1])
        if len(sent) != tokens or not seen.sees_all or not 0 <= sent.min() <= sent.max() < _MOST:
            continue
        if (wrong := token_errors(seen)) is None:
            return None
        fits = [int(e) for e in np.unique(sent) if ((sent == e).any(1) == wrong).all()]
        if len(fits) == 1:
            evidence: Evidence = {"expert": fits[0], "tokens": int(wrong.sum()), "of": tokens}
            told = f"just the {int(wrong.sum())} of {tokens} tokens that were sent to expert {fits[0]} are wrong"
            return Hint("one_expert", told, evidence)
    return None


def other_routes(routes: Sequence[tuple[Array, Array]]) -> Hint | None:
    """Tokens were sent to other experts."""
    for ref, cand in routes:
        if cand.dtype.kind not in "iu":
            continue  # the reference's are integers; floats beside them are something else
        apart = np.asarray(np.sort(ref, -1) != np.sort(cand, -1)).reshape(-1, ref.shape[-1])
        tokens = int(apart.any(1).sum())
        if tokens < _NOT_BY_CHANCE * len(apart):
            continue
        columns = [int(c) for c in np.flatnonzero((ref != cand).reshape(-1, ref.shape[-1]).any(0))]
        evidence: Evidence = {"tokens": tokens, "of": len(apart), "choices": columns}
        told = f"{tokens} of {len(apart)} tokens are sent to other experts (choice {listed(columns)})"
        return Hint("routes", told, evidence)
    return None
