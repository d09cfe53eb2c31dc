"""Names that count: the number is the order, where it is nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensordiff.dump import open_dump
from tests.making import save_npy


def layers(folder: Path, *names: str) -> list[str]:
    dump = open_dump(save_npy(folder, {name: np.full(3, k, np.float32) for k, name in enumerate(names)}))
    return [entry.layer for entry in dump.entries] if dump.ordered else []


@pytest.mark.parametrize(
    "names",
    [
        ("00_a", "01_b", "02_c"),  # too few
        ("00_block", "01_block", "02_block", "03_block"),  # numbers of layers
        ("0_a", "1_b", "2_c", "3_d"),
        ("00_a", "01_b", "02_c", "x"),
        ("00_a", "00_b", "01_a", "01_b"),
        ("00_a", "01_b", "002_c", "003_d"),
        ("00_1", "01_2", "02_3", "03_4"),
    ],
)
def test_other_numbers_stay(tmp_path: Path, names: tuple[str, ...]) -> None:
    assert layers(tmp_path, *names) == []


def test_numbers_are_the_order(tmp_path: Path) -> None:
    names = ("0002__layers.0.mlp", "0000__embed", "0010__lm_head-output", "0001__layers.0.attn-input_0")
    assert layers(tmp_path, *names) == ["embed", "layers.0.attn", "layers.0.mlp", "lm_head"]
    last = open_dump(tmp_path).entries[-1]
    assert (last.name, last.port) == ("0010__lm_head-output", "output")
