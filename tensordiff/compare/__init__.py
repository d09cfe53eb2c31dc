"""Compare the two tensors of a pair: numbers, verdicts, hints.

The module is callable: it is the library's ``tensordiff.compare(reference, candidate)``.
"""

from tensordiff.util.callable_module import make_callable

make_callable(__name__, "tensordiff.library.comparison", "compare")
