"""Quantized parameters as numbers: what belongs to one (scales, biases) put together with it, and how coarse it is.

GGUF blocks are dequantized by their reader. MLX packs integers into ``uint32`` beside ``scales`` and ``biases``; fp8
checkpoints keep ``weight_scale_inv`` (a scale for each 128 x 128) or ``weight_scale`` beside ``weight``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tensordiff.dump.dtypes import DTYPES, Array, name_of
from tensordiff.dump.model import Spec, StoredTensor
from tensordiff.dump.readers.tools.gguf import QuantizedTensor
from tensordiff.weights.views import Concatenated, Reshaped, Rows, RowsPermuted, Stacked, Transposed, read_rows


class Quantization(NamedTuple):
    """How values were quantized, as far as it bounds their error."""

    name: str
    bits: float
    block: int
    """Elements along the last axis that share a scale."""
    is_exact_scale: bool = True
    """Whether a block's scale is kept in 16 bits or more; ggml's K types keep it in four to eight."""
    smallest: float = 0.0
    """By how much the smallest values may be off, however small they are."""


GGML = {
    2: Quantization("Q4_0", 4, 32), 3: Quantization("Q4_1", 4, 32), 6: Quantization("Q5_0", 5, 32),
    7: Quantization("Q5_1", 5, 32), 8: Quantization("Q8_0", 8, 32),
    10: Quantization("Q2_K", 2, 16, False), 11: Quantization("Q3_K", 3, 16, False),
    12: Quantization("Q4_K", 4, 32, False), 13: Quantization("Q5_K", 5, 32, False),
    14: Quantization("Q6_K", 6, 16, False),
}  # fmt: skip


class MlxPacked(NamedTuple):
    """MLX's affine quantization: ``scales * q + biases`` in groups along the last axis."""

    packed: StoredTensor
    scales: StoredTensor
    biases: StoredTensor | None
    bits: int
    group: int

    @property
    def spec(self) -> Spec:
        """As it is read: float32."""
        shape = self.packed.spec.shape
        return Spec((*shape[:-1], shape[-1] * 32 // self.bits), DTYPES["float32"])

    @property
    def quantization(self) -> Quantization:
        """How coarse it is."""
        return Quantization(f"MLX {self.bits} bits in groups of {self.group}", self.bits, self.group)

    def read(self) -> Array:
        """The values, dequantized."""
        return self.read_rows(0, self.spec.shape[0])

    def read_rows(self, start: int, stop: int) -> Array:
        """Some rows, dequantized."""
        raw = np.ascontiguousarray(read_rows(self.packed, start, stop)).astype(np.uint32)
        if 32 % self.bits == 0:
            shifts = np.arange(0, 32, self.bits, dtype=np.uint32)
            values = (raw[..., None] >> shifts) & np.uint32((1 << self.bits) - 1)
        else:  # 3, 5, 6 bits run on across words
            bits = np.unpackbits(raw.view(np.uint8).reshape(*raw.shape[:-1], -1), axis=-1, bitorder="little")
            parts = bits.reshape(*raw.shape[:-1], -1, self.bits).astype(np.uint32)
            values = (parts << np.arange(self.bits, dtype=np.uint32)).sum(-1, dtype=np.uint32)
        q = values.reshape(*raw.shape[:-1], -1, self.group).astype(np.float32)
        found = q * read_rows(self.scales, start, stop).astype(np.float32)[..., None]
        if self.biases is not None:
            found += read_rows(self.biases, start, stop).astype(np.float32)[..., None]
        return found.reshape(*raw.shape[:-1], -1)


def mlx_packed(
    packed: StoredTensor, scales: StoredTensor, biases: StoredTensor | None, told: tuple[int, int] | None
) -> MlxPacked | None:
    """MLX's packed weight, by the bits and group size that its config tells, or the only usual ones that fit."""
    words, groups = packed.spec.shape[-1], scales.spec.shape[-1]
    usual = [(bits, group) for bits in (4, 8, 6, 5, 3, 2) for group in (64, 32, 128)]
    for bits, group in [told] if told else usual:
        if bits * group * groups == words * 32:
            return MlxPacked(packed, scales, biases, bits, group)
    return None


_HALF_SMALLEST = {"float8_e4m3fn": 2.0**-10, "float8_e4m3fnuz": 2.0**-11, "float8_e5m2": 2.0**-17}


class Fp8Scaled(NamedTuple):
    """A weight in fp8 and its scales: one, one a row, or one a block of both axes."""

    weight: StoredTensor
    scale: StoredTensor

    @property
    def spec(self) -> Spec:
        """As it is read: float32."""
        return Spec(self.weight.spec.shape, DTYPES["float32"])

    @property
    def quantization(self) -> Quantization:
        """Each value is rounded by itself, so that no block matters."""
        name = name_of(self.weight.spec.dtype)
        largest = float(np.abs(self.scale.read().astype(np.float32)).max(initial=0.0))
        return Quantization(name, 0, 1, smallest=_HALF_SMALLEST.get(name, 2.0**-10) * largest)

    def read(self) -> Array:
        """The values, scaled."""
        shape = self.weight.spec.shape
        scale = self.scale.read().astype(np.float32)
        if scale.size > 1:
            scale = scale.reshape(scale.shape[0], -1)
            for axis in (0, 1):
                length = -(-shape[axis] // scale.shape[axis])
                scale = np.repeat(scale, length, axis)
            scale = scale[: shape[0], : shape[1]]
        values: Array = self.weight.read().astype(np.float32) * scale
        return values


def quantization_of(stored: StoredTensor) -> Quantization | None:
    """How a tensor, or what a view is made of, was quantized; None for plain numbers."""
    match stored:
        case QuantizedTensor():
            return GGML[stored.code]
        case MlxPacked() | Fp8Scaled():
            return stored.quantization
        case Concatenated(parts=parts) | Stacked(parts=parts):
            found = [quantization_of(part) for part in parts]
            return min((one for one in found if one), key=lambda one: one.bits, default=None)
        case Transposed(stored=inner) | Rows(stored=inner) | Reshaped(stored=inner):
            return quantization_of(inner)
        case RowsPermuted():
            return quantization_of(stored.stored)
    return None
