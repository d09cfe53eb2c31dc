"""Find the first tensor where two runs of the same neural network stop agreeing.

As a library, beside a running torch model::

    with tensordiff.capture(model, "dump/"):
        model(**inputs)

and ``tensordiff.tap(name, tensor)`` within any ``forward``. In a test, ``tensordiff.testing.assert_agrees(a, b)``.
Importing ``tensordiff`` loads none of these; each is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensordiff import testing
    from tensordiff.capture.engines.torch.library import capture
    from tensordiff.capture.tap import tap
    from tensordiff.disagreement import Disagreement

__all__ = ["Disagreement", "__version__", "capture", "tap", "testing"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in ("capture", "testing"):
        return import_module(f"tensordiff.{name}")
    if name == "tap":
        return import_module("tensordiff.capture.tap").tap
    if name == "Disagreement":
        return import_module("tensordiff.disagreement").Disagreement
    raise AttributeError(f"module 'tensordiff' has no attribute {name!r}")
