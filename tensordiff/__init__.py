"""Find the first tensor where two runs of the same neural network stop agreeing.

>>> import tensordiff
>>> result = tensordiff.compare({"a": [1.0, 2.0], "b": [3.0, 4.0]}, {"a": [1.0, 2.0], "b": [3.0, 5.0]})
>>> result.verdict, result.culprit.name
('diverges', 'b')

``compare(reference, candidate)`` takes dumps, sources and arrays. ``align`` only pairs tensors; ``bisect`` runs a
binary search. ``capture`` and ``inject`` write dumps; ``tap(name, tensor)`` records a tensor of your own inside any
``forward``. In a test, ``tensordiff.testing.assert_agrees(a, b)`` raises ``Disagreement``.

Importing ``tensordiff`` loads none of these modules; each is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensordiff import testing
    from tensordiff.capture.tap import tap
    from tensordiff.disagreement import Disagreement
    from tensordiff.errors import TensordiffError
    from tensordiff.library.alignment import align
    from tensordiff.library.bisection import bisect
    from tensordiff.library.comparison import compare
    from tensordiff.library.result import Result, ResultRow
    from tensordiff.library.runs import capture, inject

__all__ = [
    "Disagreement", "Result", "ResultRow", "TensordiffError", "__version__", "align", "bisect", "capture", "compare",
    "inject", "tap", "testing",
]  # fmt: skip
__version__ = "0.1.0"

_PACKAGES = ("align", "capture", "compare", "testing")
"""Modules that are attributes of this one; the first three are also callable."""
_FUNCTIONS = {
    "Disagreement": "disagreement",
    "Result": "library.result",
    "ResultRow": "library.result",
    "TensordiffError": "errors",
    "bisect": "library.bisection",
    "inject": "library.runs",
    "tap": "capture.tap",
}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"tensordiff.{name}")
    if name in _FUNCTIONS:
        return getattr(import_module(f"tensordiff.{_FUNCTIONS[name]}"), name)
    raise AttributeError(f"module 'tensordiff' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
