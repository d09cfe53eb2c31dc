"""What a manifest says of TF32, and when that is believed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensordiff.dump.arithmetic import tf32_in
from tensordiff.dump.model import Dump, Entry, MemoryTensor, Origin
from tests.making import numbers

AMPERE = {"device": "cuda:0", "name": "A100", "vendor": "NVIDIA", "architecture": "sm_80"}


def dump(module_class: str = "Linear", **facts: Any) -> Dump:
    entry = Entry("a-output", "a", "output", 1, 0, MemoryTensor(numbers(2)), Origin(module_class))
    return Dump(Path("dump"), "tensordiff", (entry,), ordered=True, facts=facts)


@pytest.mark.parametrize(
    ("facts", "where"),
    [
        ({}, "nowhere"),
        ({"flags": "tf32_matmul", "device": "cuda:0"}, "nowhere"),
        ({"flags": {"tf32_matmul": "yes"}, "device": "cuda:0"}, "nowhere"),
        ({"flags": {"tf32_matmul": True}}, "nowhere"),
        ({"flags": {"tf32_matmul": True}, "device": "cpu"}, "nowhere"),
        ({"flags": {"tf32_matmul": True}, "device": "cuda:0"}, "everywhere"),
        ({"flags": {"tf32_matmul": True}, "device": "cpu, cuda:1", "accelerators": [AMPERE]}, "everywhere"),
        ({"flags": {"tf32_matmul": True}, "device": "cuda:0", "accelerators": [{"vendor": "AMD"}]}, "nowhere"),
        (
            {"flags": {"tf32_matmul": True}, "device": "cuda:0", "accelerators": [AMPERE | {"architecture": "sm_75"}]},
            "nowhere",
        ),
        (
            {"flags": {"tf32_matmul": True}, "device": "cuda:0", "accelerators": [AMPERE | {"architecture": "sm_120"}]},
            "everywhere",
        ),
        ({"flags": {"tf32_matmul": False, "tf32_cudnn": True}, "device": "cuda:0"}, "nowhere"),
    ],
)
def test_where_a_run_computed_in_tf32(facts: dict[str, Any], where: str) -> None:
    assert tf32_in(dump(**facts)) == where


def test_convolutions_are_allowed_it_by_torch_unless_it_is_told() -> None:
    facts = {"flags": {"tf32_matmul": False, "tf32_cudnn": True}, "device": "cuda:0", "accelerators": [AMPERE]}
    assert tf32_in(dump("Conv2d", **facts)) == "convolutions"
