"""What a torch run says of itself: the hash of weights that are wrappers around others, as torchao makes them."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")


class Codes(torch.Tensor):  # type: ignore[misc]
    """A weight as codes and scales. Like torchao's it refuses most operations."""

    codes: Any
    scales: Any

    @staticmethod
    def __new__(cls, codes: Any, scales: Any) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)
        made.codes, made.scales = codes, scales
        return made

    def __tensor_flatten__(self) -> Any:
        return ["codes", "scales"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes, args[0].scales)
        raise NotImplementedError(f"{func} of a tensor that is quantized")


def quantized(scale: float) -> Any:
    module = torch.nn.Linear(4, 4, bias=False)
    codes = torch.arange(16, dtype=torch.int8).reshape(4, 4)
    module.weight = torch.nn.Parameter(Codes(codes, torch.full((4, 1), scale)), requires_grad=False)
    return module


def test_weights_that_are_wrappers_are_hashed_by_what_they_hold() -> None:
    from tensordiff.capture.engines.torch.facts import weights_hash

    assert weights_hash(quantized(0.5)) == weights_hash(quantized(0.5)) != weights_hash(quantized(0.25))
