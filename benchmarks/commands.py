"""Whole commands, each in a new process: what a person waits for; and memory on a pair larger than memory may be."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parent.parent


AS_INSTALLED = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""An install has bytecode; a checkout where none may be written would be compiled anew each time."""


def wall(*command: str, rounds: int = 7) -> float:
    """Best wall time of a command."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "tensordiff", *command], capture_output=True, cwd=ROOT, env=AS_INSTALLED)
        best = min(best, time.perf_counter() - start)
    return best


_MEMORY = """
import sys
from pathlib import Path
from tensordiff.session.request import Request
from tensordiff.session.session import Session
before = {}
def status():
    return {k: int(v.split()[0]) for k, v in (line.split(":") for line in open("/proc/self/status") if "kB" in line)}
session = Session.open(Request(Path(sys.argv[1]), Path(sys.argv[2])))
import threading, time
peak = 0
def watch():
    global peak
    while True:
        peak = max(peak, status()["RssAnon"]); time.sleep(0.01)
threading.Thread(target=watch, daemon=True).start()
row = next(session.rows())
print(peak, row.diff.elements)
"""


def anonymous_memory(folder: Path, gigabytes: int = 4) -> tuple[float, float]:
    """Peak memory beyond mapped pages (MB) while comparing one pair of this size, and its seconds."""
    paths = [_large_file(folder / f"{side}.safetensors", gigabytes, k) for k, side in enumerate(("large_a", "large_b"))]
    start = time.perf_counter()
    command = [sys.executable, "-c", _MEMORY, *map(str, paths)]
    printed = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    return int(printed.split()[0]) / 1024, time.perf_counter() - start


def _large_file(path: Path, gigabytes: int, seed: int) -> Path:
    """A safetensors file of one bfloat16 tensor, written piece by piece."""
    size = gigabytes * 2**30
    header = json.dumps({"x": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}).encode()
    piece = bytes((k * 7 + seed) % 64 + 32 for k in range(2**20))
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for _ in range(size // len(piece)):
            file.write(piece)
    return path


def two_files(folder: Path, name: str, megabytes: int) -> tuple[str, str]:
    """A pair of one float32 tensor a side, a millionth apart."""
    rng = np.random.default_rng(0)
    ref = rng.standard_normal(max(1, megabytes * 2**18), dtype=np.float32)
    sides = {"a": ref, "b": ref * np.float32(1 + 1e-6)}
    for side, values in sides.items():
        save_file({"layer-output": values}, folder / f"{name}_{side}.safetensors")
    return str(folder / f"{name}_a.safetensors"), str(folder / f"{name}_b.safetensors")


def from_disk(*command: str) -> float:
    """Wall time with neither tensordiff nor numpy in the page cache, as far as the system lets go of them."""
    packages = [ROOT / "tensordiff", Path(np.__file__).parent, Path(np.__file__).parent.parent / "ml_dtypes"]
    paths = [path for package in packages for path in package.rglob("*") if path.is_file()]
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return wall(*command, rounds=1)


def rows(folder: Path) -> list[list[str]]:
    """One row a measurement."""
    samples = ("sample_dumps/reference", "sample_dumps/candidate")
    memory, seconds = anonymous_memory(folder)
    tiny, large = wall("compare", *two_files(folder, "tiny", 0)), wall("compare", *two_files(folder, "large", 512))
    report = str(folder / "report.html")
    return [
        ["`tensordiff --help`", f"{wall('--help'):.2f} s", "0.25 s"],
        ["`tensordiff compare` on the samples", f"{wall('compare', *samples):.2f} s", "0.35 s"],
        ["the same, nothing of it in the page cache", f"{from_disk('compare', *samples):.2f} s", "-"],
        ["`tensordiff compare --json` on the samples", f"{wall('compare', '--json', *samples):.2f} s", "-"],
        ["`tensordiff report -o report.html` on the samples", f"{wall('report', *samples, '-o', report):.2f} s", "-"],
        ["`tensordiff inspect` on a sample", f"{wall('inspect', samples[0]):.2f} s", "-"],
        ["`tensordiff compare` of two tiny files", f"{tiny:.2f} s", "-"],
        ["`tensordiff compare` of two files of 512 MB", f"{large:.2f} s", f"{tiny + 0.3:.2f} s"],
        ["one pair of 4 GB a side: memory beyond mapped pages", f"{memory:.0f} MB", "300 MB"],
        ["one pair of 4 GB a side: time", f"{seconds:.1f} s", "-"],
    ]
