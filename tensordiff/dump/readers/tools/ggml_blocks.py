"""ggml's quantized blocks as float32. A block is a few scales and the small integers they belong to.

Each function takes blocks as rows of bytes, and returns rows of values. The layouts are those of ``ggml-common.h``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

PLAIN = {
    0: "float32", 1: "float16", 24: "int8", 25: "int16", 26: "int32", 27: "int64", 28: "float64", 30: "bfloat16",
}  # fmt: skip
"""Types that are numbers as they are, by their code."""


def _half(raw: Bytes) -> Floats:
    """Scales of 16 bits, a column for each."""
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def _nibbles(raw: Bytes) -> Bytes:
    """The low halves of all bytes, then the high halves."""
    return np.concatenate((raw & 0xF, raw >> 4), axis=-1)


def _fifth_bits(raw: Bytes) -> Bytes:
    """Bit j of the 32-bit mask belongs to element j."""
    return np.unpackbits(raw, axis=-1, bitorder="little")


def q4_0(raw: Bytes) -> Floats:
    """32 values of 4 bits around 8, one scale."""
    return _half(raw[:, :2]) * (_nibbles(raw[:, 2:]).astype(np.float32) - 8)


def q4_1(raw: Bytes) -> Floats:
    """32 values of 4 bits, a scale and a minimum."""
    return _half(raw[:, :2]) * _nibbles(raw[:, 4:]).astype(np.float32) + _half(raw[:, 2:4])


def q5_0(raw: Bytes) -> Floats:
    """32 values of 5 bits around 16, one scale."""
    values = _nibbles(raw[:, 6:]) | (_fifth_bits(raw[:, 2:6]) << 4)
    return _half(raw[:, :2]) * (values.astype(np.float32) - 16)


def q5_1(raw: Bytes) -> Floats:
    """32 values of 5 bits, a scale and a minimum."""
    values = _nibbles(raw[:, 8:]) | (_fifth_bits(raw[:, 4:8]) << 4)
    return _half(raw[:, :2]) * values.astype(np.float32) + _half(raw[:, 2:4])


def q8_0(raw: Bytes) -> Floats:
    """32 values of 8 bits, one scale."""
    return _half(raw[:, :2]) * raw[:, 2:].view(np.int8).astype(np.float32)


def _scales_and_mins(raw: Bytes) -> tuple[Bytes, Bytes]:
    """Eight scales and eight minima of six bits each, in twelve bytes."""
    low, high, mixed = raw[:, :4], raw[:, 4:8], raw[:, 8:]
    scales = np.concatenate((low & 63, (mixed & 0xF) | ((low >> 6) << 4)), axis=-1)
    mins = np.concatenate((high & 63, (mixed >> 4) | ((high >> 6) << 4)), axis=-1)
    return scales, mins


def _by_32(raw: Bytes) -> Bytes:
    """Nibbles of 128 bytes: each 32 bytes are 32 values in the low halves and 32 in the high ones."""
    parts = raw.reshape(len(raw), 4, 32)
    return np.stack((parts & 0xF, parts >> 4), axis=2).reshape(len(raw), 8, 32)


def q4_k(raw: Bytes) -> Floats:
    """256 values of 4 bits, a scale and a minimum for each 32."""
    scales, mins = _scales_and_mins(raw[:, 4:16])
    values = _by_32(raw[:, 16:]).astype(np.float32)
    d, m = _half(raw[:, :2])[:, :, None], _half(raw[:, 2:4])[:, :, None]
    return (d * scales[:, :, None] * values - m * mins[:, :, None]).reshape(len(raw), 256)


def q5_k(raw: Bytes) -> Floats:
    """256 values of 5 bits, a scale and a minimum for each 32."""
    scales, mins = _scales_and_mins(raw[:, 4:16])
    shifts = np.arange(8, dtype=np.uint8)[None, :, None]
    high = (raw[:, None, 16:48] >> shifts) & 1
    values = (_by_32(raw[:, 48:]) | (high << 4)).astype(np.float32)
    d, m = _half(raw[:, :2])[:, :, None], _half(raw[:, 2:4])[:, :, None]
    return (d * scales[:, :, None] * values - m * mins[:, :, None]).reshape(len(raw), 256)


def q6_k(raw: Bytes) -> Floats:
    """256 values of 6 bits, a scale for each 16."""
    count = len(raw)
    low = raw[:, :128].reshape(count, 2, 2, 32)
    low = np.stack((low & 0xF, low >> 4), axis=2).reshape(count, 2, 4, 32)  # by half: 32 values a quarter
    shifts = np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]
    high = (raw[:, 128:192].reshape(count, 2, 1, 32) >> shifts) & 3
    values = ((low | (high << 4)).astype(np.float32) - 32).reshape(count, 16, 16)
    scales = raw[:, 192:208].view(np.int8).astype(np.float32)[:, :, None]
    return (_half(raw[:, 208:210])[:, :, None] * scales * values).reshape(count, 256)


def q2_k(raw: Bytes) -> Floats:
    """256 values of 2 bits, a scale and a minimum for each 16."""
    count = len(raw)
    scales = raw[:, :16]
    shifts = np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]
    values = ((raw[:, 16:80].reshape(count, 2, 1, 32) >> shifts) & 3).astype(np.float32).reshape(count, 16, 16)
    d, m = _half(raw[:, 80:82])[:, :, None], _half(raw[:, 82:84])[:, :, None]
    return (d * (scales & 0xF)[:, :, None] * values - m * (scales >> 4)[:, :, None]).reshape(count, 256)


def q3_k(raw: Bytes) -> Floats:
    """256 values of 3 bits, a scale for each 16."""
    count = len(raw)
    bits = np.arange(8, dtype=np.uint8)[None, :, None]
    high = ((raw[:, None, :32] >> bits) & 1).reshape(count, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]
    low = (raw[:, 32:96].reshape(count, 2, 1, 32) >> shifts) & 3
    values = (low.astype(np.float32) - 4 * (1 - high.astype(np.float32))).reshape(count, 16, 16)
    packed = raw[:, 96:108]
    nibbles = np.concatenate((packed[:, :8] & 0xF, packed[:, :8] >> 4), axis=-1)
    pairs = np.concatenate([(packed[:, 8:12] >> shift) & 3 for shift in (0, 2, 4, 6)], axis=-1)
    scales = (nibbles | (pairs << 4)).astype(np.float32) - 32
    result: Floats = (_half(raw[:, 108:110])[:, :, None] * scales[:, :, None] * values).reshape(count, 256)
    return result


BLOCKS: dict[int, tuple[int, int, Callable[[Bytes], Floats]]] = {
    2: (32, 18, q4_0), 3: (32, 20, q4_1), 6: (32, 22, q5_0), 7: (32, 24, q5_1), 8: (32, 34, q8_0),
    10: (256, 84, q2_k), 11: (256, 110, q3_k), 12: (256, 144, q4_k), 13: (256, 176, q5_k), 14: (256, 210, q6_k),
}  # fmt: skip
"""Elements and bytes of a block, and how it is read, by the type's code."""

_AT_ONCE = 1 << 14  # blocks; temporary arrays stay small


def dequantize(raw: Bytes, code: int) -> Floats:
    """All blocks of a tensor, in order."""
    elements, _, read = BLOCKS[code]
    values = np.empty((len(raw), elements), np.float32)
    with np.errstate(all="ignore"):
        for start in range(0, len(raw), _AT_ONCE):
            values[start : start + _AT_ONCE] = read(raw[start : start + _AT_ONCE])
    return values.reshape(-1)
