"""Cost against size: gigabytes, entries, workers. ``python -m benchmarks.scale --write`` keeps it in docs/scale.md.

Each case is a process of its own that opens two dumps, aligns, measures and judges them, as ``compare`` does. Large
dumps are sparse files: their zeros are read and measured as any other values, and take no disk. Beside the clock
stands the processor's time, which others on the machine disturb less. Memory is what the process has for itself
(RssAnon); pages of mapped files come and go as the system likes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tensordiff.dump.native.writer import DumpWriter

ROOT = Path(__file__).resolve().parent.parent
PAGE, PLOT = ROOT / "docs" / "scale.md", ROOT / "docs" / "scale.svg"
GIGABYTES = (1, 4, 16, 64)
ENTRIES = (1_000, 10_000, 100_000, 1_000_000)
WORKERS = (1, 2, 4)
_TENSOR = 16 << 20  # elements of a tensor of a large dump: 64 MB

_CASE = """
import json, resource, sys, threading, time
from pathlib import Path
peak, over = [0], threading.Event()
def watch():
    while not over.wait(0.02):
        lines = Path("/proc/self/status").read_text().splitlines()
        peak[0] = max(peak[0], *(int(line.split()[1]) for line in lines if line.startswith("RssAnon")))
if __name__ == "__main__":
    threading.Thread(target=watch, daemon=True).start()
    from dataclasses import replace
    from tensordiff.session.request import Request
    from tensordiff.session.session import Session
    reference, candidate, cluster = sys.argv[1:]
    if cluster:
        from tensordiff.compare.cluster.engine import connect
        connect(cluster)
    start = time.perf_counter()
    session = Session.open(Request(Path(reference), Path(candidate), cluster=cluster or None))
    opened = time.perf_counter()
    count = sum(1 for row in session.rows() if row.diff is not None)
    end, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    over.set()
    print(json.dumps({"pairs": count, "open_s": opened - start, "measure_s": end - opened,
                      "cpu_s": used.ru_utime + used.ru_stime, "own_mb": peak[0] / 1024}))
"""


class Case(NamedTuple):
    """What one process took."""

    label: str
    size: float
    pairs: int
    open_s: float
    measure_s: float
    cpu_s: float
    own_mb: float

    @property
    def cells(self) -> list[str]:
        """A row of the table."""
        seconds = f"{self.open_s:.1f} | {self.measure_s:.1f} | {self.cpu_s:.1f}"
        return [self.label, f"{self.pairs:,}", *seconds.split(" | "), f"{self.own_mb:,.0f}"]


def write_sparse(path: Path, nbytes: int) -> None:
    """A safetensors file of zeros."""
    names = [f"model.layers.{k}.mlp-output" for k in range(max(1, nbytes // (4 * _TENSOR)))]
    size = min(4 * _TENSOR, nbytes)
    rows = {
        name: {"dtype": "F32", "shape": [size // 4096, 1024], "data_offsets": [k * size, (k + 1) * size]}
        for k, name in enumerate(names)
    }
    header = json.dumps({"__metadata__": {"order": json.dumps(names)}, **rows}).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size * len(names))


def write_many(folder: Path, count: int) -> None:
    """A dump of tiny tensors."""
    value = np.arange(4, dtype=np.float32)
    with DumpWriter(folder, {}) as writer:
        for k in range(count):
            writer.add(f"model.layers.{k // 100}.part{k % 100}-output", value)


def run(label: str, size: float, reference: Path, candidate: Path, cluster: str = "") -> Case:
    """Compare in a process of its own."""
    command = [sys.executable, "-c", _CASE, str(reference), str(candidate), cluster]
    if cluster:  # its workers import the script anew
        script = reference.parent / "case.py"
        script.write_text(_CASE)
        command[1:3] = [str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{label}: {done.stderr[-2000:]}")
    case = Case(label, size, **json.loads(done.stdout.splitlines()[-1]))
    print(" | ".join(case.cells), flush=True)
    return case


def _cases(sizes: tuple[int, ...], make: Callable[[Path, int], None], label: Callable[[int], str]) -> list[Case]:
    made = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="tensordiff-scale-") as folder:
            sides = [Path(folder) / f"{side}{'.safetensors' if make is _half else ''}" for side in ("ref", "cand")]
            for side in sides:
                make(side, size)
            made.append(run(label(size), size, *sides))
    return made


def _half(path: Path, gigabytes: int) -> None:
    write_sparse(path, gigabytes * 10**9 // 2 // 4096 * 4096)


def by_workers(gigabytes: int, workers: tuple[int, ...]) -> list[Case]:
    """The same two dumps, measured here and by so many workers."""
    with tempfile.TemporaryDirectory(prefix="tensordiff-scale-") as folder:
        sides = [Path(folder) / f"{side}.safetensors" for side in ("ref", "cand")]
        for side in sides:
            _half(side, gigabytes)
        run("warming up", gigabytes, *sides)
        found = [run("here, no cluster", gigabytes, *sides)]
        return found + [run(f"local:{n}", gigabytes, *sides, cluster=f"local:{n}") for n in workers]


def table(headings: list[str], cases: list[Case]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join(lines + ["| " + " | ".join(case.cells) + " |" for case in cases]) + "\n"


def plot(sizes: list[Case], counts: list[Case]) -> None:
    """Time and memory against both, with logarithmic axes: a line of slope one is linear."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "tensordiff"
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
    for axis, cases, unit in ((axes[0], sizes, "GB, both dumps together"), (axes[1], counts, "entries of each dump")):
        x = [case.size for case in cases]
        axis.loglog(x, [case.cpu_s for case in cases], "o-", label="processor, s")
        axis.loglog(x, [case.open_s + case.measure_s for case in cases], "s--", label="clock, s")
        axis.loglog(x, [case.own_mb for case in cases], "^:", label="own memory, MB")
        axis.set_xlabel(unit)
        axis.grid(visible=True, which="major", alpha=0.3)
        axis.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(PLOT, metadata={"Date": None})


MADE = re.compile(r"(<!-- made by benchmarks/scale.py -->\n)(.*?)(<!-- end -->)", re.DOTALL)
"""What is replaced in the page: what was found out by other means stands outside of it."""
COST = ["", "pairs", "open, s", "measure, s", "processor, s", "own memory, MB"]


def main() -> None:
    """Run what was asked for, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=int, nargs="*", default=GIGABYTES)
    parser.add_argument("--entries", type=int, nargs="*", default=ENTRIES)
    parser.add_argument("--workers", type=int, nargs="*", default=WORKERS)
    parser.add_argument("--write", action="store_true", help="into docs/scale.md, between its marks")
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    sizes = _cases(tuple(asked.gigabytes), _half, lambda n: f"{n} GB")
    counts = _cases(tuple(asked.entries), write_many, lambda n: f"{n:,} entries")
    workers = by_workers(4, tuple(asked.workers)) if asked.workers else []
    cores = os.cpu_count()
    text = (
        f"Measured on {cores} cores; load when this began: {load:.0f} (others worked on the machine where it is more "
        f"than 0, and the clock shows them).\n\n{table(COST, sizes)}\n{table(COST, counts)}\n![Cost against size]"
        f"(scale.svg)\n\n4 GB, measured by workers on the same {cores} cores; the processor's time is this process's "
        f"own, without the workers':\n\n{table(COST, workers)}"
    )
    if not asked.write:
        print(text)
        return
    plot(sizes, counts)
    PAGE.write_text(MADE.sub(lambda found: found[1] + text + found[3], PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
