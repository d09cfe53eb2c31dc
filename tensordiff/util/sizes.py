"""Bytes as people say them: one way for all faces, in thousands, as ``--max-bytes 500MB`` takes them."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB")


def bytes_said(nbytes: float) -> str:
    """A number of bytes in the unit that suits it: ``2.3 kB``."""
    for unit in _UNITS[:-1]:
        if round(nbytes, 1) < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} {_UNITS[-1]}"
