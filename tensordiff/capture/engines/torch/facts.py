"""Facts of a torch run: versions, the model, a hash of the weights, locations in source."""

from __future__ import annotations

import hashlib
import inspect
import linecache
import math
import platform
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tensordiff.capture.engines.torch.devices.accelerators import about_devices, devices_of
from tensordiff.capture.engines.torch.devices.flags import flags
from tensordiff.capture.engines.torch.devices.offload import Weights
from tensordiff.capture.engines.torch.tensors import resolved

_OF_EXPERTS = re.compile("expert|moe|rout(er|ing)|mixture|switch", re.IGNORECASE)
_KNOWN_CODE = ("transformers.", "torch.nn.")
_HASHED = 1 << 20  # bytes of weights that are hashed whole; of more, the beginning of each


class CodeLocation(NamedTuple):
    """A place in source code."""

    file: str | None
    line: int | None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "?"


_places: dict[type, CodeLocation] = {}


def forward_location(kind: type) -> CodeLocation:
    """File and line of a module's forward, cached by class."""
    if kind not in _places:
        _places[kind] = _find_place(kind)
    return _places[kind]


def _find_place(kind: type) -> CodeLocation:
    forward = getattr(written_class(kind), "forward", None)
    # A TorchScript module's forward has no code object.
    code = getattr(inspect.unwrap(forward), "__code__", None) if callable(forward) else None
    # Code objects know their line. Letting inspect find it takes milliseconds a class, while the model waits.
    if code is None or not linecache.getline(code.co_filename, code.co_firstlineno):
        return CodeLocation(None, None)
    return CodeLocation(short_path(code.co_filename), code.co_firstlineno)


def written_class(kind: type) -> type:
    """The class that a user would look for; for a class that stands for a model's own, as vLLM's does, the model's."""
    found: type = getattr(kind, "stands_for", kind)
    return found


@lru_cache(maxsize=4096)
def short_path(file: str) -> str:
    """A file as dumps name it: relative to its package, if installed."""
    path, packages = Path(file), Path(sysconfig.get_paths()["purelib"])
    return path.relative_to(packages).as_posix() if path.is_relative_to(packages) else str(path)


def versions() -> dict[str, str]:
    """The versions of everything that may change a number."""
    found = {"torch": torch.__version__, "python": platform.python_version()}
    for name in ("transformers", "accelerate", "vllm"):
        if name in sys.modules:
            found[name] = str(sys.modules[name].__version__)
    found |= {name: said for name in ("cuda", "hip") if (said := getattr(torch.version, name, None))}
    return found


def about_run(model: nn.Module) -> dict[str, Any]:
    """The facts of any run of a model: everything that may explain a difference between two runs."""
    return {
        "versions": versions(),
        "device": ", ".join(map(str, devices_of(model))) or "cpu",
        "dtype": dtype_of(model),
        "flags": flags(model),
        "model": about_model(model),
        "config": about_config(model),
        **about_devices(model),
    }


def dtype_of(model: nn.Module) -> str:
    """The type of most of a model's weights."""
    sizes: dict[torch.dtype, int] = {}
    for weight in model.parameters():
        sizes[weight.dtype] = sizes.get(weight.dtype, 0) + (0 if is_lazy(weight) else weight.numel())
    return str(max(sizes, key=lambda dtype: sizes[dtype], default=torch.float32)).removeprefix("torch.")


def weights_hash(model: nn.Module) -> str:
    """One hash of all weights, the same on any device.

    Of large ones only the first part is hashed, and the hash says so.
    """
    weights = Weights(model)
    names = [name for name, weight in sorted(weights.tensors.items()) if not is_lazy(weight)]
    parts = [part for name in names for _, part in plain_parts(name, weights.tensors[name])]
    total = sum(part.numel() * part.element_size() for part in parts)
    most = None if total <= _HASHED else max(_HASHED // max(len(parts), 1), 1 << 12)
    digest = hashlib.sha256()
    for whole in names:
        for name, weight in plain_parts(whole, weights.value(whole)):
            digest.update(f"{name} {weight.dtype} {list(weight.shape)}\n".encode("utf-8", "backslashreplace"))
            if weight.device.type != "meta" and weight.layout == torch.strided:
                digest.update(_some_bytes(weight, most))
    return f"{'sha256' if most is None else 'sha256-parts'}:{digest.hexdigest()}"


def plain_parts(name: str, weight: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """A weight, or the tensors it consists of: torchao's quantized weights wrap codes and scales."""
    if not hasattr(weight, "__tensor_flatten__"):
        yield name, weight
        return
    parts, _ = weight.__tensor_flatten__()
    for part in parts:
        if isinstance(found := getattr(weight, part), torch.Tensor):
            yield from plain_parts(f"{name}.{part}", found)


def _some_bytes(weight: torch.Tensor, most: int | None) -> memoryview:
    """The raw bytes of a weight; of a quantized weight, those of its dequantized values."""
    flat = (weight.dequantize() if weight.is_quantized else weight).detach().reshape(-1)
    flat = flat if most is None else flat[: most // weight.element_size()]
    return memoryview(resolved(flat).cpu().contiguous().view(torch.uint8).numpy())


def about_model(model: nn.Module) -> dict[str, Any]:
    """The class of a model, where it is written, and how large it is."""
    place = forward_location(type(model))
    count = sum(weight.numel() for weight in model.parameters() if not is_lazy(weight))
    found = {"class": type(model).__name__, "file": place.file, "line": place.line, "parameters": count}
    found["experts"] = has_experts(model)
    try:
        return found | {"path": inspect.getfile(written_class(type(model)))}
    except (OSError, TypeError):
        return found


def has_experts(model: nn.Module) -> bool | None:
    """Whether anything in a model is named after experts or their router.

    The absence of such names is conclusive only for transformers, whose names are known; for other code the answer is
    None.
    """
    modules = (word for name, part in model.named_modules() for word in (name, type(part).__name__))
    weights = (name for name, _ in model.named_parameters())
    config = about_config(model)
    if any(map(_OF_EXPERTS.search, (*modules, *weights, *_keys(config or {})))):
        return True
    are_known = all(type(part).__module__.startswith(_KNOWN_CODE) for part in model.modules())
    return False if are_known and config is not None else None


def _keys(config: Mapping[str, Any]) -> Iterator[str]:
    for key, value in config.items():
        yield key
        if isinstance(value, dict):
            yield from _keys(value)


def about_config(model: nn.Module) -> dict[str, Any] | None:
    """The config of a transformers model, as far as it is plain values; None for other models."""
    config, transformers = getattr(model, "config", None), sys.modules.get("transformers")
    if transformers is None or not isinstance(config, transformers.PretrainedConfig):
        return None
    found: dict[str, Any] = _plain(config.to_dict())
    return {name: value for name, value in found.items() if not name.startswith("_")}


def _plain(value: Any) -> Any:
    """A value that a manifest can hold; anything else as text."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    is_plain = (
        value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
    )
    return value if is_plain else str(value)
