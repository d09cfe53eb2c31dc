"""What a torch run says of itself: versions, flags that change numbers, a hash of the weights, locations in source."""

from __future__ import annotations

import hashlib
import inspect
import linecache
import platform
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tensordiff.capture.engines.torch.tensors import resolved

_HASHED = 1 << 20  # bytes of weights that are read whole; of more, the beginning of each


class CodeLocation(NamedTuple):
    """Where something is written."""

    file: str | None
    line: int | None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "?"


_places: dict[type, CodeLocation] = {}


def forward_location(kind: type) -> CodeLocation:
    """File and line of a module's forward; looked up once a class."""
    if kind not in _places:
        _places[kind] = _find_place(kind)
    return _places[kind]


def _find_place(kind: type) -> CodeLocation:
    forward = getattr(kind, "forward", None)
    # A module of TorchScript has a forward that says nothing of itself.
    code = getattr(inspect.unwrap(forward), "__code__", None) if callable(forward) else None
    # Code says its line itself. To have inspect read it up takes milliseconds a class, while the model waits.
    if code is None or not linecache.getline(code.co_filename, code.co_firstlineno):
        return CodeLocation(None, None)
    return CodeLocation(short(code.co_filename), code.co_firstlineno)


@lru_cache(maxsize=4096)
def short(file: str) -> str:
    """A file as dumps name it: from the package on, where it is installed."""
    path, packages = Path(file), Path(sysconfig.get_paths()["purelib"])
    return path.relative_to(packages).as_posix() if path.is_relative_to(packages) else str(path)


def versions() -> dict[str, str]:
    """Of everything that may change a number."""
    found = {"torch": torch.__version__, "python": platform.python_version()}
    for name in ("transformers", "accelerate", "vllm"):
        if name in sys.modules:
            found[name] = str(sys.modules[name].__version__)
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found


def flags(model: nn.Module | None) -> dict[str, Any]:
    """What else decides on numbers."""
    config = getattr(model, "config", None)
    return {
        "attention": getattr(config, "_attn_implementation", None),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "tf32_matmul": torch.backends.cuda.matmul.allow_tf32,
        "tf32_cudnn": torch.backends.cudnn.allow_tf32,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "training": bool(model is not None and model.training),
        "threads": torch.get_num_threads(),
    }


def make_deterministic() -> None:
    """Ask torch for the same numbers every time, and for float32 where float32 is said."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")


def dtype_of(model: nn.Module) -> str:
    """The type of most of a model's weights."""
    sizes: dict[torch.dtype, int] = {}
    for weight in model.parameters():
        sizes[weight.dtype] = sizes.get(weight.dtype, 0) + (0 if is_lazy(weight) else weight.numel())
    return str(max(sizes, key=lambda dtype: sizes[dtype], default=torch.float32)).removeprefix("torch.")


def weights_hash(model: nn.Module) -> str:
    """One hash of all weights; of large ones, of the first part of each, and it says so."""
    weights = sorted(model.state_dict(keep_vars=True).items())
    whole = ((name, weight) for name, weight in weights if isinstance(weight, torch.Tensor) and not is_lazy(weight))
    tensors = [part for name, weight in whole for part in _plain_parts(name, weight)]
    total = sum(weight.numel() * weight.element_size() for _, weight in tensors)
    most = None if total <= _HASHED else max(_HASHED // max(len(tensors), 1), 1 << 12)
    digest = hashlib.sha256()
    for name, weight in tensors:
        digest.update(f"{name} {weight.dtype} {list(weight.shape)}\n".encode("utf-8", "backslashreplace"))
        if weight.device.type != "meta" and weight.layout == torch.strided:
            digest.update(_some_bytes(weight, most))
    return f"{'sha256' if most is None else 'sha256-parts'}:{digest.hexdigest()}"


def _plain_parts(name: str, weight: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """A weight, or the tensors that it is made of: one that torchao quantized is a wrapper around codes and scales."""
    if not hasattr(weight, "__tensor_flatten__"):
        yield name, weight
        return
    parts, _ = weight.__tensor_flatten__()
    for part in parts:
        if isinstance(found := getattr(weight, part), torch.Tensor):
            yield from _plain_parts(f"{name}.{part}", found)


def _some_bytes(weight: torch.Tensor, most: int | None) -> memoryview:
    """The bits, whatever type they are of; of quantized weights, those of what they stand for."""
    flat = (weight.dequantize() if weight.is_quantized else weight).detach().reshape(-1)
    flat = flat if most is None else flat[: most // weight.element_size()]
    return memoryview(resolved(flat).cpu().contiguous().view(torch.uint8).numpy())


def about_model(model: nn.Module) -> dict[str, Any]:
    """The class of a model, where that is written, and how large it is."""
    place = forward_location(type(model))
    count = sum(weight.numel() for weight in model.parameters() if not is_lazy(weight))
    found = {"class": type(model).__name__, "file": place.file, "line": place.line, "parameters": count}
    try:
        return found | {"path": inspect.getfile(type(model))}
    except (OSError, TypeError):
        return found
