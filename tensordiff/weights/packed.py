"""Quantized parameters as numbers: what belongs to one (scales, biases) put together with it, and how coarse it is.

GGUF blocks are dequantized by their reader. MLX packs integers into ``uint32`` beside ``scales`` and ``biases``; fp8
checkpoints keep ``weight_scale_inv`` (a scale for each 128 x 128) or ``weight_scale`` beside ``weight``; so do int8
ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tensordiff.dump.dtypes import DTYPES, Array, name_of
from tensordiff.dump.model import Spec, StoredTensor
from tensordiff.dump.readers.tools.gguf import QuantizedTensor
from tensordiff.weights.quantization import Quantization
from tensordiff.weights.views import Concatenated, Reshaped, Rows, RowsPermuted, Stacked, Transposed, read_rows
from tensordiff.weights.word_packed import WordPacked

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
        q = values.reshape(*raw.shape[:-1], self.scales.spec.shape[-1], self.group).astype(np.float32)
        found = q * read_rows(self.scales, start, stop).astype(np.float32)[..., None]
        if self.biases is not None:
            found += read_rows(self.biases, start, stop).astype(np.float32)[..., None]
        return found.reshape(*raw.shape[:-1], -1)


_MLX_BITS, _MLX_GROUPS = (4, 8, 6, 5, 3, 2), (64, 32, 128)


def mlx_packed(
    packed: StoredTensor, scales: StoredTensor, biases: StoredTensor | None, told: tuple[int, int] | None
) -> MlxPacked | None:
    """MLX's packed weight, by the bits and group size that its config tells, or the only usual ones that fit.

    None where shapes do not fit together so: a config is as much a stranger's as the file.
    """
    shape, groups = packed.spec.shape, scales.spec.shape
    if not shape or not packed.spec.size or shape[:-1] != groups[:-1] or len(shape) != len(groups):
        return None
    if biases is not None and biases.spec.shape != groups:
        return None
    usual = [(bits, group) for bits in _MLX_BITS for group in _MLX_GROUPS]
    for bits, group in [told] if told else usual:
        if bits in _MLX_BITS and group > 0 and bits * group * groups[-1] == shape[-1] * 32:
            return MlxPacked(packed, scales, biases, bits, group)
    return None


class Dequantized(NamedTuple):
    """A weight that a capture wrote as the numbers it stands for."""

    stored: StoredTensor
    quantization: Quantization

    @property
    def spec(self) -> Spec:
        """As it was written."""
        return self.stored.spec

    def read(self) -> Array:
        """The values."""
        return self.stored.read()


def said_quantization(facts: Mapping[str, object], name: str) -> Quantization | None:
    """What a dump says of a parameter of its own."""
    found = facts.get("quantization")
    if not isinstance(found, dict):
        return None
    try:
        number, kinds = found["parameters"][name], found["kinds"]
        kind = kinds[number]
        bits, block = float(kind["bits"]), int(kind["block"])
        is_usable = 0 <= bits <= 8 and block > 0 and type(number) is int and number >= 0
        return Quantization(f"{kind['name']!s:.60}", bits, block, kind["is_exact_scale"] is True) if is_usable else None
    except (KeyError, IndexError, TypeError, ValueError):
        return None


def is_borne_out(stored: StoredTensor, quantization: Quantization) -> bool:
    """Whether the values are as few as the bits allow, in each block of the first rows.

    A dump may come from a stranger, and what it says of itself loosens how it is judged. It is believed of blocks that
    are too short for that to show.
    """
    shape = stored.spec.shape
    if len(shape) < 2 or not quantization.bits or shape[-1] % quantization.block:
        return len(shape) >= 2
    blocks = read_rows(stored, 0, min(shape[0], _LOOKED_AT)).astype(np.float32).reshape(-1, quantization.block)
    return max(len(np.unique(block)) for block in blocks) <= 2**quantization.bits


_LOOKED_AT = 16
_HALF_SMALLEST = {"float8_e4m3fn": 2.0**-10, "float8_e4m3fnuz": 2.0**-11, "float8_e5m2": 2.0**-17}


_BLOCK = 128
"""Rows and columns that share a scale, in the checkpoints that have blocks; the last block may be smaller."""


@dataclass(frozen=True)
class _Scaled:
    """A weight in few bits and its scales, read as float32."""

    weight: StoredTensor
    scale: StoredTensor

    @property
    def spec(self) -> Spec:
        """As it is read."""
        return Spec(self.weight.spec.shape, DTYPES["float32"])


class Fp8Scaled(_Scaled):
    """A weight in fp8 and its scales: one, one a row, or one a block of both axes."""

    @property
    def quantization(self) -> Quantization:
        """Each value is rounded by itself, so that no block matters."""
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
        """As the weight's."""
        return self.of.spec

    def read(self) -> Array:
        """Half the smallest step of the type, in the element's own scale."""
        half = _HALF_SMALLEST.get(name_of(self.of.weight.spec.dtype), 2.0**-10)
        return np.abs(self.of.scales()) * np.float32(half)


def fp8_scaled(weight: StoredTensor, scale: StoredTensor) -> Fp8Scaled | None:
    """A weight with its scales; None where their shapes say nothing of which scale is whose."""
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
    """A weight in int8 and its scales: one a row, or one for each group of a row (compressed-tensors' w8a8)."""

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
    """A weight with its scales; None where there is not one or more a row."""
    shape, scales = weight.spec.shape, scale.spec
    if len(shape) != 2 or not weight.spec.size or not scales.shape or scales.shape[0] != shape[0]:
        return None
    per_row = scales.size // shape[0]
    return Int8Scaled(weight, scale) if per_row and len(scales.shape) <= 2 and shape[1] % per_row == 0 else None


def quantization_of(stored: StoredTensor) -> Quantization | None:
    """How a tensor, or what a view is made of, was quantized; None for plain numbers."""
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
    """By how much each element may be off, however small it is: of a weight in fp8, or of a view of one."""
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
