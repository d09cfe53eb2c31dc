"""Torch files that torch would not write: pickles put together opcode by opcode, in a zip of any members."""

from __future__ import annotations

import io
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from tensordiff.dump import Dump, open_dump

Zip = dict[str, bytes]


class Raw(NamedTuple):
    """Opcodes as they are."""

    opcodes: bytes


class Global(NamedTuple):
    """A name to look up."""

    module: str
    name: str


class Call(NamedTuple):
    """A name to look up and call."""

    function: Global | Raw
    args: tuple[object, ...]


class Saved(NamedTuple):
    """A reference to a storage."""

    kind: Global
    key: object
    elements: object


FLOATS = Global("torch", "FloatStorage")
UNTYPED = Global("torch.storage", "UntypedStorage")
REBUILD = Global("torch._utils", "_rebuild_tensor_v2")
ORDERED = Global("collections", "OrderedDict")

BASE = torch.arange(4 * 6 * 5, dtype=torch.float32).reshape(4, 6, 5)


def opcodes(value: object) -> bytes:
    """The opcodes that push a value."""
    match value:
        case Raw(code):
            return code
        case Global(module, name):
            return f"c{module}\n{name}\n".encode()
        case Call(function, args):
            return opcodes(function) + opcodes(args) + b"R"
        case Saved(kind, key, count):
            return opcodes(("storage", kind, key, "cpu", count)) + b"Q"
        case bool() | None:
            return {None: b"N", True: b"\x88", False: b"\x89"}[value]
        case int():
            data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            return b"\x8a" + bytes([len(data)]) + data
        case str():
            return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
        case tuple():
            return b"(" + b"".join(map(opcodes, value)) + b"t"
        case list():
            return b"](" + b"".join(map(opcodes, value)) + b"e"
        case dict():
            return b"}(" + b"".join(opcodes(k) + opcodes(v) for k, v in value.items()) + b"u"
    raise TypeError(value)


def pickled(value: object) -> bytes:
    """A whole pickle."""
    return b"\x80\x02" + opcodes(value) + b"."


def tensor(
    size: object = (4,),
    stride: object = (1,),
    offset: object = 0,
    count: object = 4,
    kind: Global = FLOATS,
    key: object = "0",
    rest: tuple[object, ...] = (),
) -> Call:
    """What torch writes of a tensor: true by default, whatever is asked otherwise."""
    return Call(REBUILD, (Saved(kind, key, count), offset, size, stride, False, Call(ORDERED, ()), *rest))


def zipped(members: Zip, compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip of some members."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return target.getvalue()


def torch_zip(value: object, data: bytes = bytes(16), **more: bytes) -> bytes:
    """A torch file that holds a value, and 16 bytes of storage unless told."""
    pickle = value if isinstance(value, bytes) else pickled(value)
    return zipped({"a/data.pkl": pickle, "a/data/0": data} | {f"a/{name}": more[name] for name in more})


def opened(tmp_path: Path, data: bytes, name: str = "t.pt") -> Dump:
    """The dump of one file."""
    path = tmp_path / name
    path.write_bytes(data)
    return open_dump(path)


def saved(value: object, **how: Any) -> bytes:
    """What torch itself writes."""
    target = io.BytesIO()
    torch.save(value, target, **how)
    return target.getvalue()


def bits(tensor: torch.Tensor) -> bytes:
    """A tensor's elements, row by row."""
    if not tensor.numel():
        return b""
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1).clone(memory_format=torch.contiguous_format)
    return bytes(flat.view(torch.uint8).numpy().tobytes())


def save(value: object, path: Path, **how: Any) -> Path:
    """A file that torch writes.

    To name what it pickles, pickle asks every module that is loaded; transformers answers by importing all it has.
    """
    with patch.dict(sys.modules):
        for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
            del sys.modules[name]
        torch.save(value, path, **how)
    return path


def check(dump: Dump, expected: dict[str, torch.Tensor]) -> None:
    """The entries are these tensors, in this order, bit for bit."""
    assert [e.name for e in dump.entries] == list(expected)
    for found, tensor in zip(dump.entries, expected.values(), strict=True):
        array = found.read()
        shape, dtype = found.spec
        assert (array.shape, array.dtype) == (shape, dtype)
        assert (shape, f"torch.{dtype}") == (tuple(tensor.shape), str(tensor.dtype))
        assert array.tobytes() == bits(tensor)
        assert not array.flags.writeable
