"""Reports the devices that the frameworks of an interpreter find.

``tensordiff doctor`` makes each interpreter run the text of this file. It imports the named framework and nothing of
tensordiff, because the interpreter may be any.
"""

from __future__ import annotations

from collections.abc import Callable


def torch_devices() -> dict[str, str]:
    """The devices that torch finds besides the CPU, by their value of ``--device``."""
    import torch

    found = {f"cuda:{number}": torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())}
    return found | ({"mps": "GPU of a Mac"} if torch.backends.mps.is_available() else {})


def max_devices() -> dict[str, str]:
    """The devices that MAX finds."""
    from max.driver import accelerator_api, accelerator_architecture_name, accelerator_count

    if not (count := accelerator_count()):
        return {}
    return {f"gpu:{number}": f"{accelerator_api()} {accelerator_architecture_name()}" for number in range(count)}


def onnxruntime_devices() -> dict[str, str]:
    """The devices that onnxruntime finds; it reports its libraries, not cards."""
    import onnxruntime

    return {"cuda": "CUDA"} if "CUDAExecutionProvider" in onnxruntime.get_available_providers() else {}


def mlx_devices() -> dict[str, str]:
    """The devices that MLX finds."""
    import mlx.core

    name = str(mlx.core.device_info().get("device_name", "GPU")) if mlx.core.metal.is_available() else "GPU"
    has_cuda = hasattr(mlx.core, "cuda") and mlx.core.cuda.is_available()
    return {"gpu": f"CUDA {name}" if has_cuda else name} if has_cuda or mlx.core.metal.is_available() else {}


def vllm_build() -> str:
    """What vLLM was built for, from its version or the name of its package. Importing vLLM would take many seconds."""
    from importlib.metadata import packages_distributions, version
    from importlib.util import find_spec

    if find_spec("vllm") is None:
        raise ModuleNotFoundError("vllm")
    named = [f"{name} {version(name)}" for name in packages_distributions().get("vllm", ())]
    built = "cpu" if any("cpu" in one for one in named) else "GPUs"
    return f"{built}, for which it was built; vLLM itself is not asked, since that takes long"


REPORTS: dict[str, Callable[[], dict[str, str]]] = {
    "torch": torch_devices,
    "max": max_devices,
    "onnxruntime": onnxruntime_devices,
    "mlx": mlx_devices,
}
SENTENCES: dict[str, Callable[[], str]] = {"vllm": vllm_build}
"""Frameworks that describe their build instead of listing devices."""


def report(framework: str) -> dict[str, object]:
    """The devices that a framework finds, or why it cannot be asked."""
    try:
        return {"says": SENTENCES[framework]()} if framework in SENTENCES else {"devices": REPORTS[framework]()}
    except Exception as error:  # a broken installation may raise anything
        return {"error": f"{type(error).__name__}: {error}".partition("\n")[0][:300]}
