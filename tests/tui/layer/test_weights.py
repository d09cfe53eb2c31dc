"""A layer in the app, where both dumps hold its weights: whether they are the same stands in its head."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.session.test_weights import PERMUTED, WEIGHT, session
from tests.tui.layer.layer_host import showing


@pytest.mark.parametrize(
    ("weight", "gain", "said"),
    [(PERMUTED, 1.0, "its weights differ: rows permuted in blocks of 16"), (WEIGHT, 1.5, "are the same on both sides")],
    ids=["differ", "same"],
)
async def test_the_head_says_whether_weights_are_the_same(
    tmp_path: Path, weight: np.ndarray, gain: float, said: str
) -> None:
    opened = session(tmp_path, weight, gain=gain)
    async with showing(opened, "layers.0.up", size=(140, 45)) as shown:
        assert said in " ".join(shown.facts.split())
