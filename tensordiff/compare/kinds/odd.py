"""Kinds in which one side is NaN or infinite and the other is not: where, and whether a type overflowed."""

from __future__ import annotations

import numpy as np

from tensordiff.compare.kinds.places import block
from tensordiff.compare.kinds.seen import Evidence, Floats, Hint, Look, Mask, Seen, listed

_LARGEST = {"float16": 65504.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


def odd(seen: Seen) -> Hint | None:
    """NaN or infinity on one side only, and where."""
    look = seen.rows if seen.rows.odd is not None else seen.across
    if look.odd is None:
        return None
    ref, cand, apart = look.odd
    nan, side = _who(ref, cand, apart)
    kind = "nan" if nan else "inf"
    where, evidence = _where(seen, look, apart)
    evidence |= {"side": side, "elements": int(apart.sum()), "looked_at": apart.size}
    sentence = f"the {side} is {'NaN' if nan else 'infinite'} {where}"
    if not nan and side == "candidate" and (overflowed := _overflowed(ref, apart)):
        sentence += f", just where the reference is beyond what {overflowed} holds"
        evidence["overflow"] = overflowed
    return Hint(kind, sentence, evidence)


def _who(ref: Floats, cand: Floats, apart: Mask) -> tuple[bool, str]:
    """Whether it is NaN rather than infinity that stands apart, and on which side there is more of it."""
    of_ref, of_cand = (~np.isfinite(side) & apart for side in (ref, cand))
    side, values = ("reference", ref) if of_ref.sum() > of_cand.sum() else ("candidate", cand)
    return bool((np.isnan(values) & apart).any()), side


def _where(seen: Seen, look: Look, apart: Mask) -> tuple[str, Evidence]:
    if apart.all():
        return "everywhere", {"where": "everywhere"}
    by_group, by_token, by_channel = (np.asarray(apart.all(axes)) for axes in ((1, 2), (0, 2), (0, 1)))
    if (apart == by_token[None, :, None]).all():
        tokens = [int(t) for t in look.tokens[by_token]]
        told = f"in all of {len(tokens)} of {len(look.tokens)} tokens ({listed(tokens)})"
        return told, {"where": "tokens", "tokens": tokens[:100]}
    is_whole = look is seen.rows and seen.sees_all_channels
    if is_whole and (apart == by_channel).all() and (found := block(by_channel)):
        head, begin, end = found
        told = f"in channels {begin} to {end - 1} of every token" + (f", head {head}" if head is not None else "")
        return told, {"where": "channels", "channels": [begin, end]}
    if len(by_group) > 1 and (apart == by_group[:, None, None]).all():
        groups = [int(g) for g in np.flatnonzero(by_group)]
        return f"in all of {listed(groups)} of {len(by_group)} leading slices", {"where": "groups", "groups": groups}
    return f"in {int(apart.sum())} of {apart.size} scattered elements", {"where": "scattered"}


def _overflowed(ref: Floats, apart: Mask) -> str:
    """The type whose largest value parts the infinite places from the others, if one does."""
    inside, outside = np.abs(ref[apart]), np.abs(ref[~apart])
    least, most = inside.min(), outside.max(initial=0.0, where=np.isfinite(outside))
    return next((name for name, top in _LARGEST.items() if most <= 1.01 * top and least >= 0.99 * top), "")
