"""Values that llama.cpp computes or lays out unlike transformers: GELU, and the heads of a rotary embedding.

On the CPU, ggml looks GELU up in a table of float16 numbers. Its result is off by 3e-4 in every port, which would look
like an error of every model that uses it. See docs/decisions/0066-gelu-of-llama-cpp.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensordiff.dump.dtypes import Array

GELU, GEGLU = "GELU", "GEGLU"
_SQRT_2_OVER_PI, _CUBIC = 0.79788456080286535588, 0.044715


def gelu(x: Array) -> Array:
    """GELU in its tanh approximation, which is what ggml calls GELU."""
    wide = x.astype(np.float64)
    exact: Array = 0.5 * wide * (1 + np.tanh(_SQRT_2_OVER_PI * wide * (1 + _CUBIC * wide * wide)))
    return exact.astype(x.dtype)


def gelu_output(op: str, sources: Sequence[Array], *, is_swapped: bool = False) -> Array:
    """The output of a GELU or GEGLU node. GEGLU takes gate and up as two tensors, or side by side in one."""
    if op == GELU:
        return gelu(sources[0])
    gate, up = sources if len(sources) == 2 else np.split(sources[0], 2, axis=-1)[:: -1 if is_swapped else 1]
    return np.asarray(gelu(gate) * up)


def as_halves(values: Array, size: int) -> Array:
    """Reorder each head from 0 1 2 3 … to 0 2 … 1 3 …."""
    return values.reshape(*values.shape[:-1], -1, size // 2, 2).swapaxes(-1, -2).reshape(values.shape)


def as_pairs(values: Array, size: int) -> Array:
    """The inverse of ``as_halves``."""
    return values.reshape(*values.shape[:-1], -1, 2, size // 2).swapaxes(-1, -2).reshape(values.shape)
