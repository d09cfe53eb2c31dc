"""``tensordiff.tap(name, tensor)``: a user's own point to record within a forward.

While no capture runs it imports nothing and does nothing but look at an empty list.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class TapListener(Protocol):
    """A capture that takes tapped values."""

    def tap(self, name: str, value: Any) -> None:
        """Take one named value."""


listeners: list[TapListener] = []
"""Captures under way in this process, innermost last."""


def tap(name: str, tensor: T) -> T:
    """Write a tensor (or a tuple or dict of them) into the dump being captured, if there is one; gives it back."""
    if listeners:
        for listener in listeners:
            listener.tap(name, tensor)
    return tensor
