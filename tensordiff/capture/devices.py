"""What ``--device`` may say, the same for every engine.

========================  ==============================================================================
``auto``                  the engine's own choice: a GPU where there is one, else the CPU
``cpu``                   the CPU
``gpu``, ``gpu:1``        the machine's GPU, or that of a number, whoever made it
``gpu:0,1``               several
``cuda``, ``cuda:1``      the same, and the engine must reach it by CUDA (or ROCm, which torch calls so too)
``mps``                   the GPU of a Mac
``device_map=auto``       all GPUs there are, and what does not fit wherever there is room
========================  ==============================================================================

An engine that cannot do what a word says refuses it with a sentence. Nothing here imports a framework.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, NamedTuple

from tensordiff.errors import CaptureError, printable

WORDS = "auto, cpu, gpu, gpu:1, cuda:1, mps or device_map=auto"
MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
NVIDIA_FOLDER = Path("/proc/driver/nvidia")
_MAP = "device_map="
_NUMBERED = re.compile(r"(gpu|cuda)(?::(\d{1,4}(?:,\d{1,4})*))?")


class DeviceChoice(NamedTuple):
    """What a person text for."""

    kind: Literal["auto", "cpu", "gpu", "cuda", "mps", "map"]
    numbers: tuple[int, ...] = ()
    """Of GPUs; empty where none was named."""
    device_map: str | None = None
    """How a model is to be spread, in accelerate's words."""

    @property
    def is_gpu(self) -> bool:
        """Whether nothing but a GPU will do."""
        return self.kind in ("gpu", "cuda", "mps")

    @property
    def number(self) -> int:
        """The one GPU that is meant, where it is one."""
        return self.numbers[0] if self.numbers else 0


def parse_device(text: str) -> DeviceChoice:
    """What a text means; raises a sentence where it means nothing."""
    if text.startswith(_MAP):
        how = text.removeprefix(_MAP)
        if how not in MAPS:
            raise CaptureError(f"--device {printable(text)}: {_MAP} is followed by one of {', '.join(MAPS)}")
        return DeviceChoice("map", device_map=how)
    if text in ("auto", "cpu", "mps"):
        return DeviceChoice(text)  # type: ignore[arg-type]  # which mypy does not narrow
    if (found := _NUMBERED.fullmatch(text)) is None:
        raise CaptureError(f"--device {printable(text)}: is not a device; give {WORDS}")
    numbers = tuple(dict.fromkeys(int(number) for number in found[2].split(","))) if found[2] else ()
    return DeviceChoice("gpu" if found[1] == "gpu" else "cuda", numbers)


def check_gpu_numbers(text: str, choice: DeviceChoice, count: int) -> None:
    """Refuse a GPU whose number is too large."""
    missing = [number for number in choice.numbers or (0,) if number >= count]
    if missing:
        found = f"{count} GPU{'s' * (count != 1)} found, counted from 0" if count else "none found"
        raise CaptureError(f"--device {printable(text)}: there is no GPU {missing[0]} here ({found}); try --device cpu")


# --- what the NVIDIA driver says ----------------------------------------------------------------------


def driver_version(folder: Path = NVIDIA_FOLDER) -> str | None:
    """The version of the driver; None where there is none."""
    try:
        text = (folder / "version").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return found[1] if found else None


def card_model(folder: Path = NVIDIA_FOLDER) -> str | None:
    """The model of the machine's cards, where all are the same: CUDA counts cards in an order of its own."""
    try:
        texts = [path.read_text(errors="replace") for path in sorted((folder / "gpus").glob("*/information"))]
    except OSError:
        return None
    models = {found[1].strip() for text in texts if (found := re.search(r"^Model:(.*)$", text, re.MULTILINE))}
    return models.pop() if len(models) == 1 else None
