"""Flags of torch that change numbers: reading them, and setting them for ``--deterministic``.

torch has two settings for whether float32 may be computed in TF32: ``allow_tf32`` and, since 2.9, ``fp32_precision``.
Reading the older one raises once the newer was set, so it is read only if there is no newer one.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_OVERRIDE = "NVIDIA_TF32_OVERRIDE"
"""An environment variable; 0 forbids TF32 whatever a program sets."""
_NOT_DETERMINISTIC = "does not have a deterministic implementation"


def flags(model: nn.Module | None) -> dict[str, Any]:
    """Everything that affects numbers besides weights, inputs, versions and devices."""
    config = getattr(model, "config", None)
    found: dict[str, Any] = {
        "attention": getattr(config, "_attn_implementation", None),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "float32_matmul_precision": _precision(torch.get_float32_matmul_precision),
        "tf32_matmul": _is_tf32("matmul"),
        "tf32_cudnn": _is_tf32("conv"),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "training": bool(model is not None and model.training),
        "threads": torch.get_num_threads(),
    }
    return found | (_of_gpus() if torch.cuda.is_available() else {})


def _of_gpus() -> dict[str, Any]:
    matmul = torch.backends.cuda.matmul
    names = ("fp16_reduced_precision_reduction", "bf16_reduced_precision_reduction", "fp16_accumulation")
    reduced = {name: bool(value) for name in names if (value := getattr(matmul, f"allow_{name}", None)) is not None}
    attention = {
        name: bool(is_enabled())
        for name in ("flash", "mem_efficient", "math", "cudnn")
        if callable(is_enabled := getattr(torch.backends.cuda, f"{name}_sdp_enabled", None))
    }
    said = {name.lower(): os.environ[name] for name in (_WORKSPACE, _OVERRIDE) if name in os.environ}
    return reduced | {"sdpa_backends": [name for name, is_on in attention.items() if is_on]} | said


def _is_tf32(operation: str) -> bool:
    """Whether float32 matrix products, or convolutions, may be computed in TF32 on a GPU that has it."""
    if os.environ.get(_OVERRIDE) == "0":
        return False
    legacy = torch.backends.cuda.matmul if operation == "matmul" else torch.backends.cudnn
    newer = legacy if operation == "matmul" else getattr(legacy, "conv", None)
    if (said := getattr(newer, "fp32_precision", None)) is None:
        return bool(legacy.allow_tf32)
    if said == "none":  # not set for this operation, so the setting of the device counts, then the global one
        said = next((each for each in _of_device() if each != "none"), "ieee")
    return bool(said == "tf32")


def _of_device() -> Iterator[str]:
    yield str(getattr(torch.backends.cudnn, "fp32_precision", "none"))
    yield str(getattr(torch.backends, "fp32_precision", "none"))


def _precision(read: Callable[[], str]) -> str | None:
    """The older precision setting; None if only newer ones were used, which makes reading it fail."""
    try:
        return read()
    except RuntimeError:
        return None


def make_deterministic() -> None:
    """Ask torch for the same numbers every time, and for full float32.

    cuBLAS reads the size of its workspace when it is first used on a device, so this must run before the model is
    loaded (see ATen/cuda/CublasHandlePool.cpp; the tests run on machines without cuBLAS).
    """
    os.environ.setdefault(_WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    # The newer setting first: its global value stays in force when the older one is set.
    if getattr(torch.backends, "fp32_precision", "none") != "none":
        torch.backends.fp32_precision = "ieee"
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        torch.backends.cudnn.conv.fp32_precision = "ieee"
        torch.backends.cudnn.rnn.fp32_precision = "ieee"


@contextmanager
def nondeterministic_operations() -> Iterator[set[str]]:
    """Collect the operations that ran without a deterministic form though one was requested; other warnings pass."""
    found: set[str] = set()
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=f".*{_NOT_DETERMINISTIC}")
        plain = warnings.showwarning

        def show(message: Warning | str, *args: Any, **kwargs: Any) -> None:
            operation, matches, _ = str(message).partition(f" {_NOT_DETERMINISTIC}")
            if matches:
                found.add(operation)
            else:
                plain(message, *args, **kwargs)

        warnings.showwarning = show
        yield found
