"""ggml's quantized blocks as float32. A block is a few scales and the small integers they apply to.

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
"""Types that are plain numbers, by their code."""


def _half(raw: Bytes) -> Floats:
    """16-bit scales, one column each."""
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


_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
"""The values that four bits stand for: in llama.cpp's table (``_IQ4``), and as e2m1 (``_FP4``)."""
_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""The values that four bits stand for: by llama.cpp's table, and as e2m1."""


def iq4_nl(raw: Bytes) -> Floats:
    """32 values of a table of 16, one scale."""
    return _half(raw[:, :2]) * _IQ4[_nibbles(raw[:, 2:])]


def iq4_xs(raw: Bytes) -> Floats:
    """256 values of a table of 16, a scale of 6 bits for each 32."""
    count = len(raw)
    high = np.ascontiguousarray(raw[:, 2:4]).view(np.uint16)
    low = np.stack((raw[:, 4:8] & 0xF, raw[:, 4:8] >> 4), axis=-1).reshape(count, 8)
    scales = (low | (((high >> np.arange(0, 16, 2, dtype=np.uint16)) & 3) << 4)).astype(np.float32) - 32
    values = _IQ4[_nibbles(raw[:, 8:].reshape(count, 8, 16))]
    found: Floats = (_half(raw[:, :2])[:, :, None] * scales[:, :, None] * values).reshape(count, 256)
    return found


def tq1_0(raw: Bytes) -> Floats:
    """256 values of -1, 0 and 1, five in a byte, one scale."""
    powers = np.array([1, 3, 9, 27, 81], np.uint8)[None, :, None]

    def trits(part: Bytes, count: int) -> Bytes:
        shifted = part[:, None, :] * powers[:, :count]  # modulo 256, as it was packed
        found: Bytes = ((shifted.astype(np.uint16) * 3) >> 8).astype(np.uint8)
        return found.reshape(len(part), -1)

    values = np.concatenate((trits(raw[:, :32], 5), trits(raw[:, 32:48], 5), trits(raw[:, 48:52], 4)), axis=-1)
    return _half(raw[:, 52:54]) * (values.astype(np.float32) - 1)


def tq2_0(raw: Bytes) -> Floats:
    """256 values of -1, 0 and 1, four in a byte, one scale."""
    shifts = np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]
    values = ((raw[:, :64].reshape(len(raw), 2, 1, 32) >> shifts) & 3).reshape(len(raw), 256)
    return _half(raw[:, 64:66]) * (values.astype(np.float32) - 1)


def mxfp4(raw: Bytes) -> Floats:
    """32 values of e2m1, a power of two as the scale."""
    half_scale = np.ldexp(np.float32(1), raw[:, :1].astype(np.int32) - 128)
    return half_scale.astype(np.float32) * (2 * _FP4[_nibbles(raw[:, 1:])])


def nvfp4(raw: Bytes) -> Floats:
    """64 values of e2m1, a scale of e4m3 without sign, infinity or NaN for each 16."""
    count = len(raw)
    exponent, fraction = (raw[:, :4].astype(np.int32) >> 3) & 15, (raw[:, :4] & 7).astype(np.float32) / 8
    scales = np.where(exponent, np.ldexp(1 + fraction, exponent - 7), np.ldexp(fraction, -6))
    scales = np.where(raw[:, :4] == 0x7F, np.float32(0), scales)  # as ggml reads it
    values = _FP4[_nibbles(raw[:, 4:].reshape(count, 4, 8))]
    return (scales[:, :, None] * values).reshape(count, 64)


BLOCKS: dict[int, tuple[int, int, Callable[[Bytes], Floats]]] = {
    2: (32, 18, q4_0), 3: (32, 20, q4_1), 6: (32, 22, q5_0), 7: (32, 24, q5_1), 8: (32, 34, q8_0),
    10: (256, 84, q2_k), 11: (256, 110, q3_k), 12: (256, 144, q4_k), 13: (256, 176, q5_k), 14: (256, 210, q6_k),
    20: (32, 18, iq4_nl), 23: (256, 136, iq4_xs), 34: (256, 54, tq1_0), 35: (256, 66, tq2_0), 39: (32, 17, mxfp4),
    40: (64, 36, nvfp4),
}  # fmt: skip
"""Elements and bytes of a block, and how it is read, by the type's code."""

UNREAD = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
    29: "IQ1_M",
}  # fmt: skip
"""Types whose values come from large tables of llama.cpp, or that it never writes to files."""

_AT_ONCE = 1 << 14  # blocks; temporary arrays stay small


def dequantize(raw: Bytes, code: int) -> Floats:
    """All blocks of a tensor, in order."""
    elements, _, read = BLOCKS[code]
    values = np.empty((len(raw), elements), np.float32)
    with np.errstate(all="ignore"):
        for start in range(0, len(raw), _AT_ONCE):
            values[start : start + _AT_ONCE] = read(raw[start : start + _AT_ONCE])
    return values.reshape(-1)
