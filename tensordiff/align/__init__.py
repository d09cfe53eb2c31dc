"""Alignment: which tensor of the candidate corresponds to which tensor of the reference.

Called, the package is the library's ``tensordiff.align(reference, candidate)``.
"""

from tensordiff.align.match import Alignment, AlignmentPlan, Pair, align
from tensordiff.align.rules.rule import RuleSet
from tensordiff.util.callable_module import make_callable

__all__ = ["Alignment", "AlignmentPlan", "Pair", "RuleSet", "align"]

make_callable(__name__, "tensordiff.library.alignment", "align")
