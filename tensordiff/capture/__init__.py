"""Run it again: a source into a dump, with the reference's inputs injected if asked.

This package is also the library's ``tensordiff.capture(model, "dump/")``: a module can be called when its class
says how. Nothing here imports a framework; ``children`` does, in a process of its own or in the caller's.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike
    from typing import Any

    from tensordiff.capture.engines.torch.library import LiveCapture


class _Capture(ModuleType):
    """The package itself, which can be called."""

    def __call__(self, model: Any, folder: str | PathLike[str], **options: Any) -> LiveCapture:
        """Write what a torch model does within a ``with`` block into a dump: see ``library.capture``."""
        from tensordiff.capture.engines.torch.library import capture

        return capture(model, folder, **options)


sys.modules[__name__].__class__ = _Capture
