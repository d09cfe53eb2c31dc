"""Capturing: a source is run into a dump, with the reference's inputs injected if asked.

Called, it is the library's ``tensordiff.capture(model, "dump/")``. Frameworks are imported only in ``engines``, in a
child process or, for the library, in the caller's.
"""

from tensordiff.util.callable_module import make_callable

make_callable(__name__, "tensordiff.library.runs", "capture")
