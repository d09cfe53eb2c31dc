"""Rules learned from values: how one engine spells what another calls otherwise.

From tensors that are proven to be the same (``evidence``), the layers that are the same are found (``nodes``), then
what stands around them (``structure``), their ports (``ports``) and what one side fuses (``fused``). Pairs of a few
layers become rules for all of them (``lift``), also beyond the first error, where values prove nothing any more. It is
deterministic, and what could be one of two things stays unpaired.
"""

from tensordiff.align.learn.learned import Learned, LearnedRule
from tensordiff.align.learn.learner import learn, leaves_something

__all__ = ["Learned", "LearnedRule", "learn", "leaves_something"]
