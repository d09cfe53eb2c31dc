"""Sizes and shares for people: bytes in powers of 1000, as ``--max-bytes 500MB`` takes them, and percent."""

from __future__ import annotations

import math

_UNITS = ("B", "kB", "MB", "GB", "TB")
_LETTERS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def parse_bytes(text: str) -> int | None:
    """Parse a number of bytes: 500000000, 500MB, 2 GB; None if the text is none of these."""
    digits = text.strip().lower().removesuffix("b").rstrip()
    unit = _LETTERS.get(digits[-1:], 1)
    try:
        size = int(float(digits.rstrip("kmgt")) * unit)
    except (ValueError, OverflowError):
        return None
    return size if size >= 0 else None


def format_bytes(nbytes: float) -> str:
    """A number of bytes with a unit: ``512 B``, ``2.3 kB``."""
    for unit in _UNITS[:-1]:
        if round(nbytes, 1) < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} {_UNITS[-1]}"


def format_percent(share: float) -> str:
    """A share in percent, rounded down to a tenth, so that only all of them is ``100%``."""
    return f"{math.floor(1000 * share + 1e-9) / 10:g}%"


def format_percent_of(count: int, total: int) -> str:
    """A count as a percentage of a total, rounded the same way; a count above zero is never shown as ``0%``."""
    share = count / total if total else 0.0
    return format_percent(share) if share >= 0.001 or not count else "<0.1%"
