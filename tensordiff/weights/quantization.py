"""How coarse quantized parameters are."""

from __future__ import annotations

from typing import NamedTuple


class Quantization(NamedTuple):
    """How values were quantized, as far as it bounds their error."""

    name: str
    bits: float
    block: int
    """Elements along the last axis that share a scale."""
    is_exact_scale: bool = True
    """Whether a block's scale is kept in 16 bits or more; ggml's K types keep it in four to eight."""
    is_calibrated: bool = False
    """Whether values were chosen for what comes out of the layer, and need not be the nearest."""
