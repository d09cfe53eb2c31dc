"""What the tensors of one torch file are called: the path of keys that leads to them.

``{"a": {"b": tensor}}`` holds ``a.b``, ``{"a": [tensor, tensor]}`` holds ``a_0`` and ``a_1``. A value
that a pickle refers to twice is found twice, so a few bytes can claim more tensors than a disk could
hold: how often values may be shared is bounded here, not how many there are.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensordiff.dump.torch_stand_ins import BadPickle, Refused, Storage, Tensor

Leaf = Tensor | Refused
NamedLeaf = tuple[str, Leaf]
_Container = dict[object, object] | list[object] | tuple[object, ...]

_MAX_DEPTH = 64
_MAX_NAME = 4096
_MAX_TEXT = 1 << 25
_MAX_SHARING = 16
_ALWAYS_ALLOWED = 1 << 14
_BARE_STORAGE = Refused("is a bare storage; save the tensor itself")
_WALKED = (Tensor, Refused, Storage, dict, list, tuple)


def name_tensors(content: object, stem: str) -> list[NamedLeaf]:
    """Every tensor a file holds, in the order it was saved; a bare one is called by the file's stem."""
    return list(_Walk(stem).leaves("", _unwrap(content), 0))


def _unwrap(content: object) -> object:
    """SGLang's dumper writes each tensor as a value with notes about it."""
    if not isinstance(content, dict) or content.keys() != {"value", "meta"}:
        return content
    return content["value"]


class _Walk:
    """A walk through what a file holds, and how far it has come."""

    def __init__(self, stem: str) -> None:
        self._stem, self._room, self._text = stem, _ALWAYS_ALLOWED, _MAX_TEXT
        self._seen: set[int] = set()

    def leaves(self, name: str, value: object, depth: int) -> Iterator[NamedLeaf]:
        if isinstance(value, Leaf):
            yield name or self._stem, value
        elif isinstance(value, Storage):
            yield name or self._stem, _BARE_STORAGE
        elif isinstance(value, dict | list | tuple):
            self._enter(value, depth)
            for child, below in self._children(name, value):
                self._check_name(child)
                yield from self.leaves(child, below, depth + 1)

    def _children(self, name: str, value: _Container) -> Iterator[tuple[str, object]]:
        if isinstance(value, dict):
            before = f"{name}." if name else ""
            return ((f"{before}{key}", below) for key, below in value.items() if isinstance(below, _WALKED))
        before = f"{name or self._stem}_"
        return ((f"{before}{i}", below) for i, below in enumerate(value) if isinstance(below, _WALKED))

    def _enter(self, value: _Container, depth: int) -> None:
        """Count a container's values; met for the first time, it brings room to meet them again."""
        if id(value) not in self._seen:
            self._seen.add(id(value))
            self._room += len(value) * _MAX_SHARING
        self._room -= len(value)
        if self._room < 0 or depth >= _MAX_DEPTH:
            raise BadPickle("holds values shared too often or nested too deep; save a flat dict of tensors")

    def _check_name(self, name: str) -> None:
        self._text -= len(name)
        if len(name) > _MAX_NAME or self._text < 0:
            raise BadPickle(f"names a tensor with {len(name)} characters, or too many; save under shorter keys")
