"""Whole commands: start-up, the samples cold, and memory on a pair larger than it should ever need."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def wall(*command: str, rounds: int = 7) -> float:
    """Best wall time of a command."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "tensordiff", *command], capture_output=True, cwd=ROOT, check=False)
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


def rows(folder: Path) -> list[list[str]]:
    """One row a measurement."""
    samples = ("sample_dumps/reference", "sample_dumps/candidate")
    memory, seconds = anonymous_memory(folder)
    return [
        ["`tensordiff --help`", f"{wall('--help'):.2f} s", "0.25 s"],
        ["`tensordiff compare` on the samples, new process", f"{wall('compare', *samples):.2f} s", "0.7 s"],
        ["one pair of 4 GB a side: memory beyond mapped pages", f"{memory:.0f} MB", "300 MB"],
        ["one pair of 4 GB a side, new process: time", f"{seconds:.1f} s", "-"],
    ]
