"""How a parameter's verdict, shape and types are spelled, on the command line and in the app."""

from __future__ import annotations

from tensordiff.report.labels import COLOURS, GLYPHS
from tensordiff.weights.comparison import ParameterRow, WeightVerdict

PARAMETER_GLYPHS: dict[WeightVerdict, str] = {
    "agrees": GLYPHS["agrees"], "diverges": GLYPHS["diverges"], "missing": "-", "unexpected": "+",
    "unknown": GLYPHS["unknown"],
}  # fmt: skip
PARAMETER_COLOURS: dict[WeightVerdict, str] = {
    "agrees": COLOURS["agrees"], "diverges": COLOURS["diverges"], "missing": COLOURS["diverges"],
    "unexpected": "yellow", "unknown": COLOURS["unknown"],
}  # fmt: skip


def shape_text(row: ParameterRow) -> str:
    """``160x64``."""
    return "x".join(map(str, row.shape)) or "scalar"


def types_text(row: ParameterRow) -> str:
    """The type of both sides, or ``float32→Q4_K``."""
    ours, theirs = row.dtypes
    if ours and theirs and ours != theirs:
        return f"{ours}→{theirs}"
    return ours or theirs or ""
