"""Kinds in which both sides are known functions of what the layer was given, and not the same one.

What a layer was given agrees, or the layer would be no culprit. So if the reference is one activation of it and the
candidate another, or one norm and another, or a matrix product with the weight and with its transpose, that can be
proven without knowing any weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tensordiff.align.expression import activations as known
from tensordiff.compare.hint import Evidence, Hint
from tensordiff.compare.hint.sample import Floats, SampledPair, size
from tensordiff.dump.dtypes import Array, is_float

_ACTIVATIONS: Mapping[str, Callable[[Floats], Array]] = {
    "silu": known.silu, "gelu": known.gelu, "gelu (tanh)": known.gelu_tanh, "relu": known.relu,
    "quick gelu": lambda x: x / (1 + np.exp(-1.702 * x)), "squared relu": lambda x: np.square(known.relu(x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "tanh": np.tanh, "softplus": lambda x: np.logaddexp(x, 0),
    "nothing": lambda x: x,
}  # fmt: skip
_ENOUGH = 64  # elements
_CLEARLY = 0.2  # of the error between the two, which may be left of either
_TOKENS = 256  # tokens whose products are looked at


def activation(seen: SampledPair, given: Mapping[str, Array]) -> Hint | None:
    """The reference is one activation of what came in, the candidate another."""
    for array in given.values():
        x = _beside(seen, array)
        if x is None or x.size < _ENOUGH:
            continue
        made = {name: np.asarray(act(x * seen.rows.unit)) / seen.rows.unit for name, act in _ACTIVATIONS.items()}
        names = [_nearest(made, side) for side in (seen.rows.ref, seen.rows.cand)]
        if names[0] != names[1] and _are_told_apart(seen, made[names[0]], made[names[1]]):
            left = size(seen.rows.cand - made[names[1]]) / size(seen.rows.error)
            evidence: Evidence = {"reference": names[0], "candidate": names[1], "residual": left}
            told = f"the candidate is {names[1]} of what came in, the reference {names[0]}"
            return Hint("activation", f"{told}; {left:.1e} of the difference is left then", evidence)
    return None


def _beside(seen: SampledPair, array: Array) -> Floats | None:
    return seen.beside(array) if is_float(array.dtype) else None


def _nearest(made: Mapping[str, Floats], side: Floats) -> str:
    return min(made, key=lambda name: size(made[name] - side))


def _are_told_apart(seen: SampledPair, ref: Floats, cand: Floats) -> bool:
    """Whether each side is its function to within rounding, and the two functions are much further apart."""
    left = max(size(seen.rows.ref - ref), size(seen.rows.cand - cand))
    return left <= _CLEARLY * size(seen.rows.error) and left <= seen.noise(seen.rows)


def norm_kind(seen: SampledPair, given: Mapping[str, Array]) -> Hint | None:
    """One side takes the mean off before it norms, the other does not; the weight is the same."""
    if np.prod(seen.rows.ref.shape[:2]) < 4 or seen.channels < 8:
        return None
    for array in given.values():
        x = _beside(seen, array)
        if x is None:
            continue
        centred = x - x.mean(-1, keepdims=True)
        whole, around = (_normed(side) for side in (x, centred))
        for kind, of_ref, of_cand in (("mean_taken_off", whole, around), ("mean_left", around, whole)):
            if found := _normed_otherwise(seen, kind, of_ref, of_cand):
                return found
    return None


def _normed(x: Floats) -> Floats:
    spread = np.sqrt(np.square(x).mean(-1, keepdims=True))
    return np.asarray(x / np.where(spread > 0, spread, 1.0))


def _normed_otherwise(seen: SampledPair, kind: str, of_ref: Floats, of_cand: Floats) -> Hint | None:
    """Fit the weight, and a bias, on the reference; they must serve the candidate, too."""
    look = seen.rows
    weight, bias = _line(of_ref, look.ref)
    rest = look.cand - (of_cand * weight + bias)
    if size(look.ref - (of_ref * weight + bias)) > _CLEARLY * size(look.error) or not seen.explains(rest, look, 0.1):
        return None
    left = size(rest) / size(look.error)
    what = "takes the mean off before it norms" if kind == "mean_taken_off" else "does not take the mean off"
    told = f"the candidate {what}, as the reference does {'not' if kind == 'mean_taken_off' else ''}".rstrip()
    return Hint("norm_kind", f"{told}; {left:.1e} of the difference is left then", {"kind": kind, "residual": left})


def _line(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """For each channel the factor and constant that make most of y out of x."""
    mean_x, mean_y = x.mean((0, 1)), y.mean((0, 1))
    spread = np.square(x - mean_x).sum((0, 1))
    both = ((x - mean_x) * (y - mean_y)).sum((0, 1))
    weight = np.divide(both, spread, where=spread > 0, out=np.zeros_like(both))
    return weight, mean_y - weight * mean_x


def weight_transposed(seen: SampledPair, given: Mapping[str, Array]) -> Hint | None:
    """A square weight was applied transposed: x_i · W x_j on one side is x_j · W' x_i on the other.

    That needs no weight, only what was multiplied with it. A bias adds what depends on one of the two tokens alone.
    """
    for array in given.values():
        x = _beside(seen, array)
        if x is None or not x.shape[0] * x.shape[1] >= 8 or seen.channels < 4:
            continue
        x, ref, cand = (side.reshape(-1, seen.channels)[:_TOKENS] for side in (x, seen.rows.ref, seen.rows.cand))
        products = [x @ side.T for side in (ref, cand)]
        error, rest = _uneven(products[1] - products[0]), _uneven(products[1] - products[0].T)
        if 0 < size(rest) <= max(0.02, min(0.3, seen.noise_share)) * size(error):
            left = size(rest) / size(error)
            told = "the weight was applied transposed"
            return Hint("weight_transposed", f"{told}; {left:.1e} of the difference is left then", {"residual": left})
    return None


def _uneven(table: Floats) -> Floats:
    """What is left of a table without what depends on its rows or on its columns alone."""
    rows, columns = table.mean(1, keepdims=True), table.mean(0, keepdims=True)
    return np.asarray(table - rows - columns + table.mean())
