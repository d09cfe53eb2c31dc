"""Where healthy layers stand: errors and amplification of clean runs, by type, component, depth and reduction length.

The floors of ``tensordiff.compare.judge.verdict`` are chosen so that all of these stay within them; this
prints, and writes into ``docs/verdicts.md``, what they were chosen by.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from studies.captures import write
from studies.models import archs
from studies.trial import DTYPES, compare, healthy_runs
from tensordiff.compare.judge.verdict import UNITS, floor_for
from tensordiff.report.labels import component

_SUMMED = ("float32", "bfloat16", "float16")
LENGTHS = (64, 256, 1024, 4096, 16384)


class Layer(NamedTuple):
    """One output of a healthy run."""

    dtypes: tuple[str, str]
    component: str
    block: int | None
    error: float
    amplification: float | None


def layers(seeds: range, folder: Path) -> Iterator[Layer]:
    """Every floating output of clean runs in which no route flipped, everything dumped."""
    for seed in seeds:
        for arch in archs():
            for dtypes in DTYPES:
                tiny, *runs = healthy_runs(arch.name, seed, dtypes)
                sides = [write(folder / f"{k}", run, tiny, "everything") for k, run in enumerate(runs)]
                rows = compare(*sides)[1].rows
                if any("experts" in row.verdict.why for row in rows):
                    continue
                for row in rows:
                    if row.diff and not row.is_input and not row.is_exact:
                        name = row.pair.reference.layer
                        yield Layer(dtypes, component(name), _block(name), row.diff.rel_l2, row.amplification)


def _block(name: str) -> int | None:
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


def by_component(found: Sequence[Layer]) -> list[str]:
    """Errors and amplification by type and component, beside the floor."""
    groups: dict[tuple[tuple[str, str], str], list[Layer]] = defaultdict(list)
    for layer in found:
        groups[layer.dtypes, layer.component].append(layer)
    head = [
        "type", "component", "outputs", "rel_l2 median", "99 %", "worst", "in roundings", "amplification 99 %", "worst",
    ]  # fmt: skip
    lines = [_line(head), _line(["---", "---", *["---:"] * 7])]
    for (dtypes, name), some in sorted(groups.items()):
        errors = np.array([layer.error for layer in some])
        grown = np.array([layer.amplification for layer in some if layer.amplification is not None])
        worst = float(errors.max())
        unit = UNITS[floor_for(*dtypes)[0]]
        cells = [*(f"{value:.1e}" for value in (np.median(errors), np.quantile(errors, 0.99), worst))]
        cells += [f"{worst / unit:.0f}"]
        cells += [f"{np.quantile(grown, 0.99):.1f}", f"{grown.max():.1f}"] if grown.size else ["-", "-"]
        lines.append(_line([" / ".join(dtypes), name, str(len(some)), *cells]))
    return lines


def by_depth(found: Sequence[Layer]) -> list[str]:
    """The median error of all outputs of a block, by its number."""
    depths = range(1 + max(layer.block or 0 for layer in found))
    lines = [_line(["type", *(f"block {depth}" for depth in depths)]), _line(["---", *["---:"] * len(depths)])]
    for dtypes in DTYPES:
        errors = [[x.error for x in found if x.dtypes == dtypes and x.block == depth] for depth in depths]
        lines.append(_line([" / ".join(dtypes), *(f"{np.median(some):.1e}" if some else "-" for some in errors)]))
    return lines


def by_length(seed: int = 0) -> list[str]:
    """A matrix product summed in two orders, by how much is summed."""
    lines = [_line(["type", *(f"{length:,} terms" for length in LENGTHS)]), _line(["---", *["---:"] * len(LENGTHS)])]
    rows = ([dtype, *(f"{_summed(n, dtype, seed):.1e}" for n in LENGTHS)] for dtype in _SUMMED)
    return lines + [_line(row) for row in rows]


def _summed(length: int, dtype: str, seed: int) -> float:
    """rel_l2 of a product in two halves against the whole."""
    torch.manual_seed(seed)
    x, weight = (torch.randn(32, length).to(getattr(torch, dtype)) for _ in range(2))
    half = length // 2
    whole = (x @ weight.T).double()
    parts = x[:, :half] @ weight[:, :half].T + x[:, half:] @ weight[:, half:].T
    return float((parts.double() - whole).norm() / whole.norm())


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def text(found: Sequence[Layer]) -> str:
    """All tables."""
    return "\n\n".join("\n".join(table) for table in (by_component(found), by_depth(found), by_length()))
