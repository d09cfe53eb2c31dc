"""A torch program, which is a model and its inputs step by step; and the devices it runs on.

A program is asked for its steps again in every pass of an injected run, and must give the same each time. Which device
``--device`` means is decided here: ``auto`` is the first of cuda, mps and cpu that exists; ``device_map=auto`` leaves
the placement to accelerate, layer by layer, for models that no single device holds.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from tensordiff.errors import CaptureError, printable

_MAP = "device_map="


class Placement(NamedTuple):
    """Where the weights go: to one device, or wherever accelerate puts them."""

    device: torch.device | None
    """Where inputs go; None where that is for accelerate to say."""
    device_map: str | None = None

    def __str__(self) -> str:
        return f"{_MAP}{self.device_map}" if self.device_map else str(self.device)


def placement(asked: str, *, has_cuda: bool | None = None, has_mps: bool | None = None) -> Placement:
    """What a person's ``--device`` means here."""
    cuda = torch.cuda.is_available() if has_cuda is None else has_cuda
    mps = torch.backends.mps.is_available() if has_mps is None else has_mps
    if asked.startswith(_MAP):
        return Placement(None, asked.removeprefix(_MAP))
    if asked == "auto":
        return Placement(torch.device("cuda" if cuda else "mps" if mps else "cpu"))
    device = _named(asked)
    if (device.type == "cuda" and not cuda) or (device.type == "mps" and not mps):
        raise CaptureError(f"--device {asked}: torch sees no {device.type} device here; try --device auto, or cpu")
    if device.type == "cuda" and has_cuda is None and (device.index or 0) >= torch.cuda.device_count():
        raise CaptureError(f"--device {asked}: there are {torch.cuda.device_count()} cuda devices, counted from 0")
    return Placement(device)


def _named(asked: str) -> torch.device:
    try:
        return torch.device(asked)
    except RuntimeError as error:
        raise CaptureError(
            f"--device {printable(asked)}: torch knows no such device; "
            "give auto, cpu, cuda, cuda:1, mps or device_map=auto"
        ) from error


def first_device(model: torch.nn.Module) -> torch.device:
    """Where a model's first weight lies, which is where its inputs are wanted."""
    found = next(iter(model.parameters()), None)
    if found is None:
        found = next(iter(model.buffers()), None)
    return torch.device("cpu") if found is None or found.device.type == "meta" else found.device


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
