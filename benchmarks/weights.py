"""Two large checkpoints compared as parameters: how quickly, beside reading the files and doing nothing, and in how
much memory. The files are sparse, and take no disk; one parameter in each layer is written, and one of them differs.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
HIDDEN, MIDDLE, VOCAB = 4096, 14336, 128_256
EMBEDDING = 2048
PARTS = {
    "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (1024, HIDDEN), "self_attn.v_proj": (1024, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (MIDDLE, HIDDEN), "mlp.up_proj": (MIDDLE, HIDDEN),
    "mlp.down_proj": (HIDDEN, MIDDLE), "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
}  # fmt: skip
_WATCHED = """
import sys, threading, time
from pathlib import Path
def status():
    return {k: int(v.split()[0]) for k, v in (line.split(":") for line in open("/proc/self/status") if "kB" in line)}
from tensordiff.dump import open_dump
from tensordiff.weights.comparison import compare_weights
peak = 0
def watch():
    global peak
    while True:
        peak = max(peak, status()["RssAnon"]); time.sleep(0.01)
threading.Thread(target=watch, daemon=True).start()
start = time.perf_counter()
outcome = compare_weights(open_dump(sys.argv[1]), open_dump(sys.argv[2]))
seconds = time.perf_counter() - start
print(peak, seconds, outcome.compared, ";".join(f"{row.name}: {row.sentence}" for row in outcome.findings))
"""


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """An 8B Llama's parameters, of so many layers."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for k in range(layers):
        found |= {f"model.layers.{k}.{part}.weight": shape for part, shape in PARTS.items()}
    return found | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}


def write(folder: Path, layers: int, changed: str | None = None, shard_bytes: int = 4 << 30) -> int:
    """A sharded checkpoint in bfloat16, sparse but for the value projections; the bytes it claims."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    size = 0
    for name, shape in shapes(layers).items():
        nbytes = 2 * int(np.prod(shape))
        if size + nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = shape
        size += nbytes
    return sum(_shard(folder / f"model-{k + 1:05}.safetensors", tensors, changed) for k, tensors in enumerate(shards))


def _shard(path: Path, tensors: dict[str, tuple[int, ...]], changed: str | None) -> int:
    header: dict[str, object] = {}
    end = 0
    for name, shape in tensors.items():
        begin, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, about in header.items():
            if "v_proj" in name:
                random = np.random.default_rng(abs(hash(name)) % 1000)
                bits = random.standard_normal(PARTS["self_attn.v_proj"], np.float32).view(np.uint32) >> 16
                values = bits.astype(np.uint16)
                file.seek(8 + len(text) + about["data_offsets"][0])  # type: ignore[index]
                file.write((np.roll(values, 128, 0) if name == changed else values).tobytes())
        file.truncate(8 + len(text) + end)
    return end


def read_all(folder: Path) -> float:
    """Seconds of reading all files and doing nothing with them."""
    buffer = bytearray(16 << 20)
    start = time.perf_counter()
    for path in sorted(folder.iterdir()):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - start


def forget(folder: Path) -> None:
    """Let the system drop what it holds of the files, so that the next to read them begins as the first did."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cpu_seconds(who: int) -> float:
    """User and system time so far, which a busy machine changes less than the clock's."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


class Times(NamedTuple):
    """What a comparison took, and what only reading the files does."""

    gigabytes: float
    seconds: float
    cpu_seconds: float
    reading_seconds: float
    reading_cpu_seconds: float
    megabytes: float
    """Memory beyond mapped pages, at most."""
    found: str


def measure(folder: Path, layers: int) -> Times:
    """Write, read and compare two checkpoints of so many layers."""
    sides = [folder / side for side in ("reference", "candidate")]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    changed = f"model.layers.{layers // 2}.self_attn.v_proj.weight"
    claimed = write(sides[0], layers) + write(sides[1], layers, changed)
    before = cpu_seconds(resource.RUSAGE_SELF)
    reading = sum(map(read_all, sides))
    reading_cpu = cpu_seconds(resource.RUSAGE_SELF) - before
    for side in sides:
        forget(side)
    command = [sys.executable, "-c", _WATCHED, *map(str, sides)]
    before = cpu_seconds(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=True)
    peak, seconds, _, found = done.stdout.split(maxsplit=3)
    cpu = cpu_seconds(resource.RUSAGE_CHILDREN) - before
    return Times(claimed / 1e9, float(seconds), cpu, reading, reading_cpu, int(peak) / 1024, found.strip())


def measure_two_types(folder: Path) -> tuple[float, float, str]:
    """Seconds, megabytes and finding of an embedding in bfloat16 beside float32, shifted by a row."""
    import ml_dtypes
    from safetensors.numpy import save_file

    values = np.random.default_rng(0).standard_normal((VOCAB, EMBEDDING), np.float32) * np.float32(0.02)
    coarse = values.astype(ml_dtypes.bfloat16)
    sides = [folder / "coarse.safetensors", folder / "fine.safetensors"]
    save_file({"model.embed_tokens.weight": coarse}, sides[0])
    save_file({"model.embed_tokens.weight": np.roll(coarse.astype(np.float32), 1, 0)}, sides[1])
    command = [sys.executable, "-c", _WATCHED, *map(str, sides)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    peak, seconds, _, found = done.stdout.split(maxsplit=3)
    return float(seconds), int(peak) / 1024, found.strip()


LAYERS = 110
"""As many of an 8B Llama's layers as make 50 GB."""


def rows(folder: Path, layers: int = LAYERS) -> list[list[str]]:
    """The table of docs/speed.md."""
    took = measure(folder, layers)
    seconds, megabytes, found = measure_two_types(folder)
    size = took.gigabytes
    return [
        ["both sides together", f"{size:.1f} GB"],
        ["compared in", f"{took.seconds:.1f} s, of the processor {took.cpu_seconds:.1f} s"],
        [
            "the same files only read",
            f"{took.reading_seconds:.1f} s, of the processor {took.reading_cpu_seconds:.1f} s",
        ],
        ["memory beyond mapped pages, at most", f"{took.megabytes:.0f} MB"],
        ["bytes compared in a second", f"{size / took.seconds:.1f} GB"],
        ["found", took.found],
        [f"bfloat16 against float32, {VOCAB:,} x {EMBEDDING:,}, that differ: compared in", f"{seconds:.1f} s"],
        ["memory beyond mapped pages for it, at most", f"{megabytes:.0f} MB"],
        ["found in it", found],
    ]


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        for cells in rows(Path(made), int(sys.argv[1]) if len(sys.argv) > 1 else LAYERS):
            print(" | ".join(cells))
