"""Capture: runs a source into a dump and, where asked, injects the reference's inputs while it runs.

Calling the package is the library's ``tensordiff.capture(model, "dump/")``. Frameworks are imported only in
``engines``: in a child process or, for the library, in the caller's process.
"""

from tensordiff.util.callable_module import make_callable

make_callable(__name__, "tensordiff.library.runs", "capture")
