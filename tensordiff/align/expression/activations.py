"""Activation functions on numpy arrays of float32 and float64, accurate in the tails, too.

numpy has no error function. Ours is ``exp(-t*t)`` times a smooth factor, which a polynomial in ``(t - 3) / (t + 3)``
approximates to within float64's rounding; the polynomial is fitted once, when first needed, to the standard library's
``erfc``. Written as ``1 + tanh`` or ``1 + erf``, gelu would lose all its digits for x well below zero; as a sigmoid and
as ``erfc`` it keeps them.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.polynomial import chebyshev

from tensordiff.dump.dtypes import Array

_CENTRE, _DEGREE = 3.0, 22
_BEYOND = 28.0  # in float64, erfc is 0 above this, and 2 below its negative
_PART = 1 << 14  # elements at a time: the passes of a polynomial then stay in the processor's cache


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return np.asarray(np.maximum(x, 0))


def silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    return np.asarray(x / (1 + np.exp(-x)))


def gelu_tanh(x: Array) -> Array:
    """Gelu as approximated by tanh: ``(1 + tanh(u)) / 2`` is ``sigmoid(2 * u)``."""
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return np.asarray(x / (1 + np.exp(-2 * u)))


def gelu(x: Array) -> Array:
    """Exact gelu: x times the share of a normal distribution below x."""
    result = np.empty(x.shape, x.dtype)
    flat, out = x.reshape(-1), result.reshape(-1)
    for start in range(0, flat.size, _PART):
        part = flat[start : start + _PART].astype(np.float64)
        out[start : start + _PART] = part * erfc(part * -math.sqrt(0.5)) / 2
    return result


def erfc(x: Array) -> Array:
    """1 - erf(x), with a small relative error."""
    t = np.minimum(np.abs(x), _BEYOND)
    u = (t - _CENTRE) / (t + _CENTRE)
    tail = np.zeros_like(u)
    for coefficient in _coefficients():
        tail *= u
        tail += coefficient
    tail *= np.exp(-t * t)
    return np.where(x < 0, 2 - tail, tail)


@cache
def _coefficients() -> tuple[float, ...]:
    """The coefficients of the polynomial for erfc(t) * exp(t * t), highest power first."""
    points = chebyshev.chebpts1(_DEGREE + 1)
    values = [_scaled_erfc(_CENTRE * (1 + u) / (1 - u)) for u in points.tolist()]
    return tuple(chebyshev.cheb2poly(chebyshev.chebfit(points, values, _DEGREE))[::-1].tolist())


def _scaled_erfc(t: float) -> float:
    """erfc(t) * exp(t * t). For large t one factor vanishes as the other overflows, so a continued fraction is used."""
    if t < 12:
        return math.erfc(t) * math.exp(t * t)
    fraction = t
    for n in range(60, 0, -1):
        fraction = t + n / 2 / fraction
    return 1 / (fraction * math.sqrt(math.pi))
