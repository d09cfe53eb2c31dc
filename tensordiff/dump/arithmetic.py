"""What a manifest says of the arithmetic of a run, beside the types of its tensors.

On NVIDIA's GPUs from Ampere on, float32 matrix products and convolutions may be computed in TF32: sums are float32, but
of every factor only 10 bits after the point are kept. What is written is float32 all the same, and does not show it.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from tensordiff.dump.model import Dump

Tf32 = Literal["nowhere", "convolutions", "everywhere"]
_FIRST_WITH_TF32 = 80  # Ampere
_CONVOLUTION = re.compile(r"Conv")


def tf32_in(dump: Dump) -> Tf32:
    """Where a run computed in TF32. What may have, and nothing says that it could not, counts as having done so."""
    flags: Any = dump.facts.get("flags")
    if not isinstance(flags, dict) or not _has_tf32(dump):
        return "nowhere"
    if flags.get("tf32_matmul") is True:
        return "everywhere"
    return "convolutions" if flags.get("tf32_cudnn") is True and _convolves(dump) else "nowhere"


def is_convolution(module_class: str | None) -> bool:
    """Whether modules of a class convolve, by its name."""
    return module_class is not None and _CONVOLUTION.search(module_class) is not None


def _convolves(dump: Dump) -> bool:
    return any(entry.origin is not None and is_convolution(entry.origin.module_class) for entry in dump.entries)


def _has_tf32(dump: Dump) -> bool:
    """Whether a run was on a GPU that has TF32, as far as that is known; AMD's compute float32 in full."""
    if "cuda" not in str(dump.facts.get("device")):
        return False
    cards: Any = dump.facts.get("accelerators")
    if not isinstance(cards, list):
        return True
    return any(_card_has_tf32(card) for card in cards if isinstance(card, dict))


def _card_has_tf32(card: dict[str, Any]) -> bool:
    found = re.fullmatch(r"sm_(\d{2,3})[a-z]?", str(card.get("architecture")))
    return card.get("vendor") != "AMD" and (found is None or int(found[1]) >= _FIRST_WITH_TF32)
