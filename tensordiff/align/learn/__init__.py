"""Rules learned from values: how one engine spells what another calls differently.

From tensors that are proven to be the same (``evidence``) follow the layers that are the same (``nodes``), then the
layers around them (``structure``), their ports (``pairing.ports``) and what one side fuses (``pairing.fused``). Pairs
of a few layers become rules for all of them (``generalization``), also beyond the first error, where values prove
nothing any more. Learning is deterministic, and what could be one of two things stays unpaired.
"""

from tensordiff.align.learn.learned import Learned, LearnedRule
from tensordiff.align.learn.learner import learn, leaves_something

__all__ = ["Learned", "LearnedRule", "learn", "leaves_something"]
