"""``make bench``: run everything, print the tables, keep them in docs/speed.md."""

from __future__ import annotations

import os
import platform
import re
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from benchmarks import alignment, app, capture, commands, install, kernel, many_small, weights
from tensordiff.compare.measure.kernel import describe

ROOT = Path(__file__).resolve().parent.parent
ABOUT = """# Speed

Made by `make bench`: all methods in one process, taking turns, best of several, data in the page cache.
A virtual core may be half a real one: then two threads compute little more than one does, and what is bound by
computing (16-bit types above all) stands further from the limit, which is bound by memory.
**today** is the arithmetic of MAX's `compare_tensors` (to float32, absolute and relative difference, an argmax of
each, isclose) plus torch's MSE, warm. **limit** is all cores reading the two buffers once and doing nothing with them:
nobody can be quicker than today by more than the limit is. **measured** is the measuring pass, **compared** all that
`compare` does with such pairs: a judge that doubts reads some of their elements again.
Ratios travel between machines; times do not. Where a goal is missed in the cache (16-bit floats of 1 MB, float8), the
pass is bound by its vector operations: [a decision](decisions/0002-measuring-pass-in-c.md) counts them.
"""

BUSY = """Where that is more than 0, others worked on the machine meanwhile. All methods take turns, so a ratio
suffers less than a time; but where the second core is taken, what computes more than it reads (all but float32 and
float64) stands up to twice as far from the limit as on a quiet machine."""


def max_times() -> str:
    """Times of captures of MAX, taken by hand: a first one compiles for minutes."""
    found = re.search(r"^## Times\n(.*?)(?=^## |\Z)", (ROOT / "docs" / "max.md").read_text(), re.DOTALL | re.MULTILINE)
    return f"## Modular MAX\n{found[1] if found else ''}"


def table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"## {title}", "", "| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.machine())
    versions = f"numpy {np.__version__}, torch {torch.__version__}"
    told = f"Machine: {os.cpu_count()} cores of {model}; Python {platform.python_version()}, {versions}."
    return f"{told} The measuring pass is {describe()}.\nLoad when this began: {os.getloadavg()[0]:.1f}. {BUSY}\n"


def apart(work: Callable[[], list[list[str]]]) -> list[list[str]]:
    """Rows made in a process of its own: what others have left in this one would be looked through, and show."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(work).result()


def main() -> None:
    parts = [ABOUT, machine()]
    with tempfile.TemporaryDirectory() as folder:
        headings = ("pair", "today", "compared", "measured", "limit", "than today", "measured of the limit", "goal")
        parts.append(table("Large pairs", headings, kernel.rows()))
        print(parts[-1], flush=True)
        headings = ("dump", "pairs/s, all", "pairs/s, measuring", "torch.load and today's arithmetic", "ratio")
        parts.append(table("Many small pairs (9×256 float32)", headings, many_small.rows(Path(folder))))
        print(parts[-1], flush=True)
        headings = ("2,000 and 2,000 entries", "measured", "limit we hold")
        parts.append(table("Aligning", headings, alignment.rows()))
        print(parts[-1], flush=True)
        parts.append(table("Learning rules", ("entries", "measured", "limit we hold"), alignment.learned_rows()))
        print(parts[-1], flush=True)
        parts.append(table("Whole commands", ("what", "measured", "limit we hold"), commands.rows(Path(folder))))
        print(parts[-1], flush=True)
        with tempfile.TemporaryDirectory() as large:
            parts.append(table("Two large checkpoints (`weights`)", ("what", "measured"), weights.rows(Path(large))))
        print(parts[-1], flush=True)
        parts.append(table("Installing", ("what", "measured", "limit we hold"), install.rows()))
        print(parts[-1], flush=True)
        headings = ("rows", "what", "tensordiff", "DataTable", "ratio")
        parts.append(table("The app's table, and Textual's DataTable", headings, apart(app.compared_rows)))
        print(parts[-1], flush=True)
        parts.append(table("The app", ("what", "measured", "limit we hold"), apart(app.stall_rows)))
        print(parts[-1], flush=True)
        parts.append(table("Capture, and what people write today", capture.HEADINGS, capture.rows(Path(folder))))
        print(parts[-1], flush=True)
    (ROOT / "docs" / "speed.md").write_text("\n".join([*parts, max_times()]))


if __name__ == "__main__":
    main()
