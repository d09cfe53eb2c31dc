"""What is run: a model and its inputs, step by step.

A program is asked for its steps anew for every pass, and gives the same each time: an injected run makes several.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn


class Step(NamedTuple):
    """One call of a model."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


Steps = Generator[Step, Any, None]
"""Steps in order; each is sent what the model gave for the one before."""


class Program(Protocol):
    """A model and its inputs."""

    def steps(self) -> Steps:
        """The run from its beginning."""

    def facts(self) -> Mapping[str, Any]:
        """What a dump should say of it beside what can be seen from the model; asked when the run is over."""


def seed(number: int) -> None:
    """Begin with the same random numbers, whoever gives them."""
    random.seed(number)
    np.random.seed(number % (1 << 32))  # what a model's code may use is this old way
    torch.manual_seed(number)
