"""GELU by its formula, in the place of ggml's table."""

from __future__ import annotations

import numpy as np
import torch

from tensordiff.capture.engines.llamacpp.values import GEGLU, GELU, gelu_output

X = np.linspace(-12, 12, 96, dtype=np.float32).reshape(8, 12)
UP = np.cos(X)


def torch_gelu(x: np.ndarray) -> np.ndarray:
    found: np.ndarray = torch.nn.functional.gelu(torch.from_numpy(x).double(), approximate="tanh").numpy()
    return found


def test_gelu_is_what_torch_computes() -> None:
    np.testing.assert_allclose(gelu_output(GELU, [X]), torch_gelu(X), rtol=1e-6, atol=1e-7)


def test_a_gated_one_takes_its_parts_apart_side_by_side_or_the_other_way_round() -> None:
    wanted = torch_gelu(X) * UP
    for sources, is_swapped in (([X, UP], False), ([np.hstack([X, UP])], False), ([np.hstack([UP, X])], True)):
        found = gelu_output(GEGLU, sources, is_swapped=is_swapped)
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)
        assert found.dtype == np.float32
