"""How coarse the types of parameters are: quantizations, and the rounding of float types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Spec, StoredTensor
from tensordiff.weights.views import read_rows

UNIT_ROUNDOFF = {
    "float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float8_e4m3fn": 2.0**-4,
    "float8_e4m3fnuz": 2.0**-4, "float8_e5m2": 2.0**-3, "float8_e5m2fnuz": 2.0**-3,
}  # fmt: skip
"""The largest relative error of rounding to a float type."""
HALF_SMALLEST_STEP = {
    "float16": 2.0**-25, "float8_e4m3fn": 2.0**-10, "float8_e5m2": 2.0**-17, "float8_e4m3fnuz": 2.0**-11,
}  # fmt: skip
"""The largest absolute error of rounding a tiny number to a float type: half of its smallest step."""
_ROWS_CHECKED = 16


class Quantization(NamedTuple):
    """How values were quantized, as far as it bounds their error."""

    name: str
    bits: float
    block: int
    """Elements along the last axis that share a scale."""
    is_exact_scale: bool = True
    """Whether a block's scale is kept in 16 bits or more; ggml's K types keep it in four to eight."""
    is_calibrated: bool = False
    """Whether values were chosen for the layer's output, so that they need not be the nearest."""


GGML = {
    2: Quantization("Q4_0", 4, 32), 3: Quantization("Q4_1", 4, 32), 6: Quantization("Q5_0", 5, 32),
    7: Quantization("Q5_1", 5, 32), 8: Quantization("Q8_0", 8, 32),
    10: Quantization("Q2_K", 2, 16, False), 11: Quantization("Q3_K", 3, 16, False),
    12: Quantization("Q4_K", 4, 32, False), 13: Quantization("Q5_K", 5, 32, False),
    14: Quantization("Q6_K", 6, 16, False),
    20: Quantization("IQ4_NL", 3.5, 32), 23: Quantization("IQ4_XS", 3.5, 32, False),
    34: Quantization("TQ1_0", 1, 256), 35: Quantization("TQ2_0", 1, 256), 39: Quantization("MXFP4", 2, 32),
    40: Quantization("NVFP4", 2, 16),
}  # fmt: skip
"""The block types of ggml, by their code in GGUF."""


class Dequantized(NamedTuple):
    """A quantized weight that a capture wrote dequantized."""

    stored: StoredTensor
    quantization: Quantization

    @property
    def spec(self) -> Spec:
        """The spec as it was written."""
        return self.stored.spec

    def read(self) -> Array:
        """The values."""
        return self.stored.read()


def declared_quantization(facts: Mapping[str, object], name: str) -> Quantization | None:
    """The quantization that a dump declares for a parameter."""
    declared = facts.get("quantization")
    if not isinstance(declared, dict):
        return None
    try:
        number, kinds = declared["parameters"][name], declared["kinds"]
        kind = kinds[number]
        bits, block = float(kind["bits"]), int(kind["block"])
        is_usable = 0 <= bits <= 8 and block > 0 and type(number) is int and number >= 0
        return Quantization(f"{kind['name']!s:.60}", bits, block, kind["is_exact_scale"] is True) if is_usable else None
    except (KeyError, IndexError, TypeError, ValueError):
        return None


def is_plausible_quantization(stored: StoredTensor, quantization: Quantization) -> bool:
    """Whether each block of the first rows has as few distinct values as the declared bits allow.

    A dump may come from a stranger, and its declaration loosens how it is judged. It is believed for blocks that are
    too short to show it.
    """
    shape = stored.spec.shape
    if len(shape) < 2 or not quantization.bits or shape[-1] % quantization.block:
        return len(shape) >= 2
    blocks = read_rows(stored, 0, min(shape[0], _ROWS_CHECKED)).astype(np.float32).reshape(-1, quantization.block)
    return max(len(np.unique(block)) for block in blocks) <= 2**quantization.bits
