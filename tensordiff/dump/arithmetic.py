"""What a manifest says about the arithmetic of a run, beyond the dtypes of its tensors.

On NVIDIA GPUs from Ampere on, float32 matrix products and convolutions may be computed in TF32: sums are float32, but
only 10 fraction bits of every factor are used. The result is stored as float32 and does not show it.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from tensordiff.dump.model import Dump

Tf32 = Literal["nowhere", "convolutions", "everywhere"]
_FIRST_WITH_TF32 = 80  # Ampere
_CONVOLUTION = re.compile(r"Conv")


def tf32_in(dump: Dump) -> Tf32:
    """Where a run computed in TF32.

    If it may have done so, and nothing says that it could not, it counts as having done so.
    """
    flags: Any = dump.facts.get("flags")
    if not isinstance(flags, dict) or not _has_tf32(dump):
        return "nowhere"
    if flags.get("tf32_matmul") is True:
        return "everywhere"
    return "convolutions" if flags.get("tf32_cudnn") is True and _convolves(dump) else "nowhere"


def is_convolution(module_class: str | None) -> bool:
    """Whether a module class is a convolution, by its name."""
    return module_class is not None and _CONVOLUTION.search(module_class) is not None


def _convolves(dump: Dump) -> bool:
    return any(entry.origin is not None and is_convolution(entry.origin.module_class) for entry in dump.entries)


def _has_tf32(dump: Dump) -> bool:
    """Whether a run was on a GPU that has TF32, as far as that is known; AMD GPUs compute float32 in full."""
    if "cuda" not in str(dump.facts.get("device")):
        return False
    cards: Any = dump.facts.get("accelerators")
    if not isinstance(cards, list):
        return True
    return any(_card_has_tf32(card) for card in cards if isinstance(card, dict))


def _card_has_tf32(card: dict[str, Any]) -> bool:
    match = re.fullmatch(r"sm_(\d{2,3})[a-z]?", str(card.get("architecture")))
    return card.get("vendor") != "AMD" and (match is None or int(match[1]) >= _FIRST_WITH_TF32)
