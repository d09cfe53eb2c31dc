"""The catalogue of recognized kinds of error: ``HINTS`` lists the tests in the order in which they are tried.

To add a kind, write a function that takes a ``SampledPair`` and returns a ``Hint`` or None, in the module that it
belongs to (``linear``, ``layouts``, ``functions``, ``localized``, ``parts``, ``precision``), and add a line to
``HINTS``. The first test that returns a hint wins, so exact tests come before likely ones and narrow ones before wide
ones. A test either passes by a clear margin or returns None, since a wrong hint is worse than none
(``tests/compare/hint/test_confusion.py`` plants every kind and counts).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tensordiff.compare.hint import Hint, functions, layouts, linear, localized, parts, precision
from tensordiff.compare.hint.context import HintContext
from tensordiff.compare.hint.sample import SampledPair
from tensordiff.dump.dtypes import Array

HINTS: tuple[Callable[[SampledPair], Hint | None], ...] = (
    linear.zero,
    linear.constant,
    parts.expert_weights,
    linear.scale,
    linear.bias,
    localized.router,
    parts.softcap,
    parts.sibling,
    functions.gate_swapped,
    linear.residual,
    functions.activation,
    functions.norm_kind,
    parts.norm_groups,
    functions.weight_transposed,
    localized.one_expert,
    layouts.transposed,
    parts.sinusoids,
    layouts.shifted,
    layouts.rope_order,
    layouts.blocks,
    layouts.slices,
    layouts.heads_in_memory,
    layouts.token_rows,
    linear.bias_per_channel,
    precision.rounded,
    precision.last_bits,
    parts.padding,
    localized.groups,
    localized.tokens,
    layouts.kv_heads,
    localized.channels,
    linear.scale_per_token,
    linear.scale_per_channel,
    parts.gate_lost,
    parts.gate,
    localized.position,
    localized.all_but_one,
    localized.from_an_edge,
    localized.scattered_tokens,
    localized.later_tokens,
    linear.residual_roughly,
    parts.other_weights,
)


def find_hint(ref: Array, cand: Array, context: HintContext | None = None) -> Hint | None:
    """The kind of error that two tensors of one shape show; None if no kind is clear.

    It reads samples and takes milliseconds, so use it for the culprit or a row that a person selected, not for every
    pair.
    """
    if ref.shape != cand.shape:
        raise ValueError(f"shapes differ: {ref.shape} and {cand.shape}; reconcile them first")
    if not ref.size:
        return None
    with np.errstate(all="ignore"):
        pair = SampledPair.of(ref, cand, context or HintContext())
        # If one side is NaN or infinite and the other is not, no other number means anything.
        hint = precision.nonfinite(pair)
        if hint is not None or not pair.has_error or pair.exceeds_float64:
            return hint
        return next(filter(None, (test(pair) for test in HINTS)), None)
