"""Which tensor answers which."""

from tensordiff.align.match import Alignment, AlignmentPlan, Pair, align
from tensordiff.align.rules.rule import RuleSet

__all__ = ["Alignment", "AlignmentPlan", "Pair", "RuleSet", "align"]
