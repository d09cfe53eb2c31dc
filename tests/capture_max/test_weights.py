"""The weights as MAX holds them once it has loaded, against the checkpoint and against Hugging Face's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tensordiff.dump import open_dump
from tensordiff.weights.comparison import compare_weights
from tests.capture_max.running import Sides, capture, compare

Both = Callable[[str, str], Sides]


@pytest.mark.parametrize(("name", "dtype"), [("llama", "float32"), ("qwen3", "float32")])
def test_what_max_loaded_is_the_checkpoint(sides: Both, name: str, dtype: str) -> None:
    both = sides(name, dtype)
    held = open_dump(both.on_max("weights", weights=True))
    assert held.parameters
    outcome = compare_weights(open_dump(both.model), held)
    assert [(row.name, row.verdict, row.sentence) for row in outcome.findings] == []
    assert outcome.verdict == "agrees"


def test_weights_come_first(sides: Both, tmp_path: Path) -> None:
    both = sides("llama", "float32")
    reference = capture(
        f"hf:{both.model}", tmp_path / "hf", dtype="float32", attn_implementation="eager", weights=True
    ).path
    compared = compare(reference, both.on_max("with_weights", weights=True))
    assert compared.session.weights is not None
    assert compared.session.weights.verdict == "agrees"
    assert compared.outcome.verdict == "agrees"
