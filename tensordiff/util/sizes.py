"""Sizes in bytes for people: in powers of 1000, as ``--max-bytes 500MB`` takes them."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB")


def format_bytes(nbytes: float) -> str:
    """A number of bytes with a unit: ``512 B``, ``2.3 kB``."""
    for unit in _UNITS[:-1]:
        if round(nbytes, 1) < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} {_UNITS[-1]}"
