"""Where a graph runs: the one place that decides on onnxruntime's execution providers.

``auto`` is cuda where this onnxruntime was built with it, else the cpu. What a provider has no kernel for runs on the
cpu, which always comes last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tensordiff.errors import CaptureError, printable

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_CUDA = re.compile(r"cuda(?::(\d{1,4}))?")


class Placement(NamedTuple):
    """The providers in the order they are asked."""

    device: str
    """As a person would name it: ``cpu``, ``cuda:0``."""
    providers: tuple[tuple[str, Mapping[str, str]], ...]
    is_wish: bool = False
    """Whether another will do, since nobody asked for this one."""


def placement(asked: str, available: Sequence[str], *, exact: bool = False) -> Placement:
    """What a person's ``--device`` means where these providers are to be had; ``exact`` rules TF32 out."""
    cpu: tuple[str, Mapping[str, str]] = (CPU, {})
    if asked == "cpu" or (asked == "auto" and CUDA not in available):
        return Placement("cpu", (cpu,))
    found = _CUDA.fullmatch("cuda" if asked == "auto" else asked)
    if found is None:
        raise CaptureError(
            f"--device {printable(asked)}: onnxruntime is run on one of auto, cpu, cuda and cuda:1 (or another number)"
        )
    if CUDA not in available:
        there = ", ".join(name.removesuffix("ExecutionProvider") for name in available) or "nothing"
        raise CaptureError(
            f"--device {printable(asked)}: this onnxruntime has no CUDA (it has {printable(there)}); "
            "install onnxruntime-gpu, or try --device cpu"
        )
    number = found[1] or "0"
    options = {"device_id": number} | ({"use_tf32": "0"} if exact else {})
    return Placement(f"cuda:{number}", ((CUDA, options), cpu), is_wish=asked == "auto")


def settled(placed: Placement, active: Sequence[str]) -> Placement:
    """What became of it: onnxruntime goes on without a provider that will not start."""
    first = placed.providers[0][0]
    if first in active:
        return placed
    if not placed.is_wish:
        raise CaptureError(
            f"--device {placed.device}: onnxruntime could not start {first}; are its libraries and driver there? "
            "Try --device cpu"
        )
    return Placement("cpu", ((CPU, {}),))
