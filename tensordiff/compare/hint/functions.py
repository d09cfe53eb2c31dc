"""Kinds in which both sides are known functions of the layer's input, but not the same one.

The inputs of a culprit agree, or it would not be the culprit. So it can be shown without knowing any weight that the
reference is one activation of its input and the candidate another, or one norm and another, or a product with a weight
and with its transpose, or a gated product with its two factors swapped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import permutations

import numpy as np

from tensordiff.align.expression import activations as known
from tensordiff.compare.hint import Evidence, Hint, explained
from tensordiff.compare.hint.sample import Floats, SampledPair, rms
from tensordiff.dump.dtypes import Array, is_float

ACTIVATIONS: Mapping[str, Callable[[Floats], Array]] = {
    "silu": known.silu, "gelu": known.gelu, "gelu (tanh)": known.gelu_tanh, "relu": known.relu,
    "quick gelu": lambda x: x / (1 + np.exp(-1.702 * x)), "squared relu": lambda x: np.square(known.relu(x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "tanh": np.tanh, "softplus": lambda x: np.logaddexp(x, 0),
    "nothing": lambda x: x,
}  # fmt: skip
_ENOUGH = 64  # elements needed to recognize an activation
_CLEARLY = 0.2  # share of the error that may be left unexplained on either side
_TOKENS = 256  # tokens whose products are compared
_MOST_FACTORS = 6  # tensors that are tried as factors of a gated product, each with each


def activation(pair: SampledPair) -> Hint | None:
    """The reference is one activation of its input, the candidate another."""
    for array in pair.context.given.values():
        x = _rows_of(pair, array)
        if x is None or x.size < _ENOUGH:
            continue
        made = {name: np.asarray(act(x * pair.rows.unit)) / pair.rows.unit for name, act in ACTIVATIONS.items()}
        names = [_nearest(made, side) for side in (pair.rows.ref, pair.rows.cand)]
        if names[0] != names[1] and _are_told_apart(pair, made[names[0]], made[names[1]]):
            left = rms(pair.rows.cand - made[names[1]]) / rms(pair.rows.error)
            evidence: Evidence = {"reference": names[0], "candidate": names[1], "residual": left}
            told = f"the candidate is {names[1]} of its input, the reference {names[0]}"
            return Hint("activation", f"{told}; {explained(left)}", evidence)
    return None


def _rows_of(pair: SampledPair, array: Array) -> Floats | None:
    return pair.rows_of(array) if is_float(array.dtype) else None


def _nearest(made: Mapping[str, Floats], side: Floats) -> str:
    return min(made, key=lambda name: rms(made[name] - side))


def _are_told_apart(pair: SampledPair, ref: Floats, cand: Floats) -> bool:
    """Whether each side equals its function up to rounding, and the two functions are much further apart."""
    left = max(rms(pair.rows.ref - ref), rms(pair.rows.cand - cand))
    return left <= _CLEARLY * rms(pair.rows.error) and left <= pair.noise(pair.rows)


def norm_kind(pair: SampledPair) -> Hint | None:
    """One side subtracts the mean before it normalizes (LayerNorm) and the other does not (RMSNorm), with the same
    weight."""
    if np.prod(pair.rows.ref.shape[:2]) < 4 or pair.channels < 8:
        return None
    for array in pair.context.given.values():
        x = _rows_of(pair, array)
        if x is None:
            continue
        centred = x - x.mean(-1, keepdims=True)
        whole, around = (_normed(side) for side in (x, centred))
        for kind, of_ref, of_cand in (("mean_taken_off", whole, around), ("mean_left", around, whole)):
            if hint := _normed_otherwise(pair, kind, of_ref, of_cand):
                return hint
    return None


def _normed(x: Floats) -> Floats:
    spread = np.sqrt(np.square(x).mean(-1, keepdims=True))
    return np.asarray(x / np.where(spread > 0, spread, 1.0))


def _normed_otherwise(pair: SampledPair, kind: str, of_ref: Floats, of_cand: Floats) -> Hint | None:
    """Fit weight and bias on the reference, and check that they also fit the candidate."""
    sample = pair.rows
    weight, bias = _line(of_ref, sample.ref)
    rest = sample.cand - (of_cand * weight + bias)
    if rms(sample.ref - (of_ref * weight + bias)) > _CLEARLY * rms(sample.error) or not pair.explains(
        rest, sample, 0.1
    ):
        return None
    left = rms(rest) / rms(sample.error)
    what = "subtracts the mean before it normalizes" if kind == "mean_taken_off" else "does not subtract the mean"
    told = f"the candidate {what}, as the reference does {'not' if kind == 'mean_taken_off' else ''}".rstrip()
    return Hint("norm_kind", f"{told}; {explained(left)}", {"kind": kind, "residual": left})


def _line(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """For each channel, the factor and the constant of the best fit y = factor * x + constant."""
    mean_x, mean_y = x.mean((0, 1)), y.mean((0, 1))
    spread = np.square(x - mean_x).sum((0, 1))
    both = ((x - mean_x) * (y - mean_y)).sum((0, 1))
    weight = np.divide(both, spread, where=spread > 0, out=np.zeros_like(both))
    return weight, mean_y - weight * mean_x


def weight_transposed(pair: SampledPair) -> Hint | None:
    """A square weight was applied transposed: x_i · W x_j on one side is x_j · W' x_i on the other.

    This needs only the input, not the weight. A bias adds terms that depend on only one of the two tokens.
    """
    for array in pair.context.given.values():
        x = _rows_of(pair, array)
        if x is None or not x.shape[0] * x.shape[1] >= 8 or pair.channels < 4:
            continue
        x, ref, cand = (side.reshape(-1, pair.channels)[:_TOKENS] for side in (x, pair.rows.ref, pair.rows.cand))
        products = [x @ side.T for side in (ref, cand)]
        error, rest = _uneven(products[1] - products[0]), _uneven(products[1] - products[0].T)
        if 0 < rms(rest) <= max(0.02, min(0.3, pair.noise_share)) * rms(error):
            left = rms(rest) / rms(error)
            told = "the weight was applied transposed"
            return Hint("weight_transposed", f"{told}; {explained(left)}", {"residual": left})
    return None


def _uneven(table: Floats) -> Floats:
    """A table without the parts that depend only on its row or only on its column."""
    rows, columns = table.mean(1, keepdims=True), table.mean(0, keepdims=True)
    return np.asarray(table - rows - columns + table.mean())


def gate_swapped(pair: SampledPair) -> Hint | None:
    """The activation is applied to the wrong factor: the reference is f(a) * b, the candidate f(b) * a.

    Both products must be found among tensors of the reference, since a match of only one side could be chance.
    """
    sample = pair.rows
    if sample.ref.size < _ENOUGH:
        return None
    found = ((name, pair.rows_of(array)) for name, array in {**pair.context.near, **pair.context.siblings}.items())
    tensors = [(name, rows * sample.unit) for name, rows in found if rows is not None][:_MOST_FACTORS]
    for (gate, a), (up, b) in permutations(tensors, 2):
        for name, function in ACTIVATIONS.items():
            if not _is_product(pair, sample.ref, function(a) * b) or not _is_product(
                pair, sample.cand, function(b) * a
            ):
                continue
            told = f"{name} is applied to {up}, and in the reference to {gate}: the two are swapped"
            return Hint("gate_swapped", told, {"gate": gate, "up": up, "function": name})
    return None


def _is_product(pair: SampledPair, side: Floats, made: Floats) -> bool:
    """Whether a side equals a product, except for a small rest."""
    rest = side - made / pair.rows.unit
    return rms(rest) <= 0.05 * rms(side) and pair.explains(rest, pair.rows)
