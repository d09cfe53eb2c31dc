"""What was learned, in a line."""

from __future__ import annotations

from tensordiff.align.learn.learned import Learned, LearnedRule
from tensordiff.align.rules.tables import MapRule

RULE = MapRule("layers.{i}.mlp", "blk.{i}.ff")


def test_a_rule_that_no_value_proves_is_said_to_stand_on_structure_alone() -> None:
    alone = Learned((LearnedRule(RULE, (), used=4),))
    assert alone.sentence == "learned 1 rule: blk.{i}.ff = layers.{i}.mlp, by structure alone, used for 4; --no-learn"
    proven = Learned((LearnedRule(RULE, (("a", "b"), ("c", "d")), used=4),))
    assert ", proven on 2 pairs, used for 4; --no-learn" in proven.sentence
