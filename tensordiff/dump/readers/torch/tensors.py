"""Tensors and storages as a torch file's pickle describes them: plain records, made without torch.

Everything a pickle claims about a tensor's shape, strides and storage is checked here, before anyone looks for its
bytes; a false claim refuses only its own tensor. Which names a pickle may use is decided in ``globals``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from tensordiff.dump.dtypes import DType
from tensordiff.dump.files import MAX_RANK
from tensordiff.dump.model import Spec

_MAX_BYTES = 1 << 62
_MAX_REPEATED = 1 << 32
_LONGEST_KEY = 256


class BadPickle(Exception):
    """A pickle is damaged, contradicts itself, or asks for something we will not run. The message names no file."""


@dataclass(frozen=True, slots=True)
class TorchDType:
    """An element type of torch; ``dtype`` is None if numpy has no equivalent."""

    name: str
    itemsize: int
    dtype: DType | None


@dataclass(frozen=True, slots=True)
class StorageType:
    """A class such as ``torch.FloatStorage``."""

    of: TorchDType


@dataclass(frozen=True, slots=True)
class Storage:
    """A run of bytes that tensors share."""

    key: str
    of: TorchDType
    count: int

    @property
    def nbytes(self) -> int:
        """Bytes it takes in the file."""
        return self.count * self.of.itemsize


@dataclass(frozen=True, slots=True)
class Tensor:
    """A view of a storage. ``offset`` and ``strides`` count elements; None for strides means contiguous."""

    storage: Storage
    offset: int
    spec: Spec
    strides: tuple[int, ...] | None
    conjugate: bool
    negative: bool


@dataclass(frozen=True, slots=True)
class UnreadableTensor:
    """A tensor that cannot be read as numbers, and why."""

    sentence: str


class LongKey(NamedTuple):
    """Takes the place of a dict key that is too long to be a name; any number of keys may share one."""

    start: str
    length: int

    @classmethod
    def of(cls, text: str) -> LongKey:
        """Make one from a text of any length, without reading all of it."""
        return cls(text[:60], len(text))


def find_storage(saved: object) -> Storage:
    """The storage that a pickle refers to as ("storage", class, key, location, count)."""
    if type(saved) is not tuple or saved[:1] != ("storage",) or saved[5:] not in ((), (None,)):
        raise BadPickle("points to something other than a storage")
    _, kind, key, _, count = saved[:5]
    if type(kind) is not StorageType or type(key) is not str or len(key) > _LONGEST_KEY:
        raise BadPickle("describes a storage in a way we do not know")
    return Storage(key, kind.of, *_counts((count,)))


def shorten(text: str) -> str:
    """Text from a file, short enough for a sentence."""
    return text if len(text) <= 100 else text[:100] + "…"


def view_storage(
    storage: object, offset: object, size: object, stride: object, flags: object = None, of: object = None
) -> Tensor | UnreadableTensor:
    """A tensor on a storage, of the storage's own dtype unless ``of`` is given."""
    try:
        return _checked_view(storage, offset, size, stride, flags, of)
    except BadPickle as error:
        return UnreadableTensor(f"{error}; dump it again")


def _checked_view(
    storage: object, offset: object, size: object, stride: object, flags: object, of: object
) -> Tensor | UnreadableTensor:
    if type(storage) is not Storage:
        raise BadPickle("is built on something other than a storage")
    of = of or storage.of
    if type(of) is not TorchDType:
        raise BadPickle("has something other than a dtype")
    shape, strides, (start,) = _counts(size), _counts(stride), _counts((offset,))
    reach = _check_inside(storage, of, start, shape, strides)
    if of.dtype is None:
        return UnreadableTensor(f"has dtype torch.{of.name}, which only torch has; {_advice(of.name)}")
    if math.prod(shape) > max(reach, _MAX_REPEATED):
        return UnreadableTensor(f"repeats {reach} stored elements to {math.prod(shape)}; save a smaller view of it")
    conjugate, negative = _flags(flags, of.dtype)
    if (conjugate or negative) and math.prod(shape) > reach:
        return UnreadableTensor("is conjugated and repeated; save its .resolve_conj().resolve_neg() instead")
    return Tensor(storage, start, Spec(shape, of.dtype), _strides(shape, strides), conjugate, negative)


def _advice(name: str) -> str:
    """What to save instead of a dtype that only torch has, so that nothing is lost."""
    if name == "complex32":
        return "save it .to(torch.complex64)"
    if name.startswith(("qint", "quint")):
        return "save its .dequantize()"
    return "save its .view(torch.uint8)"


def _counts(values: object) -> tuple[int, ...]:
    """Sizes, strides or offsets, none of which torch writes negative."""
    if type(values) is not tuple or len(values) > MAX_RANK:
        raise BadPickle(f"claims more than {MAX_RANK} dimensions, or something stranger")
    if not all(type(n) is int and 0 <= n < _MAX_BYTES for n in values):
        raise BadPickle("claims an impossible shape, stride or offset")
    return values


def _check_inside(
    storage: Storage, of: TorchDType, start: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> int:
    """How many elements a view extends over; raises unless all of them lie in its storage."""
    if len(shape) != len(strides):
        raise BadPickle(f"claims {len(shape)} dimensions and {len(strides)} strides")
    if math.prod(n for n in shape if n) * of.itemsize >= _MAX_BYTES:
        raise BadPickle("claims an impossible shape")
    reach = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if reach and (start + reach) * of.itemsize > storage.nbytes:
        raise BadPickle(f"reaches outside its storage of {storage.nbytes} bytes")
    return reach


def _strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides, or None for a contiguous tensor. Along a dimension of size 1 torch may write any stride."""
    dense = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        dense[axis - 1] = dense[axis] * shape[axis]
    cleaned = tuple(s if n > 1 else d for n, s, d in zip(shape, strides, dense, strict=True))
    return None if cleaned == tuple(dense) or 0 in shape else cleaned


def _flags(flags: object, dtype: DType) -> tuple[bool, bool]:
    """Whether a view conjugates, and whether it negates: torch saves both as flags."""
    if flags is None:
        return False, False
    if type(flags) is not dict or not flags.keys() <= {"conj", "neg"}:
        raise BadPickle("has flags that we do not know")
    conjugate, negative = bool(flags.get("conj")), bool(flags.get("neg"))
    if (conjugate and dtype.kind != "c") or (negative and dtype.kind not in "cfi"):
        raise BadPickle(f"is conjugated or negated, and of type {dtype.name}")
    return conjugate, negative
