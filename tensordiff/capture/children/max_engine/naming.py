"""What a layer of a MAX model is called: the path of attributes that leads to it, from ``model``.

A layer that no path leads to (made on the fly) is called by its class, numbered from the second on,
as MAX's own print hooks do. A layer that several paths lead to has the shortest, first one.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

from max.experimental.nn import Module as NewModule
from max.nn.layer import Layer

from tensordiff.errors import CaptureError, printable

ROOT = "model"
_PREFIX = re.compile(rf"^(?:{ROOT}\.)+")


class Names:
    """Names of layers, by identity. Holds the layers, since an identity lives only as long as its object."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[Any, str]] = {}
        self._unnamed: Counter[str] = Counter()

    def add_tree(self, root: Any) -> None:
        """Name all layers under a root; those that have a name keep it."""
        for layer, name in paths(root):
            self._names.setdefault(id(layer), (layer, name))

    def of(self, layer: Any) -> str:
        """The layer's name, given now if it has none."""
        if (found := self._names.get(id(layer))) is None:
            found = self._names[id(layer)] = (layer, self._by_class(type(layer).__name__))
        return found[1]

    def layers(self) -> dict[str, Any]:
        """Every named layer, by its name."""
        return {name: layer for layer, name in self._names.values()}

    def _by_class(self, name: str) -> str:
        self._unnamed[name] += 1
        return name if self._unnamed[name] == 1 else f"{name}{self._unnamed[name]}"


def paths(root: Any) -> Iterator[tuple[Any, str]]:
    """All layers under a root with their paths, nearest first, each once."""
    if isinstance(root, NewModule):
        yield root, ROOT
        yield from ((module, f"{ROOT}.{path}") for path, module in root.descendants)
    else:
        yield from _walk(root)


def _walk(root: Layer) -> Iterator[tuple[Layer, str]]:
    waiting, seen = deque[tuple[Any, str]]([(root, ROOT)]), set[int]()
    while waiting:
        found, name = waiting.popleft()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, Layer):
            yield found, name
        waiting.extend((child, f"{name}.{key}") for key, child in _children(found))


def _children(found: Any) -> Iterator[tuple[object, Any]]:
    items: Iterable[tuple[object, Any]]
    if isinstance(found, Layer):
        items = _attributes(found)
    else:
        items = found.items() if isinstance(found, dict) else enumerate(found)
    yield from ((key, value) for key, value in items if isinstance(value, Layer | list | tuple | dict))


def _attributes(layer: Layer) -> Iterator[tuple[object, Any]]:
    """A private dict is a module's own bookkeeping, which would name every layer a second time."""
    for key, value in vars(layer).items():
        if not (key.startswith("_") and isinstance(value, dict)):
            yield key, value


def find_layer(asked: str, layers: Iterable[str]) -> str:
    """The layer that a person means: by its name, or by its end where only one has it; the reference's name will do."""
    there, end = list(layers), _PREFIX.sub("", asked)
    exact = [layer for layer in there if asked in (layer, layer.removeprefix(f"{ROOT}."))]
    found = exact or [layer for layer in there if layer.endswith(f".{end}")]
    if len(found) == 1:
        return found[0]
    near = ", ".join((found or get_close_matches(asked, there, 4, 0.3))[:4]) or "none"
    why = f"there are {len(found)} of that name; give one whole" if found else "there is no such layer; near it"
    raise CaptureError(f"{printable(asked)}: {why}: {printable(near)}")
