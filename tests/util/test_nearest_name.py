"""What a misspelt name may have meant."""

from __future__ import annotations

import pytest

from tensordiff.util.nearest_name import nearest_name

NAMES = ("model.layers.0.self_attn", "model.layers.0.mlp", "lm_head", "norm")


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("lm_hed", "lm_head"),
        (r"^model\.layers\.\d+\.mpl$", "model.layers.0.mlp"),
        ("model.layers.{i}.self_atn", "model.layers.0.self_attn"),
        ("mpl", "model.layers.0.mlp"),
        (r"\.self_atn$", "model.layers.0.self_attn"),
        ("0.self_atn", "model.layers.0.self_attn"),
        ("modl.layers", "model.layers.0.mlp"),
        ("nowhere", None),
        ("zzz", None),
        ("", None),
    ],
)
def test_nearest(pattern: str, near: str | None) -> None:
    assert nearest_name(pattern, NAMES) == near
    assert nearest_name(pattern, ()) is None
