"""Folders as MAX's ``verify_layers`` tool leaves them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import torch

from tensordiff.dump import Dump
from tests.dump.readers.max_samples import max_bytes

Rows = list[dict[str, Any]]


def save_torch(folder: Path, layer: str, inputs: int = 1, outputs: int | None = None) -> dict[str, Any]:
    """Write a layer's tensors as the tool's torch hook does, and give what it says of them."""
    stale = Path("/home/someone/else/torch_layers")
    said: dict[str, Rows] = {"inputs": [], "outputs": []}
    ports: list[tuple[str, str, int | None]] = [("inputs", f"input_{i}", i) for i in range(inputs)]
    ports += (
        [("outputs", "output", None)] if outputs is None else [("outputs", f"output_{i}", i) for i in range(outputs)]
    )
    for kind, port, index in ports:
        torch.save(torch.full((2,), float(len(port))), folder / f"{layer}_{port}.pt")
        about = {"shape": [2], "dtype": "torch.float32", "file": str(stale / f"{layer}_{port}.pt")}
        said[kind].append(about | ({} if index is None else {"index": index}))
    return {"layer_name": layer, "layer_type": "Linear", "module_name": layer, **said}


def save_max(
    folder: Path, layer: str, ports: tuple[str, ...] = ("input_0", "output"), injected: bool = False
) -> dict[str, Any]:
    """Write a layer's tensors as the tool's MAX hook does, and give what it says of them."""
    said: dict[str, Rows] = {"inputs": [], "outputs": []}
    for port in ports:
        kind, _, rest = port.partition("_")
        label = f"{layer}_{port}" + ("_injected" if injected and kind == "input" else "")
        write_max(folder, label, float(len(port)))
        about: dict[str, Any] = {"shape": [2], "dtype": "DType.float32"} | (
            {"injected": injected} if kind == "input" else {}
        )
        if kind == "input" and not rest.isdigit():
            said["inputs"].append(about | {"name": rest, "file_name": label})
        else:
            said[f"{kind}s"].append(about | {"name": label} | ({"index": int(rest)} if rest else {}))
    return {"layer_name": layer, "layer_type": "RMSNorm", **said, "input_injection_used": injected}


def write_max(folder: Path, label: str, value: float = 0.0) -> None:
    stem = "".join("_" if c in '\\/:?"<>| ' else c for c in label)
    (folder / f"{stem}.max").write_bytes(max_bytes(stem, shape=(2,), data=struct.pack("<2f", value, value)))


def make(root: Path, side: str, layers: list[dict[str, Any]], calls: list[str] | None) -> Path:
    (root / f"{side}_layers").mkdir(exist_ok=True)
    text = json.dumps({layer["layer_name"]: layer for layer in layers}, indent=2)
    (root / f"{side}_layers" / "layer_metadata.json").write_text(text)
    if calls is not None:
        (root / f"module_names_{side}.txt").write_text("".join(f"{name}\n" for name in calls))
    return root / f"{side}_layers"


def ports(dump: Dump) -> list[tuple[str, str]]:
    return [(e.layer, e.port) for e in dump.entries]
