"""A torch program, that is, a model and its inputs step by step; and the devices it runs on.

The steps of a program are requested again in every pass of an injected run, and must be the same each time. The meaning
of ``--device`` for torch is decided here: ``auto`` is the first of cuda, mps and cpu that exists. ``device_map=auto``
and several GPUs leave the placement of layers to accelerate, for models that no single device holds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from tensordiff.capture.devices import check_gpu_numbers, parse_device
from tensordiff.capture.engines.torch.devices.offload import compute_device
from tensordiff.errors import CaptureError


class Placement(NamedTuple):
    """Where the weights go: to one device, or wherever accelerate puts them."""

    device: torch.device | None
    """The device of the inputs; None if accelerate decides."""
    device_map: str | None = None
    gpus: tuple[int, ...] = ()
    """The GPUs that accelerate may use; empty for all."""

    def __str__(self) -> str:
        if self.gpus:
            return f"gpu:{','.join(map(str, self.gpus))}"
        return f"device_map={self.device_map}" if self.device_map else str(self.device)


def placement(text: str, *, gpus: int | None = None, has_mps: bool | None = None) -> Placement:
    """The placement for a value of ``--device``; ``gpus`` is the number of devices that torch calls cuda."""
    choice = parse_device(text)
    cuda = torch.cuda.device_count() if gpus is None else gpus
    mps = torch.backends.mps.is_available() if has_mps is None else has_mps
    if choice.device_map is not None:
        return Placement(None, choice.device_map)
    if choice.kind == "cpu" or (choice.kind == "auto" and not cuda and not mps):
        return Placement(torch.device("cpu"))
    if choice.kind == "mps" or (choice.kind in ("auto", "gpu") and not cuda):
        if not mps:
            raise CaptureError(f"--device {text}: torch sees no GPU here; try --device auto, or cpu")
        check_gpu_numbers(text, choice, 1)  # a Mac has one
        return Placement(torch.device("mps"))
    if not cuda:
        raise CaptureError(f"--device {text}: torch sees no cuda device here; try --device auto, or cpu")
    check_gpu_numbers(text, choice, cuda)
    if len(choice.numbers) > 1:
        return Placement(None, "auto", choice.numbers)
    return Placement(torch.device("cuda", choice.number))


def first_device(model: torch.nn.Module) -> torch.device:
    """The device for a model's inputs: where it computes first."""
    return compute_device(model) or torch.device("cpu")


class Step(NamedTuple):
    """One call of a model."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss: Callable[[Any], torch.Tensor] | None = None
    """Computes from the model's output the number to differentiate, for gradients."""


Steps = Generator[Step, Any, None]
"""Steps in order; each yield returns the model's output for the step."""


class Program(Protocol):
    """A model and its inputs."""

    def steps(self) -> Steps:
        """The run from its beginning."""

    def facts(self) -> Mapping[str, Any]:
        """Facts for the dump that cannot be seen from the model; requested when the run is over."""


def seed(number: int) -> None:
    """Seed all random number generators."""
    random.seed(number)
    np.random.seed(number % (1 << 32))  # a model's code may use numpy's legacy generator
    torch.manual_seed(number)
