"""An exhibit: one bug that people reported, how to rebuild it, and what should be said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from studies.museum.architectures import Architecture
from studies.museum.questions import Asking, prompt

Change = Callable[[Any], None]
"""Changes a model in place."""

SEES_BACK = ("all_but_first", "grows_with_position", "from_token", "later_tokens")
"""What is seen of a bug in scores or positions, where the first token attends to nothing but itself."""
ROUTES = ("routes", "expert_weights", "scattered_tokens", "one_token")
"""Tokens are sent to other experts; where only blocks were dumped, just those tokens are wrong."""
ROWS = ("batch_rows", "one_slice")
"""Some rows of a batch are wrong and others right."""


@dataclass(frozen=True)
class Exhibit:
    """One reported bug."""

    name: str
    reports: tuple[str, ...]
    """Where it was reported: ``owner/repository#number``."""
    what: str
    """What was wrong, in a sentence."""
    architecture: Architecture
    culprits: tuple[str, ...]
    """The path of the module that computes it; where several can be said to, all of them, the likeliest first."""
    plant: Change
    """Puts the bug into the candidate."""
    hints: tuple[str, ...] = ()
    """Kinds of hint that are right. Where there is none, any hint is wrong."""
    question: Asking = prompt
    prepare: Change | None = None
    """Weights that make it show, on both sides."""
    right: Change | None = None
    """What makes the reference right, where transformers has the bug or lacks the part."""
    step: int = 0
    """The call of the model in which it is first seen."""
    has_wrong_state: bool = False
    """Whether what it leaves in the cache is wrong, so that a later call shows it with wrong inputs."""

    @property
    def has_links(self) -> bool:
        """Whether every report can be looked up."""
        return bool(self.reports) and all(report.count("#") == 1 and "/" in report for report in self.reports)


def leave(_: Any) -> None:
    """Nothing is changed: the bug is that the candidate lacks what makes the reference right."""
