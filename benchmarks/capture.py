"""What capturing costs: the same forward plain, captured, and captured as people do it today.

The naive hook keeps what most scripts keep: a forward hook on every module, and ``torch.save`` of each tensor it was
given and gave, to a file each. Overhead is time beyond the plain forward. All take turns in one process, to one folder.
Memory is the most that a process of its own ever had resident, beyond one that ran the plain forward alone.
Run it as ``python -m benchmarks.capture``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers

import tensordiff

ROOT = Path(__file__).resolve().parent.parent
METHODS = ("plain", "tensordiff", "torch.save", "debugger")
SHAPES = (("small: 4 layers × 256, 64 tokens", 4, 256, 64), ("wide: 4 layers × 1024, 256 tokens", 4, 1024, 256))


def model(layers: int, width: int) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=2048, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=8, num_key_value_heads=4,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def tensors(value: Any, port: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor):
        yield port, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from tensors(part, f"{port}_{key}")
    elif isinstance(value, tuple | list):
        for key, part in enumerate(value):
            yield from tensors(part, f"{port}_{key}")


@contextmanager
def naive(net: Any, folder: Path) -> Iterator[None]:
    """What a script does today."""

    def hook(name: str) -> Callable[..., None]:
        def save(_: Any, args: Any, kwargs: Any, output: Any) -> None:
            for found, port in ((args, "input"), (kwargs, "input"), (output, "output")):
                for label, tensor in tensors(found, port):
                    torch.save(tensor, folder / f"{name}-{label}.pt")

        return save

    handles = [m.register_forward_hook(hook(name or "model"), with_kwargs=True) for name, m in net.named_modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def makers(net: Any) -> dict[str, Callable[[Path], Any]]:
    """What a forward is run under, by name."""
    from transformers.model_debugging_utils import model_addition_debugger_context as debugger

    return {
        "plain": lambda _: nullcontext(),
        "tensordiff": lambda folder: tensordiff.capture(net, folder),
        "torch.save": lambda folder: naive(net, folder),
        "debugger": lambda folder: debugger(net, debug_path=str(folder), do_prune_layers=False, use_repr=False),
    }


def seconds(make: Callable[[Path], Any], net: Any, ids: Any, folder: Path) -> float:
    """One forward, from before the first hook is set until the last byte is handed to the system."""
    folder.mkdir()
    start = time.perf_counter()
    with torch.no_grad(), make(folder):
        net(ids)
    took = time.perf_counter() - start
    shutil.rmtree(folder)
    return took


def best(net: Any, ids: Any, root: Path, rounds: int) -> dict[str, float]:
    """The best time of each, all taking turns."""
    found = dict.fromkeys(made := makers(net), float("inf"))
    for _ in range(rounds):
        for name, make in made.items():
            found[name] = min(found[name], seconds(make, net, ids, root / "dump"))
    return found


def most_resident(shape: int, method: str) -> int:
    """The most bytes that a new process had in memory, which ran one forward so."""
    code = f"from benchmarks.capture import forward_once; forward_once({shape}, {method!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return int(done.stdout.split()[-1])


def forward_once(shape: int, method: str) -> None:
    """One forward, after a plain one; then how much memory that took, by which a child answers."""
    _, layers, width, tokens = SHAPES[shape]
    net = model(layers, width)
    made, ids = makers(net), torch.arange(tokens)[None] % 2048
    with tempfile.TemporaryDirectory() as folder:
        for name in ("plain", method):
            seconds(made[name], net, ids, Path(folder) / "dump")
    print(_most_resident_here())


def _most_resident_here() -> int:
    """Of this process since it began; what getrusage says counts the process that started it, too."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def memory(shape: int) -> str:
    """What each method takes beyond the plain forward."""
    most = {method: most_resident(shape, method) for method in METHODS}
    beyond = [max(most[method] - most["plain"], 0) / 1e6 for method in METHODS[1:]]
    return " / ".join(f"{megabytes:.0f}" for megabytes in beyond) + " MB"


def rows(root: Path, rounds: int = 7) -> list[list[str]]:
    """One row a model: times, and how much less overhead than the others."""
    found = []
    for shape, (name, layers, width, tokens) in enumerate(SHAPES):
        net = model(layers, width)
        ids = torch.arange(tokens)[None] % 2048
        times = best(net, ids, root, rounds)
        over = {method: time - times["plain"] for method, time in times.items()}
        less = [f"**{over[other] / over['tensordiff']:.1f}×**" for other in ("torch.save", "debugger")]
        shown = [f"{1e3 * times[method]:.1f} ms" for method in METHODS]
        found.append([name, *shown, *less, memory(shape)])
    return found


HEADINGS = (
    "model", "plain forward", "tensordiff", "torch.save in a hook", "model_addition_debugger",
    "less overhead than torch.save", "than the debugger", "memory beyond plain: tensordiff / torch.save / debugger",
)  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(" | ".join(HEADINGS))
        for row in rows(Path(folder)):
            print(" | ".join(row), flush=True)


if __name__ == "__main__":
    main()
