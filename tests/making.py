"""Small dumps made quickly, by the libraries that make the real ones or by our own writer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import safetensors.numpy

from tensordiff.align import Alignment, Pair, align
from tensordiff.dump import Dump, Entry, open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import MemoryTensor as MemoryTensor
from tensordiff.dump.model import Spec, entry
from tensordiff.dump.native.writer import DumpWriter
from tensordiff.errors import BadFile

Tensors = Mapping[str, Array]
SAMPLES = Path(__file__).parents[1] / "sample_dumps"


def numbers(*shape: int, seed: int = 0, dtype: str = "float32") -> Array:
    """Normal random numbers, always the same."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def nudged(array: Array, rel_l2: float, seed: int = 1) -> Array:
    """The same numbers with an error of this relative size."""
    wide = array.astype(np.float64)
    noise = np.random.default_rng(seed).standard_normal(array.shape)
    moved: Array = wide + noise * (rel_l2 * np.linalg.norm(wide) / np.linalg.norm(noise))
    return moved.astype(array.dtype)


def save(path: Path, tensors: Tensors, *, ordered: bool = True) -> Path:
    """One ``.safetensors`` file; in execution order, unless told otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    order = {"order": json.dumps(list(tensors))} if ordered else None
    safetensors.numpy.save_file({name: np.array(array, order="C") for name, array in tensors.items()}, path, order)
    return path


def save_npy(folder: Path, tensors: Tensors) -> Path:
    """A folder of ``.npy``, which has no order."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in tensors.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def write(folder: Path, tensors: Tensors, step: int = 0, **facts: object) -> Path:
    """A dump as tensordiff writes it."""
    with DumpWriter(folder, facts) as writer:
        for name, array in tensors.items():
            writer.add(name, array, step=step)
    return folder


class Unreadable:
    """A tensor whose file is damaged."""

    @property
    def spec(self) -> Spec:
        raise BadFile("lost.pt", "is truncated; dump it again")

    def read(self) -> Array:
        raise BadFile("lost.pt", "is truncated; dump it again")


def held(tensors: Mapping[str, Array | None], *, ordered: bool = True, step: int = 0) -> Dump:
    """A dump in memory; None is an entry that cannot be read."""
    return Dump(Path("held"), "held", tuple(_entry(name, a, step) for name, a in tensors.items()), ordered)


def _entry(name: str, array: Array | None, step: int) -> Entry:
    return entry(name, Unreadable() if array is None else MemoryTensor(np.asarray(array)), step)


def aligned(reference: Mapping[str, Array | None], candidate: Mapping[str, Array | None]) -> Alignment:
    """Two dumps in memory, paired by name."""
    return align(held(reference), held(candidate))


def pairs(reference: Mapping[str, Array | None], candidate: Mapping[str, Array | None]) -> tuple[Pair, ...]:
    """The pairs of two dumps in memory."""
    return aligned(reference, candidate).pairs


def truncate(path: Path, keep: Callable[[int], int] = lambda size: size // 2) -> Path:
    """Cut a file short."""
    path.write_bytes(path.read_bytes()[: keep(path.stat().st_size)])
    return path


__all__ = [
    "SAMPLES",
    "aligned",
    "held",
    "nudged",
    "numbers",
    "open_dump",
    "pairs",
    "save",
    "save_npy",
    "truncate",
    "write",
]
