"""Work on millions of objects in small slices, so that other threads can run in between.

Python switches threads between two of its own steps. A call into C is one step, however long it takes: sorting a
million keys, growing a set or a dict beyond a million, or freeing a collection that alone holds a million objects keeps
the app from answering a key for a tenth to half a second. Done in slices it takes little longer in total, and no step
is long.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar

_SLICE = 1 << 10
_PARTS = 64
_FEW = 1 << 15  # objects that a plain collection holds, grows to and frees in a millisecond or two

KeyT = TypeVar("KeyT", str, int, float, tuple[int, str])
HashT = TypeVar("HashT")
ValueT = TypeVar("ValueT")


class SlicedSet(Generic[HashT]):
    """A set in parts, each of which grows by itself."""

    def __init__(self) -> None:
        self._parts: list[set[HashT]] = [set() for _ in range(_PARTS)]

    def __contains__(self, one: HashT) -> bool:
        return one in self._parts[hash(one) >> 4 & 63]  # an id ends with four zeros

    def add(self, one: HashT) -> None:
        """Add an element."""
        self._parts[hash(one) >> 4 & 63].add(one)

    def __iter__(self) -> Iterator[HashT]:
        return chain.from_iterable(self._parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def release(self) -> None:
        """Empty it."""
        release(*self._parts)


class SlicedDict(MutableMapping[HashT, ValueT]):
    """A dict in parts, each of which grows by itself. It keeps the order of its keys, and keys cannot be removed."""

    def __init__(self) -> None:
        self._parts: list[dict[HashT, ValueT]] = [{} for _ in range(_PARTS)]
        self._keys: list[HashT] = []

    def __getitem__(self, key: HashT) -> ValueT:
        return self._parts[hash(key) >> 4 & 63][key]

    def __contains__(self, key: object) -> bool:
        return key in self._parts[hash(key) >> 4 & 63]

    def get(self, key: HashT, default: Any = None) -> Any:
        """The value of a key, or the default."""
        return self._parts[hash(key) >> 4 & 63].get(key, default)

    def __setitem__(self, key: HashT, value: ValueT) -> None:
        part = self._parts[hash(key) >> 4 & 63]
        if key not in part:
            self._keys.append(key)
        part[key] = value

    def setdefault(self, key: HashT, default: Any = None) -> Any:
        """The value of a key, which is set to the default first if there is none."""
        part = self._parts[hash(key) >> 4 & 63]
        if key not in part:
            self._keys.append(key)
        return part.setdefault(key, default)

    def __delitem__(self, key: HashT) -> None:
        raise TypeError("none can be taken out")

    def __iter__(self) -> Iterator[HashT]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def in_order(self) -> Iterator[ValueT]:
        """The values in the order of their keys: like ``values()``, in half the time."""
        parts = self._parts
        return (parts[hash(key) >> 4 & 63][key] for key in self._keys)

    def items_in_order(self) -> Iterator[tuple[HashT, ValueT]]:
        """Keys and values, in the order of the keys: as ``items()``, in half the time."""
        return zip(self._keys, self.in_order(), strict=True)

    def release(self) -> None:
        """Empty it."""
        release(*self._parts, self._keys)


def dict_for(count: int) -> dict[Any, Any] | SlicedDict[Any, Any]:
    """An empty dict for so many keys: a plain one, which takes a third of the time, unless there may be very many."""
    return {} if count <= _FEW else SlicedDict()


def set_for(count: int) -> set[Any] | SlicedSet[Any]:
    """An empty set, likewise."""
    return set() if count <= _FEW else SlicedSet()


def in_order(some: dict[HashT, ValueT] | SlicedDict[HashT, ValueT]) -> Iterable[ValueT]:
    """The values of either kind of dict, in the order of their keys."""
    return some.in_order() if isinstance(some, SlicedDict) else some.values()


def items_in_order(some: dict[HashT, ValueT] | SlicedDict[HashT, ValueT]) -> Iterable[tuple[HashT, ValueT]]:
    """Keys and values of either kind of dict, in their order."""
    return some.items_in_order() if isinstance(some, SlicedDict) else some.items()


def release(*collections: list[Any] | dict[Any, Any] | set[Any] | SlicedSet[Any] | SlicedDict[Any, Any]) -> None:
    """Empty large collections that are no longer needed."""
    for some in collections:
        if isinstance(some, SlicedSet | SlicedDict):
            some.release()
        elif isinstance(some, list):
            while some:
                del some[-_SLICE:]
        elif isinstance(some, dict):
            while len(some) > _FEW:
                some.popitem()
            some.clear()
        else:
            while len(some) > _FEW:
                some.pop()
            some.clear()


def sorted_positions(keys: Sequence[KeyT], part: int = 1 << 13) -> list[int]:
    """The positions of keys in sorted order, equal keys in their own order.

    The keys are first split into ranges, and each range is sorted by itself.
    """
    if len(keys) <= part:
        return sorted(range(len(keys)), key=keys.__getitem__)
    sample = sorted(keys[:: max(1, part // 8)])  # about eight of each part
    bounds = sample[8::8]
    parts: list[list[int]] = [[] for _ in range(len(bounds) + 1)]
    for at, key in enumerate(keys):
        parts[bisect_right(bounds, key)].append(at)
    return [at for some in parts for at in sorted(some, key=keys.__getitem__)]
