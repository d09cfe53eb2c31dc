"""``.npy`` and ``.npz`` files made by hand, true or not."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tensordiff.dump import Entry, open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.errors import BadFile


def npy(array: Array, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version, allow_pickle=True)
    return file.getvalue()


def craft(header: str | bytes, data: bytes = b"", version: int = 1) -> bytes:
    """A ``.npy`` with any header, true or not."""
    text = header if isinstance(header, bytes) else header.encode()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + data


def claim(descr: str, shape: str, fortran: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"


def only(tmp_path: Path, data: bytes, name: str = "x.npy") -> Entry:
    (tmp_path / name).write_bytes(data)
    [entry] = open_dump(tmp_path / name).entries
    return entry


def refusal(entry: Entry) -> str:
    with pytest.raises(BadFile) as caught:
        entry.read()
    with pytest.raises(BadFile):
        _ = entry.spec
    return caught.value.problem


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED, level: int | None = None) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method, compresslevel=level) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def same_bits(one: Array, other: Array) -> bool:
    """Equal in shape, type and every bit, whatever the order of bytes in memory."""
    native = other.astype(other.dtype.newbyteorder("="))
    return (one.shape, one.dtype, one.tobytes()) == (native.shape, native.dtype, native.tobytes())
