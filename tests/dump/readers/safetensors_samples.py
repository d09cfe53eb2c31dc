"""``.safetensors`` files made by hand, true or not, and the tensors that go in."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from tensordiff.dump import Dump, open_dump
from tensordiff.errors import BadFile


def random_tensor(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Every bit pattern may occur; a bool has only two."""
    count = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
    raw = np.random.default_rng(7).integers(0, 256, count, np.uint8)
    if dtype is torch.bool:
        raw &= 1
    return torch.frombuffer(bytearray(raw.tobytes()), dtype=dtype).reshape(shape)


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).numpy().tobytes()) if tensor.numel() else b""


def craft(header: object, data: bytes = b"") -> bytes:
    """A file with any header, true or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def row(dtype: str, shape: object, begin: object, end: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def opened(tmp_path: Path, data: bytes) -> Dump:
    path = tmp_path / "t.safetensors"
    path.write_bytes(data)
    return open_dump(path)


def refusal(tmp_path: Path, data: bytes) -> str:
    with pytest.raises(BadFile) as caught:
        opened(tmp_path, data)
    return caught.value.problem
