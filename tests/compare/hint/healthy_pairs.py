"""What errors are planted into: random tensors of random shape, type and scale, as far off as healthy layers are."""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.hint.context import HintContext
from tensordiff.dump.dtypes import DTYPES, Array

Rng = np.random.Generator
Floats = NDArray[np.float64]
TYPES = ("float32", "float32", "bfloat16", "float16", "float64")


class Planted(NamedTuple):
    """A pair, and what else a test may need to know of it."""

    ref: Array
    cand: Array
    context: HintContext | None = None


class Ground(NamedTuple):
    """What an error is planted into."""

    ref: Floats
    rng: Rng
    dtype: str
    heads: int

    @property
    def head_size(self) -> int:
        return int(self.ref.shape[-1]) // self.heads

    @property
    def tokens(self) -> int:
        return int(self.ref.shape[-2])

    def noise(self, shape: tuple[int, ...] | None = None) -> Floats:
        """Of the reference's own size."""
        size = float(np.sqrt(np.square(self.ref).mean()))
        return self.rng.standard_normal(shape or self.ref.shape) * size

    def pair(self, cand: Floats, ref: Floats | None = None) -> Planted:
        """Both in the ground's type, and each as far from exact as a healthy layer's rounding makes it."""
        sides = (self.ref if ref is None else ref), cand
        first, second = (self.healthy(side).astype(DTYPES[self.dtype]) for side in sides)
        return Planted(first, second)

    def healthy(self, side: Floats) -> Floats:
        """With the noise that a layer computed in this type has."""
        noise = float(ml_dtypes.finfo(DTYPES[self.dtype]).eps) * np.sqrt(np.square(side[np.isfinite(side)]).mean())
        return np.where(
            np.isfinite(side) & (side != 0), side + 0.2 * noise * self.rng.standard_normal(side.shape), side
        )


def ground(seed: int, dtype: str | None = None) -> Ground:
    """Random shape, type, scale, and spread of the channels' sizes."""
    rng = np.random.default_rng(seed)
    kind = dtype or str(rng.choice(TYPES))
    heads, width = int(rng.choice([4, 6, 8])), int(rng.choice([8, 16, 32, 64]))
    shape = (*[(), (1,), (2,)][rng.integers(3)], int(rng.integers(9, 40)), heads * width)
    scale = 10.0 ** rng.uniform(-2, 2)
    spread_of_channels = np.exp(rng.uniform(0, 1) * rng.standard_normal(shape[-1]))
    ref = rng.standard_normal(shape) * scale * spread_of_channels
    return Ground(ref.astype(DTYPES[kind]).astype(np.float64), rng, kind, heads)
