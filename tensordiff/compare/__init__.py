"""How far apart the two tensors of a pair are, and what that means: numbers, verdicts, hints.

Called, it is the library's ``tensordiff.compare(reference, candidate)``.
"""

from tensordiff.util.callable_module import make_callable

make_callable(__name__, "tensordiff.library.comparison", "compare")
