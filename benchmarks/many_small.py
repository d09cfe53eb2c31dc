"""20,000 pairs of 9x256 float32: in one safetensors file a side, and in one ``.pt`` file a tensor."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from benchmarks.baseline import compare_with_torch
from tensordiff.session.request import Request
from tensordiff.session.session import Session

COUNT, FILES = 20_000, 4_000


def _tensors(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    noise = np.random.default_rng(seed)
    return {
        f"model.layers.{k // 100}.part{k % 100}-output": rng.standard_normal((9, 256), dtype=np.float32)
        + np.float32(1e-6 * seed) * noise.standard_normal((9, 256), dtype=np.float32)
        for k in range(COUNT)
    }


def write(folder: Path) -> None:
    """Two sides of each kind."""
    for side, seed in (("reference", 0), ("candidate", 1)):
        tensors = _tensors(seed)
        save_file(tensors, folder / f"{side}.safetensors")
        (folder / side).mkdir()
        for name in list(tensors)[:FILES]:
            torch.save(torch.from_numpy(tensors[name]), folder / side / f"{name}.pt")


def pairs_a_second(reference: Path, candidate: Path, rounds: int = 5) -> tuple[float, float]:
    """Best rate over opening, aligning and measuring; and of measuring alone."""
    best = measuring = 0.0
    for _ in range(rounds):
        start = time.perf_counter()
        session = Session.open(Request(reference, candidate))
        opened = time.perf_counter()
        outcome = session.outcome(session.rows())  # as the command does
        end = time.perf_counter()
        count = sum(row.diff is not None for row in outcome.rows)
        best, measuring = max(best, count / (end - start)), max(measuring, count / (end - opened))
        del session, outcome  # lest the next round's time is that of letting these go, which a command never does
    return best, measuring


def torch_load_rate(folder: Path) -> float:
    """Pairs a second when each file is loaded by torch and compared as today."""
    names = sorted(path.name for path in (folder / "reference").iterdir())[:1500]
    best = 0.0
    for _ in range(3):
        start = time.perf_counter()
        for name in names:
            sides = [torch.load(folder / side / name, weights_only=True) for side in ("reference", "candidate")]
            compare_with_torch(*sides, 1e-3, 1e-5)
        best = max(best, len(names) / (time.perf_counter() - start))
    return best


def rows(folder: Path) -> list[list[str]]:
    """One row a kind of file."""
    write(folder)
    whole, measuring = pairs_a_second(folder / "reference.safetensors", folder / "candidate.safetensors")
    pt, pt_measuring = pairs_a_second(folder / "reference", folder / "candidate")
    loaded = torch_load_rate(folder)
    return [
        [f"{COUNT} pairs, safetensors", f"{whole:,.0f}", f"{measuring:,.0f}", "-", "-", "-"],
        [
            f"{FILES} pairs, .pt files",
            f"{pt:,.0f}",
            f"{pt_measuring:,.0f}",
            f"{loaded:,.0f}",
            f"**{pt / loaded:.1f}×**",
            "at least 10×",
        ],
    ]
