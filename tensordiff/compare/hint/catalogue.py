"""What kind of error a pair shows, from the error's shape, with the evidence for it.

The tests of the kinds are in ``kinds``; here is only the order in which they are asked: what is exact before
what is likely, the narrow before the wide. A test passes by a margin or not at all, and "no idea" (None) is
an answer. It is asked of the culprit, or of what a person points at; never of every pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tensordiff.compare.hint import Hint, functions, layouts
from tensordiff.compare.hint import layouts as key_heads
from tensordiff.compare.hint import linear as fits
from tensordiff.compare.hint import localized as experts
from tensordiff.compare.hint import localized as places
from tensordiff.compare.hint import precision as rounding
from tensordiff.compare.hint.precision import odd
from tensordiff.compare.hint.sample import SampledPair
from tensordiff.dump.dtypes import Array

_EXACT_INTEGERS = 2.0**53
_BEFORE_CONTEXT: tuple[Callable[[SampledPair], Hint | None], ...] = (fits.zero, fits.constant, fits.scale, fits.bias)
_OF_WHAT_CAME_IN = (functions.activation, functions.norm_kind, functions.weight_transposed)
_AFTER_CONTEXT: tuple[Callable[[SampledPair], Hint | None], ...] = (
    layouts.transposed,
    layouts.shifted,
    layouts.rope_order,
    layouts.blocks,
    layouts.slices,
    layouts.heads_in_memory,
    layouts.token_rows,
    fits.bias_per_channel,
    rounding.rounded,
    rounding.last_bits,
    places.tokens,
    key_heads.kv_heads,
    places.channels,
    places.groups,
    fits.scale_per_token,
    fits.scale_per_channel,
    places.position,
    places.all_but_one,
    places.from_an_edge,
)


@dataclass(frozen=True)
class HintContext:
    """What is known beside a pair; all of it may be empty."""

    near: Mapping[str, Array] = field(default_factory=dict)
    """Tensors of the reference, by name, that the candidate may have lost or added twice."""
    given: Mapping[str, Array] = field(default_factory=dict)
    """What the layer itself was given, in the reference."""
    routes: tuple[tuple[Array, Array], ...] = ()
    """Which experts each token was sent to, on both sides, where the layer is of a mixture."""
    is_router: bool = False
    """Whether the layer itself chose them."""
    carried: float = 0.0
    """The error of what came in."""


def find_hint(
    ref: Array, cand: Array, context: Mapping[str, Array] | None = None, around: HintContext | None = None
) -> Hint | None:
    """What kind of error two tensors of one shape show; None if no kind stands clear.

    ``context`` are tensors, by name, that the candidate may have lost or added twice: the layer's inputs. What else is
    known is ``around``.
    """
    if ref.shape != cand.shape:
        raise ValueError(f"shapes differ: {ref.shape} and {cand.shape}; reconcile them first")
    if not ref.size:
        return None
    known = around or HintContext(near=context or {})
    with np.errstate(all="ignore"):
        return next(filter(None, _asked(SampledPair.of(ref, cand, known.carried), known)), None)


def _asked(seen: SampledPair, known: HintContext) -> Iterator[Hint | None]:
    """The answers of the tests, one after the other."""
    yield (found := odd(seen))
    looks = seen.rows, seen.across
    if found or not any(look.error.any() for look in looks) or _is_beyond_floats(seen):
        return
    yield from (test(seen) for test in _BEFORE_CONTEXT)
    if known.is_router:
        yield experts.other_routes(known.routes)
    yield fits.residual(seen, known.near)
    yield from (test(seen, known.given) for test in _OF_WHAT_CAME_IN)
    yield experts.one_expert(seen, [ref for ref, _ in known.routes])
    yield from (test(seen) for test in _AFTER_CONTEXT)
    yield fits.about_a_residual(seen, known.near)


def _is_beyond_floats(seen: SampledPair) -> bool:
    """Whether these are integers whose differences float64 cannot tell."""
    is_wide = any(dtype.kind in "iu" and dtype.itemsize == 8 for dtype in seen.dtypes)
    return is_wide and seen.rows.unit >= _EXACT_INTEGERS
