"""``tensordiff.tap(name, tensor)``: lets users record values of their own within a forward.

While no capture runs, it imports nothing and only looks at an empty list.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class TapListener(Protocol):
    """A capture that takes tapped values."""

    def tap(self, name: str, value: Any) -> None:
        """Take one named value."""


listeners: list[TapListener] = []
"""The captures running in this process, innermost last."""


def tap(name: str, tensor: T) -> T:
    """Write a tensor (or a tuple or dict of them) into the current capture's dump, if there is one; returns
    the tensor.
    """
    if listeners:
        for listener in listeners:
            listener.tap(name, tensor)
    return tensor
