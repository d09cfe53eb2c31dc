"""Which tensor answers which."""

from tensordiff.align.match import Alignment, Pair, Plan, align
from tensordiff.align.rules.rule import RuleSet

__all__ = ["Alignment", "Pair", "Plan", "RuleSet", "align"]
