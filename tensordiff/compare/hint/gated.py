"""A gated product whose two factors changed places: the activation is applied to ``up`` instead of ``gate``.

Given only where the reference is the one product and the candidate the other, both of tensors of the reference: what is
so by chance of one is not so of both.
"""

from __future__ import annotations

from itertools import permutations

from tensordiff.compare.hint import Hint
from tensordiff.compare.hint.functions import ACTIVATIONS
from tensordiff.compare.hint.sample import Floats, SampledPair, rms

_ENOUGH = 64  # elements from which a product says something
_MOST = 6  # tensors that are tried, each with each


def gate_swapped(pair: SampledPair) -> Hint | None:
    """The reference is f(a) * b, and the candidate f(b) * a."""
    sample = pair.rows
    if sample.ref.size < _ENOUGH:
        return None
    found = ((name, pair.rows_of(array)) for name, array in {**pair.context.near, **pair.context.siblings}.items())
    tensors = [(name, rows * sample.unit) for name, rows in found if rows is not None][:_MOST]
    for (gate, a), (up, b) in permutations(tensors, 2):
        for name, function in ACTIVATIONS.items():
            if not _is(pair, sample.ref, function(a) * b) or not _is(pair, sample.cand, function(b) * a):
                continue
            told = f"{name} is applied to {up}, and in the reference to {gate}: the two are swapped"
            return Hint("gate_swapped", told, {"gate": gate, "up": up, "function": name})
    return None


def _is(pair: SampledPair, side: Floats, made: Floats) -> bool:
    """Whether hardly anything is left of a side without a product."""
    rest = side - made / pair.rows.unit
    return rms(rest) <= 0.05 * rms(side) and pair.explains(rest, pair.rows)
