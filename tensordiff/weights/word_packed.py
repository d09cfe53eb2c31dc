"""GPTQ, AWQ and compressed-tensors: integers of a few bits in 32-bit words, with scales and zero points by groups.

All three keep ``scale * (q - zero)``. They differ in what a word holds, in which order, and in the zero points:

- GPTQ: inputs of one output, in order; ``qweight`` is (inputs / n, outputs); ``qzeros``, in version 1 less 1.
- AWQ: outputs of one input, in the order 0, 2, 4, 6, 1, 3, 5, 7; ``qweight`` is (inputs, outputs / n); ``qzeros``.
- compressed-tensors: inputs of one output, in order; ``weight_packed`` is (outputs, inputs / n); zero is half the
  range.

GPTQ and AWQ choose values for a layer's output, so they need not be the nearest to the original ones; AWQ also moves
factors from a layer into the one before it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.dump.dtypes import DTYPES, Array
from tensordiff.dump.model import Spec, StoredTensor
from tensordiff.weights.quantization import Quantization
from tensordiff.weights.views import read_rows

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_WORD = 32


class WordPacked(NamedTuple):
    """A weight (outputs, inputs) that is packed in words."""

    kind: Literal["GPTQ", "AWQ", "compressed-tensors"]
    words: StoredTensor
    scales: StoredTensor
    zeros: StoredTensor | None
    groups: StoredTensor | None
    """The group of each input, if inputs were reordered."""
    shape: tuple[int, int]
    bits: int
    zero_offset: int = 0
    """What is added to a stored zero point."""

    @property
    def spec(self) -> Spec:
        """The spec as it is read: float32."""
        return Spec(self.shape, DTYPES["float32"])

    @property
    def group(self) -> int:
        """How many inputs share a scale."""
        counts = self.scales.spec.shape
        return self.shape[1] // max(1, counts[1] if self.kind == "compressed-tensors" else counts[0])

    @property
    def quantization(self) -> Quantization:
        """How coarse it is."""
        name = f"{self.kind}, {self.bits} bits in groups of {self.group}"
        block = self.shape[1] if self.groups is not None else self.group
        return Quantization(name, self.bits, block, is_calibrated=self.kind != "compressed-tensors")

    def read(self) -> Array:
        """The values, dequantized."""
        return self.read_rows(0, self.shape[0])

    def read_rows(self, start: int, stop: int) -> Array:
        """The values of some outputs, dequantized."""
        if self.kind == "compressed-tensors":
            q = unpacked(read_rows(self.words, start, stop), self.bits)[:, : self.shape[1]].astype(np.float32)
            scale = read_rows(self.scales, start, stop).astype(np.float32)
            return (q - (1 << (self.bits - 1))) * np.repeat(scale, self.group, axis=1)
        groups = self.groups.read() if self.groups is not None else np.arange(self.shape[1]) // self.group
        scale = self.scales.read()[:, start:stop].astype(np.float32)
        zero = self._zeros()[:, start:stop].astype(np.float32)
        values = (self._integers(start, stop).astype(np.float32) - zero[groups]) * scale[groups]
        return np.ascontiguousarray(values.T)

    def _integers(self, start: int, stop: int) -> NDArray[np.uint32]:
        """(inputs, some outputs)."""
        if self.kind == "GPTQ":
            return unpacked(self.words.read()[:, start:stop].T, self.bits).T
        per_word = _WORD // self.bits
        first, last = start // per_word, -(-stop // per_word)
        found = _awq(unpacked(self.words.read()[:, first:last], self.bits))
        return found[:, start - first * per_word : stop - first * per_word]

    def _zeros(self) -> NDArray[np.uint32]:
        """(groups, outputs)."""
        if self.zeros is None:
            return np.full(self.scales.spec.shape, 1 << (self.bits - 1), np.uint32)
        stored = unpacked(self.zeros.read(), self.bits)
        if self.kind == "AWQ":
            return _awq(stored)
        zeros: NDArray[np.uint32] = (stored + np.uint32(self.zero_offset)) & np.uint32((1 << self.bits) - 1)
        return zeros


def unpacked(words: Array, bits: int) -> NDArray[np.uint32]:
    """Unpack integers of a few bits along the last axis, the first in the lowest bits; 3 bits cross word borders."""
    raw = np.ascontiguousarray(words).astype(np.uint32 if words.dtype.kind == "u" else np.int32).view(np.uint32)
    if _WORD % bits == 0:
        shifts = np.arange(0, _WORD, bits, dtype=np.uint32)
        values = (raw[..., None] >> shifts) & np.uint32((1 << bits) - 1)
        return values.reshape(*raw.shape[:-1], -1)
    stream = np.unpackbits(raw.view(np.uint8).reshape(*raw.shape[:-1], -1), axis=-1, bitorder="little")
    parts = stream.reshape(*raw.shape[:-1], -1, bits).astype(np.uint32)
    values = (parts << np.arange(bits, dtype=np.uint32)).sum(-1, dtype=np.uint32)
    return np.asarray(values, np.uint32)


def _awq(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Restore the order of AWQ's words of eight: place k of a word holds element ``_AWQ_ORDER[k]``."""
    words = values.reshape(*values.shape[:-1], -1, len(_AWQ_ORDER))
    found = np.empty_like(words)
    found[..., list(_AWQ_ORDER)] = words
    return found.reshape(values.shape)


def gptq_or_awq(
    words: StoredTensor, scales: StoredTensor, zeros: StoredTensor, groups: StoredTensor | None, zero_offset: int
) -> WordPacked | None:
    """A GPTQ or AWQ weight, distinguished by shapes: GPTQ packs the inputs, AWQ the outputs. None if neither fits."""
    shapes = [one.spec.shape for one in (words, scales, zeros)]
    if any(len(shape) != 2 for shape in shapes):
        return None
    (rows, columns), (count, outputs), (zero_rows, zero_words) = shapes
    if not outputs or zero_rows != count or (_WORD * zero_words) % outputs:
        return None
    bits = _WORD * zero_words // outputs
    if bits not in (2, 3, 4, 8):
        return None
    if columns == outputs and (_WORD * rows) % bits == 0:
        shape = (outputs, _WORD * rows // bits)
        if _fits(shape, count, groups):
            return WordPacked("GPTQ", words, scales, zeros, groups, shape, bits, zero_offset)
    if bits == 4 and columns * _WORD == outputs * bits and groups is None and _fits((outputs, rows), count, None):
        return WordPacked("AWQ", words, scales, zeros, None, (outputs, rows), bits)
    return None


def _fits(shape: tuple[int, int], count: int, groups: StoredTensor | None) -> bool:
    if not count or (groups is None and shape[1] % count):
        return False
    if groups is None:
        return True
    if groups.spec.shape != (shape[1],) or groups.spec.dtype.kind not in "iu":
        return False
    numbers = groups.read()
    return bool(numbers.min(initial=0) >= 0 and numbers.max(initial=0) < count)


def compressed(words: StoredTensor, scales: StoredTensor, shape: StoredTensor) -> WordPacked | None:
    """Compressed-tensors' packed integers, symmetric; None if the shapes do not fit."""
    if shape.spec.size != 2 or len(words.spec.shape) != 2 or len(scales.spec.shape) != 2:
        return None
    outputs, inputs = (int(n) for n in shape.read().reshape(-1))
    rows, count = words.spec.shape
    fitting = [bits for bits in (4, 8) if rows == outputs and count == -(-inputs * bits // _WORD)]
    if len(fitting) != 1 or scales.spec.shape[0] != outputs or not inputs or inputs % max(1, scales.spec.shape[1]):
        return None
    return WordPacked("compressed-tensors", words, scales, None, None, (outputs, inputs), fitting[0])
