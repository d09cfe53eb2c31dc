"""Find the first tensor where two runs of the same neural network stop agreeing.

As a library, beside a running torch model::

    with tensordiff.capture(model, "dump/"):
        model(**inputs)

and ``tensordiff.tap(name, tensor)`` within anyone's ``forward``. Neither imports anything before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensordiff.capture.engines.torch.library import capture
    from tensordiff.capture.tap import tap

__all__ = ["__version__", "capture", "tap"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "capture":
        return import_module("tensordiff.capture")
    if name == "tap":
        return import_module("tensordiff.capture.tap").tap
    raise AttributeError(f"module 'tensordiff' has no attribute {name!r}")
