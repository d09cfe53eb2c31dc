"""Weights while vLLM loads them: their matrices are kept, and those of left-out layers are skipped.

On a CPU vLLM packs every matrix for its kernels and drops the matrix itself. A dump could then neither write the
weights nor tell two checkpoints apart by their hash. So both are kept, which takes the memory of the matrices twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from vllm.model_executor.layers import utils
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

_BLOCK = re.compile(r"(?:^|\.)(?:layers?|blocks?|h)\.(\d+)\.")


@contextmanager
def kept_weights() -> Iterator[None]:
    """While a model is loaded, keep its matrices when they are packed."""
    pack = utils.dispatch_cpu_unquantized_gemm

    def pack_and_keep(layer: nn.Module, remove_weight: bool) -> None:  # noqa: ARG001 - vLLM passes it by name
        pack(layer, remove_weight=False)

    utils.dispatch_cpu_unquantized_gemm = pack_and_keep
    try:
        yield
    finally:
        utils.dispatch_cpu_unquantized_gemm = pack


@contextmanager
def weights_of_first_layers(count: int | None) -> Iterator[None]:
    """While a model is loaded, skip the weights of further layers: vLLM refuses weights that it has no layer for."""
    read = DefaultModelLoader.get_all_weights

    def read_first(loader: Any, *args: Any) -> Iterator[tuple[str, Tensor]]:
        return ((name, weight) for name, weight in read(loader, *args) if count is None or _block(name) < count)

    DefaultModelLoader.get_all_weights = read_first
    try:
        yield
    finally:
        DefaultModelLoader.get_all_weights = read


def _block(name: str) -> int:
    """The number of the block that a weight belongs to; -1 if it belongs to none."""
    found = _BLOCK.search(name)
    return int(found[1]) if found else -1
