"""The formats that tensordiff reads: one module or folder each, and one line each in ``READERS``.

A reader is a function ``try_open``. It gets a ``DumpPath`` and returns a ``Dump``, or ``None`` if the path holds
another format. The first reader that returns a dump wins. docs/formats.md says how to add one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tensordiff.dump.folders import DumpPath
    from tensordiff.dump.model import Dump


class Format(NamedTuple):
    """One line of the table in docs/formats.md, which is generated from these."""

    name: str
    what: str
    known_by: str
    order: str


Reader = Callable[["DumpPath"], "Dump | None"]

READERS: dict[str, tuple[str, ...]] = {
    "native": (),
    "verify_layers": (),
    "tools.debugger": (),
    "tools.msprobe": (),
    "tools.padiff": (),
    "tools.polygraphy": (),
    "tools.dcp": (".distcp",),
    "tools.sglang": (),
    "tools.megatron": (),
    "tools.trtllm": (),
    "tools.vllm": (),
    "tools.flax": (".msgpack",),
    "tools.gguf": (".gguf",),
    "tools.llamacpp": (),
    "tools.rank_files": (),
    "tree": (),
    "safetensors": (".safetensors",),
    "torch": (".pt", ".pth"),
    "max": (".max",),
    "npy": (".npy", ".npz"),
}
"""The module of each reader, most specific first, and the suffixes that only its files have."""

PLAIN_FORMATS = frozenset(("safetensors", "torch", "max", "numpy", "npz", "flax"))
"""Formats that are files and nothing more, so that files of several may lie in one folder as one dump."""

SUFFIXES = tuple(suffix for suffixes in READERS.values() for suffix in suffixes)
"""Suffixes of files that certainly hold tensors."""


def formats() -> list[Format]:
    """The formats of every reader, in the order the readers are asked."""
    modules = (import_module(f"{__name__}.{name}") for name in READERS)
    return [format_ for module in modules for format_ in module.FORMATS]


def readers() -> Iterator[Reader]:
    """Every reader, most specific first. Each is imported when it is asked: most dumps need few of them."""
    return (import_module(f"{__name__}.{name}").try_open for name in READERS)
