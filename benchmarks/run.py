"""``make bench``: run everything, print the tables, keep them in docs/speed.md."""

from __future__ import annotations

import os
import platform
import re
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from benchmarks import alignment, app, capture, commands, install, kernel, many_small, weights
from benchmarks.tables import Table, missed_goals
from tensordiff.compare.measure.kernel import describe

ROOT = Path(__file__).resolve().parent.parent
ABOUT = """# Speed

Made by `make bench`: all methods in one process, taking turns, best of several, data in the page cache.
A virtual core may be half a real one: then two threads compute little more than one does, and what is bound by
computing stands further from the limit, which is bound by memory.
**today** is the arithmetic of MAX's `compare_tensors` (to float32, absolute and relative difference, an argmax of
each, isclose) plus torch's MSE, warm. **limit** is all cores reading the two buffers once and doing nothing with them:
nobody can be quicker than today by more than the limit is. **measured** is the measuring pass, **compared** all that
`compare` does with such pairs: a judge that doubts reads some of their elements again.
Ratios travel between machines; times do not. Types of few bits are bound by the number of vector operations where they
lie in the cache: [a decision](decisions/0002-measuring-pass-in-c.md) counts them.
"""

BUSY = """Where that is more than 0 at the beginning, others worked on the machine, too. All methods take turns, so a
ratio suffers less than a time; but what computes more than it reads stands further from the limit where a
core is taken."""


def max_times() -> str:
    """Times of captures of MAX, taken by hand: a first one compiles for minutes."""
    found = re.search(r"^## Times\n(.*?)(?=^## |\Z)", (ROOT / "docs" / "max.md").read_text(), re.DOTALL | re.MULTILINE)
    source = "Not of this run: measured by hand, as a first capture compiles for minutes. From [max.md](max.md#times)."
    return f"## Modular MAX\n\n{source}\n{found[1] if found else ''}"


def machine(load: float) -> str:
    """The machine, and how busy it was when the run began and is now."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.machine())
    versions = f"numpy {np.__version__}, torch {torch.__version__}"
    told = f"Machine: {os.cpu_count()} cores of {model}; Python {platform.python_version()}, {versions}."
    loads = f"Load when this began: {load:.1f}, when it ended: {os.getloadavg()[0]:.1f}."
    return f"{told} The measuring pass is {describe()}.\n{loads} {BUSY}\n"


def apart(work: Callable[[], list[list[str]]]) -> list[list[str]]:
    """Rows made in a process of its own: what others have left in this one would be looked through, and show."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(work).result()


def tables(folder: Path) -> Iterator[Table]:
    """All that are measured, in the page's order."""
    headings: tuple[str, ...]
    headings = ("pair", "today", "compared", "measured", "limit", "than today", "measured of the limit", "goal")
    yield Table("Large pairs", headings, kernel.rows())
    headings = ("dump", "pairs/s, all", "pairs/s, measuring", "torch.load and today's arithmetic", "ratio", "goal")
    yield Table("Many small pairs (9×256 float32)", headings, many_small.rows(folder))
    held = ("measured", "limit we hold")
    yield Table("Aligning", ("2,000 and 2,000 entries", *held), alignment.rows())
    yield Table("Learning rules", ("entries", *held), alignment.learned_rows())
    yield Table("Whole commands", ("what", *held), commands.rows(folder))
    with tempfile.TemporaryDirectory() as large:
        yield Table("Two large checkpoints (`weights`)", ("what", "measured"), weights.rows(Path(large)))
    yield Table("Installing", ("what", *held), install.rows())
    headings = ("rows", "what", "tensordiff", "DataTable", "ratio")
    yield Table("The app's table, and Textual's DataTable", headings, apart(app.compared_rows))
    yield Table("The app", ("what", *held), apart(app.stall_rows))
    yield Table("Capture, and what people write today", capture.HEADINGS, capture.rows(folder))


def main() -> None:
    load, done = os.getloadavg()[0], []
    with tempfile.TemporaryDirectory() as folder:
        for table in tables(Path(folder)):
            done.append(table)
            print(table.text(), flush=True)
    parts = [ABOUT, machine(load), missed_goals(done), *(table.text() for table in done), max_times()]
    (ROOT / "docs" / "speed.md").write_text("\n".join(parts))


if __name__ == "__main__":
    main()
