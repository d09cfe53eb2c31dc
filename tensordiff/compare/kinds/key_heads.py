"""Key heads that are repeated in another order, told from what attention makes of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tensordiff.compare.kinds.places import block
from tensordiff.compare.kinds.seen import Evidence, Hint, Mask, Places, Seen, listed, rms, size


def kv_heads(seen: Seen) -> Hint | None:
    """Heads are wrong just where repeating each key head, and all of them in turn, give a head another partner.

    What attention makes of other keys is no permutation; but the heads whose partner is the same are right.
    """
    if seen.channels < 64 or len(seen.shape) > 3 or not seen.sees_all:
        return None
    for heads in _head_counts(seen.channels):
        wrong = _wrong_heads(seen, heads)
        if wrong is None:
            continue
        for kv in range(2, heads // 2 + 1):
            one_by_one, in_turn = np.arange(heads) // (heads // kv), np.arange(heads) % kv
            if heads % kv or (wrong != (one_by_one != in_turn)).any():
                continue
            if block(wrong) is None or _first_token_has_others(seen, one_by_one, in_turn):
                evidence: Evidence = {"heads": heads, "kv_heads": kv, "wrong": np.flatnonzero(wrong).tolist()}
                told = f"of {heads} heads just those are wrong ({listed(np.flatnonzero(wrong))}) that get another key"
                return Hint(
                    "kv_repeat", f"{told} head if {kv} are repeated all in turn instead of one by one", evidence
                )
    return None


def _first_token_has_others(seen: Seen, ref_heads: Places, cand_heads: Places) -> bool:
    """Whether the first token, which sees only itself, holds just the values of the other heads."""
    ref, cand = (side[0, 0].reshape(len(ref_heads), -1) for side in (seen.rows.ref, seen.rows.cand))
    values = [ref[np.flatnonzero(ref_heads == head)[0]] for head in cand_heads]
    own, other = size(cand - ref), size(cand - np.stack(values))
    swapped = [ref[np.flatnonzero(cand_heads == head)[0]] for head in ref_heads]
    return min(other, size(cand - np.stack(swapped))) <= max(0.1 * own, 2 * seen.noise_share * size(ref))


def _head_counts(channels: int) -> Iterator[int]:
    return (heads for heads in range(4, min(128, channels // 8) + 1, 2) if channels % heads == 0)


def _wrong_heads(seen: Seen, heads: int) -> Mask | None:
    """Which heads are wrong, if each is clearly right or wrong."""
    sides = (side.reshape(-1, heads, seen.channels // heads) for side in (seen.rows.ref, seen.rows.error))
    own, off = (rms(side, (0, 2)) for side in sides)
    errors = off / np.where(own > 0, own, 1.0)
    right = max(seen.floor, 2 * seen.carried)
    wrong = np.asarray(errors > 5 * right)
    return wrong if (wrong | (errors <= right)).all() and 0 < wrong.sum() < heads else None
