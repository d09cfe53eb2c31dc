"""Devices: the values of ``--device``, the same for every engine, and what NVIDIA's driver says of its cards.

========================  ==============================================================================
``auto``                  the engine's own choice: a GPU if there is one, else the CPU
``cpu``                   the CPU
``gpu``, ``gpu:1``        the machine's GPU, or the one with that number, of any vendor
``gpu:0,1``               several GPUs
``cuda``, ``cuda:1``      the same, and the engine must reach it through CUDA (or ROCm, which torch calls cuda)
``mps``                   the GPU of a Mac
``device_map=auto``       all GPUs; what does not fit on them goes to the CPU or the disk
========================  ==============================================================================

An engine that does not support a value refuses it with a sentence. Nothing here imports a framework.

The driver is read from /proc, which works without any CUDA library, for engines that run on NVIDIA GPUs without
reporting them. The driver's README ("Using the /proc File System Interface") documents the files: ``version`` has the
driver's version, ``gpus/*/information`` the model of each card. The tests run on machines without this driver.
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
    """A parsed value of ``--device``."""

    kind: Literal["auto", "cpu", "gpu", "cuda", "mps", "map"]
    numbers: tuple[int, ...] = ()
    """Numbers of GPUs; empty if none was given."""
    device_map: str | None = None
    """How to spread the model over devices, in accelerate's terms."""

    @property
    def is_gpu(self) -> bool:
        """Whether the choice allows only a GPU."""
        return self.kind in ("gpu", "cuda", "mps")

    @property
    def number(self) -> int:
        """The number of the GPU, if one is meant."""
        return self.numbers[0] if self.numbers else 0


def parse_device(text: str) -> DeviceChoice:
    """Parse a value of ``--device``; raises ``CaptureError`` if it is not one."""
    if text.startswith(_MAP):
        how = text.removeprefix(_MAP)
        if how not in MAPS:
            raise CaptureError(f"--device {printable(text)}: {_MAP} is followed by one of {', '.join(MAPS)}")
        return DeviceChoice("map", device_map=how)
    if text in ("auto", "cpu", "mps"):
        return DeviceChoice(text)  # type: ignore[arg-type]  # mypy does not narrow str to these literals
    if (found := _NUMBERED.fullmatch(text)) is None:
        raise CaptureError(f"--device {printable(text)}: is not a device; give {WORDS}")
    numbers = tuple(dict.fromkeys(int(number) for number in found[2].split(","))) if found[2] else ()
    return DeviceChoice("gpu" if found[1] == "gpu" else "cuda", numbers)


def check_gpu_numbers(text: str, choice: DeviceChoice, count: int) -> None:
    """Refuse a GPU whose number is not below ``count``."""
    missing = [number for number in choice.numbers or (0,) if number >= count]
    if missing:
        found = f"{count} GPU{'s' * (count != 1)} found, counted from 0" if count else "none found"
        raise CaptureError(f"--device {printable(text)}: there is no GPU {missing[0]} here ({found}); try --device cpu")


# --- what the NVIDIA driver says ----------------------------------------------------------------------


def driver_version(folder: Path = NVIDIA_FOLDER) -> str | None:
    """The version of NVIDIA's driver; None if there is none."""
    try:
        text = (folder / "version").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return found[1] if found else None


def card_model(folder: Path = NVIDIA_FOLDER) -> str | None:
    """The model of the machine's cards, if all are the same: CUDA numbers cards in an order of its own."""
    try:
        texts = [path.read_text(errors="replace") for path in sorted((folder / "gpus").glob("*/information"))]
    except OSError:
        return None
    models = {found[1].strip() for text in texts if (found := re.search(r"^Model:(.*)$", text, re.MULTILINE))}
    return models.pop() if len(models) == 1 else None
