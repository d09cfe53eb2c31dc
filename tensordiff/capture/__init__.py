"""Capturing: a source is run into a dump, with the reference's inputs injected if asked.

The package itself is also the library's ``tensordiff.capture(model, "dump/")``: a module can be called where its class
defines how. Frameworks are imported only in ``engines``, in a child process or, for the library, in the caller's.
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
