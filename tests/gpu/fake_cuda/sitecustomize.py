"""Found by Python when this folder is on PYTHONPATH: torch, once imported, has the fake CUDA devices beside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class _TorchFinder:
    """Finds torch as usual, and puts the devices in while it is imported."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = _with_devices(loader.exec_module)
        return spec


def _with_devices(plain: Any) -> Any:
    def exec_module(module: ModuleType) -> None:
        import fake_cuda_devices  # type: ignore[import-not-found]  # beside this file, on PYTHONPATH

        fake_cuda_devices.load_library()  # before torch asks for the first time which devices there are, and remembers
        plain(module)
        fake_cuda_devices.install()

    return exec_module


if os.environ.get("FAKE_CUDA"):
    sys.meta_path.insert(0, _TorchFinder)
