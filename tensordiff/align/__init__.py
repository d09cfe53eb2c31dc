"""Which tensor answers which."""

from tensordiff.align.match import Alignment, Pair, align
from tensordiff.align.rules import RuleSet

__all__ = ["Alignment", "Pair", "RuleSet", "align"]
