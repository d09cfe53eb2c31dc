"""``.max`` files made by hand, true or not, as MAX lays them out."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

MAGIC = b"\x93\xf0\x9f\x94\xa5\x2b\x2b\x93"
FLOAT32 = 81


def max_bytes(
    key: str = "x",
    code: int = FLOAT32,
    shape: Sequence[int] = (),
    data: bytes | None = None,
    *,
    version: tuple[int, int] = (0, 1),
    key_length: int | None = None,
    metadata_size: int | None = None,
    offset: int | None = None,
) -> bytes:
    """One file; what is not given is told truly."""
    name = key.encode()
    true_size = 4 + len(name) + 2 + 4 * len(shape) + 8
    front = struct.pack("<8sIIQ", MAGIC, *version, true_size if metadata_size is None else metadata_size)
    named = struct.pack("<I", len(name) if key_length is None else key_length) + name
    placed = struct.pack(f"<BB{len(shape)}IQ", code, len(shape), *shape, 24 + true_size if offset is None else offset)
    return front + named + placed + (bytes(4 * math.prod(shape)) if data is None else data)
