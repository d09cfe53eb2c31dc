"""Quantized parameters as numbers: a weight together with its scales and biases, and how coarse it is.

GGUF blocks are dequantized by their reader. MLX packs integers into ``uint32`` beside ``scales`` and ``biases``; fp8
checkpoints keep ``weight_scale_inv`` (a scale for each 128 x 128) or ``weight_scale`` beside ``weight``; so do int8
ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tensordiff.dump.dtypes import DTYPES, Array, name_of
from tensordiff.dump.model import Spec, StoredTensor
from tensordiff.dump.readers.tools.gguf import QuantizedTensor
from tensordiff.weights.quantization import GGML, HALF_SMALLEST_STEP, Dequantized, Quantization
from tensordiff.weights.views import Concatenated, Reshaped, Rows, RowsPermuted, Stacked, Transposed, read_rows
from tensordiff.weights.word_packed import WordPacked, unpacked


class MlxPacked(NamedTuple):
    """MLX's affine quantization: ``scales * q + biases`` in groups along the last axis."""

    packed: StoredTensor
    scales: StoredTensor
    biases: StoredTensor | None
    bits: int
    group: int

    @property
    def spec(self) -> Spec:
        """The spec as it is read: float32."""
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
        values = unpacked(read_rows(self.packed, start, stop), self.bits)
        q = values.reshape(*values.shape[:-1], self.scales.spec.shape[-1], self.group).astype(np.float32)
        found = q * read_rows(self.scales, start, stop).astype(np.float32)[..., None]
        if self.biases is not None:
            found += read_rows(self.biases, start, stop).astype(np.float32)[..., None]
        return found.reshape(values.shape)


_MLX_BITS, _MLX_GROUPS = (4, 8, 6, 5, 3, 2), (64, 32, 128)


def mlx_packed(
    packed: StoredTensor, scales: StoredTensor, biases: StoredTensor | None, declared: tuple[int, int] | None
) -> MlxPacked | None:
    """MLX's packed weight, by the bits and group size that its config declares, or the only usual ones that fit.

    None if shapes do not fit together that way: a config is as little trusted as the file.
    """
    shape, groups = packed.spec.shape, scales.spec.shape
    if not shape or not packed.spec.size or shape[:-1] != groups[:-1] or len(shape) != len(groups):
        return None
    if biases is not None and biases.spec.shape != groups:
        return None
    usual = [(bits, group) for bits in _MLX_BITS for group in _MLX_GROUPS]
    for bits, group in [declared] if declared else usual:
        if bits in _MLX_BITS and group > 0 and bits * group * groups[-1] == shape[-1] * 32:
            return MlxPacked(packed, scales, biases, bits, group)
    return None


_BLOCK = 128
"""Rows and columns that share a scale, in the checkpoints that have blocks; the last block may be smaller."""


@dataclass(frozen=True)
class _Scaled:
    """A weight in few bits and its scales, read as float32."""

    weight: StoredTensor
    scale: StoredTensor

    @property
    def spec(self) -> Spec:
        """The spec as it is read."""
        return Spec(self.weight.spec.shape, DTYPES["float32"])


class Fp8Scaled(_Scaled):
    """A weight in fp8 and its scales: a single one, one per row, or one per block of both axes."""

    @property
    def quantization(self) -> Quantization:
        """How coarse it is. Each value is rounded by itself, so the block does not matter."""
        return Quantization(name_of(self.weight.spec.dtype), 0, 1)

    def read(self) -> Array:
        """The values, scaled."""
        values: Array = self.weight.read().astype(np.float32) * self.scales()
        return values

    def scales(self) -> Array:
        """The scale of every element."""
        shape = self.weight.spec.shape
        scale = self.scale.read().astype(np.float32)
        if scale.size == 1:
            return np.broadcast_to(scale.reshape(()), shape)
        for axis, length in enumerate(_block_lengths(shape, self.scale.spec.shape) or ()):
            scale = np.repeat(scale.reshape(scale.shape[0], -1), length, axis)
        return scale[: shape[0], : shape[1]]


class Fp8Smallest(NamedTuple):
    """By how much each element of a weight in fp8 may be off, however small it is."""

    of: Fp8Scaled

    @property
    def spec(self) -> Spec:
        """The spec of the weight."""
        return self.of.spec

    def read(self) -> Array:
        """Half the smallest step of the dtype, times the element's scale."""
        half = HALF_SMALLEST_STEP.get(name_of(self.of.weight.spec.dtype), 2.0**-10)
        return np.abs(self.of.scales()) * np.float32(half)


def fp8_scaled(weight: StoredTensor, scale: StoredTensor) -> Fp8Scaled | None:
    """A weight with its scales; None if their shapes do not show which scale is whose."""
    shape, scales = weight.spec.shape, scale.spec
    if len(shape) != 2 or not weight.spec.size or not scales.size:
        return None
    return Fp8Scaled(weight, scale) if scales.size == 1 or _block_lengths(shape, scales.shape) else None


def _block_lengths(shape: tuple[int, ...], scales: tuple[int, ...]) -> tuple[int, ...] | None:
    """How many rows and columns share a scale."""
    lengths = []
    for length, count in zip(shape, (*scales, 1)[:2], strict=True):
        if count and -(-length // _BLOCK) == count:
            lengths.append(_BLOCK)
        elif count and length % count == 0:
            lengths.append(length // count)
    return tuple(lengths) if len(lengths) == len(shape) and len(scales) <= len(shape) else None


class Int8Scaled(_Scaled):
    """A weight in int8 and its scales: one per row, or one for each group of a row (compressed-tensors' w8a8)."""

    @property
    def quantization(self) -> Quantization:
        """How coarse it is."""
        return Quantization("int8", 8, self._group)

    @property
    def _group(self) -> int:
        rows, columns = self.weight.spec.shape
        return columns * rows // self.scale.spec.size

    def read(self) -> Array:
        """The values, scaled."""
        return self.read_rows(0, self.weight.spec.shape[0])

    def read_rows(self, start: int, stop: int) -> Array:
        """Some rows, scaled."""
        scale = self.scale.read().astype(np.float32).reshape(self.weight.spec.shape[0], -1)[start:stop]
        values: Array = read_rows(self.weight, start, stop).astype(np.float32) * np.repeat(scale, self._group, axis=1)
        return values


def int8_scaled(weight: StoredTensor, scale: StoredTensor) -> Int8Scaled | None:
    """A weight with its scales; None unless there are one or more per row."""
    shape, scales = weight.spec.shape, scale.spec
    if len(shape) != 2 or not weight.spec.size or not scales.shape or scales.shape[0] != shape[0]:
        return None
    per_row = scales.size // shape[0]
    return Int8Scaled(weight, scale) if per_row and len(scales.shape) <= 2 and shape[1] % per_row == 0 else None


def quantization_of(stored: StoredTensor) -> Quantization | None:
    """How a tensor, or the tensor behind a view, was quantized; None for plain numbers."""
    match stored:
        case QuantizedTensor():
            return GGML[stored.code]
        case MlxPacked() | Fp8Scaled() | Int8Scaled() | WordPacked() | Dequantized():
            return stored.quantization
        case Concatenated(parts=parts) | Stacked(parts=parts):
            found = [quantization_of(part) for part in parts]
            return min((one for one in found if one), key=lambda one: one.bits, default=None)
        case Transposed(stored=inner) | Rows(stored=inner) | Reshaped(stored=inner):
            return quantization_of(inner)
        case RowsPermuted():
            return quantization_of(stored.stored)
    return None


def smallest_of(stored: StoredTensor) -> StoredTensor | None:
    """By how much each element may be off, however small it is: for a weight in fp8, or a view of one."""
    match stored:
        case Fp8Scaled():
            return Fp8Smallest(stored)
        case Transposed(stored=inner) | Rows(stored=inner) | Reshaped(stored=inner) if below := smallest_of(inner):
            return stored._replace(stored=below)
        case RowsPermuted() if below := smallest_of(stored.stored):
            return RowsPermuted(below, stored.order)
        case Concatenated(parts=parts) | Stacked(parts=parts):
            found = [smallest_of(part) for part in parts]
            known = tuple(one for one in found if one is not None)
            return stored._replace(parts=known) if len(known) == len(parts) else None
    return None
