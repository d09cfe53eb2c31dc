"""The module that a layer is a part of, from its name."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=1 << 16)
def parent_of(layer: str) -> str:
    """The module that a layer is a part of; a numbered layer belongs to the module that holds the list."""
    parent, _, last = layer.rpartition(".")
    return parent.rpartition(".")[0] if last.isdigit() else parent
