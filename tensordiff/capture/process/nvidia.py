"""What NVIDIA's driver for Linux says under /proc, for engines that run on its GPUs without telling of them.

No library of CUDA is needed. Read in the driver's README ("Using the /proc File System Interface"): ``version`` has the
driver's version, ``gpus/*/information`` the model of each card. There is no such driver where this is tested.
"""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path("/proc/driver/nvidia")


def driver_version(folder: Path = FOLDER) -> str | None:
    """The version of the driver; None where there is none."""
    try:
        text = (folder / "version").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return found[1] if found else None


def card_model(folder: Path = FOLDER) -> str | None:
    """The model of the machine's cards, where all are the same: CUDA counts cards in an order of its own."""
    try:
        texts = [path.read_text(errors="replace") for path in sorted((folder / "gpus").glob("*/information"))]
    except OSError:
        return None
    models = {found[1].strip() for text in texts if (found := re.search(r"^Model:(.*)$", text, re.MULTILINE))}
    return models.pop() if len(models) == 1 else None
