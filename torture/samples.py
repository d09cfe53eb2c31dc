"""Small valid files of every kind that tensordiff reads, to be damaged."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tensordiff.dump.dtypes import DTYPES, Array
from tensordiff.dump.native.writer import DumpWriter
from torture.tool_samples import CHECKPOINTS, TOOLS

Tensors = Mapping[str, Array]
_CODES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int64": "I64"}


def tensors() -> dict[str, Array]:
    """A few layers in a few types; none so small that a change of one value is lost, none masked or sparse."""
    rng = np.random.default_rng(5)
    found: dict[str, Array] = {}
    for layer, dtype in enumerate(("float32", "bfloat16", "float16", "float32")):
        for port in ("input_0", "output"):
            found[f"model.layers.{layer}.mlp-{port}"] = rng.standard_normal((3, 8)).astype(DTYPES[dtype])
    found["model.tokens-output"] = rng.integers(0, 50, (3, 2))
    return found


def safetensors_bytes(some: Tensors) -> bytes:
    """As the library writes them; with the order of execution."""
    header: dict[str, Any] = {"__metadata__": {"order": json.dumps(list(some))}}
    data = b""
    for name, array in some.items():
        end = len(data) + array.nbytes
        offsets = [len(data), end]
        header[name] = {"dtype": _CODES[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def max_bytes(name: str, array: Array) -> bytes:
    """As MAX writes a tensor of float32."""
    key, shape = name.encode(), array.shape
    size = 4 + len(key) + 2 + 4 * len(shape) + 8
    front = struct.pack("<8sIIQ", b"\x93\xf0\x9f\x94\xa5\x2b\x2b\x93", 0, 1, size)
    about = struct.pack(f"<I{len(key)}sBB{len(shape)}IQ", len(key), key, 81, len(shape), *shape, 24 + size)
    return front + about + array.astype("<f4").tobytes()


def npy_bytes(array: Array) -> bytes:
    """As numpy writes an array."""
    made = io.BytesIO()
    np.save(made, array)
    return made.getvalue()


# --- dumps ----------------------------------------------------------------------------------------


def _safetensors(path: Path) -> None:
    path.with_suffix(".safetensors").write_bytes(safetensors_bytes(tensors()))


def _npz(path: Path) -> None:
    np.savez(path.with_suffix(".npz"), allow_pickle=False, **_plain())


def _compressed_npz(path: Path) -> None:
    np.savez_compressed(path.with_suffix(".npz"), allow_pickle=False, **_plain())


def _npy(path: Path) -> None:
    path.mkdir()
    for name, array in _plain().items():
        (path / f"{name}.npy").write_bytes(npy_bytes(array))


def _plain() -> dict[str, Array]:
    """In types that numpy knows."""
    return {name: array.astype("f4") if array.dtype.kind not in "if" else array for name, array in tensors().items()}


def _max(path: Path) -> None:
    path.mkdir()
    for name, array in tensors().items():
        (path / f"{name}.max").write_bytes(max_bytes(name, array))


def _native(path: Path) -> None:
    facts = {"source": "hf:some/model", "token_ids": [1, 2, 3], "settings": {"prompt": "x"}, "versions": {"torch": "2"}}
    with DumpWriter(path, facts, shard_bytes=600, header_bytes=2000, durable=False) as writer:
        for name, array in tensors().items():
            writer.add(name, array, module_class="Linear", source_file="x.py", source_line=3)


def _interrupted(path: Path) -> None:
    with suppress(InterruptedError), DumpWriter(path, {}, header_bytes=2000, durable=False) as writer:
        for name, array in tensors().items():
            writer.add(name, array)
        raise InterruptedError


def _steps(path: Path) -> None:
    path.mkdir()
    for step in ("0", "1"):
        _max(path / step)


def _torch_zip(path: Path) -> None:
    import torch

    torch.save({name: torch.from_numpy(array) for name, array in _plain().items()}, path.with_suffix(".pt"))


def _torch_legacy(path: Path) -> None:
    import torch

    some = {name: torch.from_numpy(array) for name, array in _plain().items()}
    torch.save(some, path.with_suffix(".pth"), _use_new_zipfile_serialization=False)


def _torch_hook(path: Path) -> None:
    import torch

    path.mkdir()
    for name, array in _plain().items():
        torch.save(torch.from_numpy(array), path / f"{name}.pt")


def _verify_layers(path: Path) -> None:
    """Both sides of MAX's tool; the candidate's is the dump."""
    layers = path / "max_layers"
    layers.mkdir(parents=True)
    about = {}
    for layer in range(3):
        name = f"model.layers.{layer}.mlp"
        for port in ("input_0", "output"):
            array = tensors()[f"{name}-{port}"].astype("f4")
            (layers / f"{name}_{port}.max").write_bytes(max_bytes(f"{name}_{port}", array))
        said = {"shape": [3, 8], "dtype": "DType.float32"}
        about[name] = {
            "layer_name": name, "layer_type": "Mlp", "input_injection_used": False,
            "inputs": [said | {"injected": False, "name": f"{name}_input_0", "index": 0}],
            "outputs": [said | {"name": f"{name}_output"}],
        }  # fmt: skip
    (layers / "layer_metadata.json").write_text(json.dumps(about, indent=1))
    (path / "module_names_max.txt").write_text("".join(f"{name}\n" for name in about))


DUMPS: dict[str, Callable[[Path], None]] = {
    "safetensors": _safetensors, "npz": _npz, "npz-deflated": _compressed_npz, "npy": _npy, "max": _max,
    "native": _native, "native-interrupted": _interrupted, "steps": _steps, "torch-zip": _torch_zip,
    "torch-legacy": _torch_legacy, "torch-hook": _torch_hook, "verify_layers": _verify_layers, **TOOLS, **CHECKPOINTS,
}  # fmt: skip


def make_dump(name: str, folder: Path) -> Path:
    """One of these dumps, in a folder of its own; where in that folder it is."""
    folder.mkdir(parents=True)
    DUMPS[name](folder / "dump")
    (path,) = folder.iterdir()
    return path.relative_to(folder) / "max_layers" if name == "verify_layers" else path.relative_to(folder)


# --- files of text --------------------------------------------------------------------------------

RULES = r"""
presets = ["hf"]

[[rule]]                       # tried in order
side = "candidate"
match = '^model\.layers\.layers\.'
replace = 'layers.'

[[map]]
reference = "cat(layers.{i}.self_attn.q_proj, layers.{i}.self_attn.k_proj)"
candidate = "layers.{i}.self_attn.qkv_proj"

[[view]]
match = '(^|\.)lm_head$'
candidate = "last_token"

[[tolerance]]
match = '\.experts\.'
rel_l2 = 3e-2
"""
TOLERANCES = """
[[tolerance]]
match = '^layers'
rel_l2 = 1e-3
atol = 1e-6
rtol = 1e-4
"""
SUITE = """
[settings]
dtype = "float32"

[[model]]
name = "llama"
reference = "hf:models/llama"
candidate = "max:models/llama"
threshold = 0.5
settings = {prompt = "Hello", steps = 2, config = {"a.b" = 1}}
candidate_settings = {dtype = "bfloat16", input_ids = [1, 2]}

[[model]]
name = "bert"
reference = "dumps/bert/torch"
candidate = "dumps/bert/max"
only = "mlp"
"""
PREFERENCES = """
theme = "nord"
columns = ["max_abs", "rel_l2"]

[keys]
quit = "ctrl+q"
"""
BISECT_LOG = "# tensordiff bisect, 4 places\ngood 0 layers.0.mlp\nbad 2 layers.2.mlp\nskip 1\n"
