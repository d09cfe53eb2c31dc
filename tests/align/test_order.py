"""Execution order: recovered from values, and checked against the true one of real MAX runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensordiff.align import align
from tensordiff.align.order import infer_order, order_differences
from tensordiff.dump import Dump, open_dump
from tensordiff.dump.model import entry
from tensordiff.session.samples import sample
from tests.making import MemoryTensor, numbers

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"


def dump(tensors: dict[str, np.ndarray], ordered: bool = True) -> Dump:
    return Dump(
        Path("held"), "held", tuple(entry(name, MemoryTensor(array)) for name, array in tensors.items()), ordered
    )


def test_an_output_comes_before_the_layer_that_is_given_it() -> None:
    a, b, c = (numbers(4, 8, seed=seed) for seed in range(3))
    found, by_values = infer_order(
        dump({"a-input_0": b, "a-output": c, "z-input_0": a, "z-output": b, "y-output": a}, ordered=False)
    )
    assert [item.layer for item in found if not item.is_input] == ["y", "z", "a"] and by_values


def test_a_module_ends_after_its_parts() -> None:
    found, by_values = infer_order(
        dump({name: numbers(4, 8, seed=k) for k, name in enumerate(["m", "m.a", "m.b"])}, False)
    )
    assert [item.layer for item in found] == ["m.a", "m.b", "m"] and not by_values


def test_values_in_a_circle_do_not_hang() -> None:
    x, y = numbers(4, 8), numbers(4, 8, seed=1)
    found, _ = infer_order(dump({"a-input_0": x, "a-output": y, "b-input_0": y, "b-output": x}, ordered=False))
    assert len(found) == 4


def test_two_dumps_without_order_are_ordered_by_values() -> None:
    found = align(open_dump(sample("max")), open_dump(sample("max")))
    assert found.order == "unknown" and found.order_from == "values"
    outputs = [pair.name for pair in found.pairs if not pair.reference.is_input]
    wanted = ["embed_tokens", "layers.0.input_layernorm", "layers.0.mlp.down_proj", "layers.0", "layers.1", "lm_head"]
    assert [name for name in dict.fromkeys(outputs) if name in wanted] == wanted


@pytest.mark.skipif(not CASES.exists(), reason="the real dumps do not lie beside the checkout")
@pytest.mark.parametrize("case", ["llama", "qwen3", "phi3", "bert"])
def test_recovered_order_is_nearly_the_true_one(case: str) -> None:
    """Of all pairs of outputs, how many stand as they ran; equal twins and independent layers cannot be told."""
    true = [line for line in (CASES / case / "max_order.txt").read_text().splitlines() if "-output" in line]
    place = {name: k for k, name in enumerate(true)}
    found, _ = infer_order(open_dump(CASES / case / "max"))
    order = [place[item.name] for item in found if item.name in place]
    right = sum(a < b for k, a in enumerate(order) for b in order[k + 1 :])
    assert right >= 0.9 * len(order) * (len(order) - 1) / 2


def test_where_the_two_sides_part() -> None:
    x = {name: numbers(4, 8, seed=k) for k, name in enumerate("abc")}
    reference, candidate = dump(x), dump({name: x[name] for name in "bac"})
    found = align(reference, candidate)
    assert found.order == "differs"
    parts = order_differences(reference, candidate, [(p.reference, p.candidate, p.by) for p in found.pairs])
    assert [tuple(part) for part in parts] == [(0, "a", "b"), (1, "b", "a")]


def test_what_sees_part_of_a_pair_has_no_place_in_the_order() -> None:
    """MAX computes the last token's norm and logits first, then those of all tokens."""
    norm, head = numbers(1, 5, 8), numbers(1, 5, 16, seed=1)
    reference = dump({"norm-output": norm, "lm_head-output": head})
    last = {"norm-output": norm[0, -1:], "lm_head-output": head[0, -1:]}
    candidate = dump({**last, "norm(2)-output": norm[0], "lm_head(2)-output": head[0]})
    found = align(reference, candidate)
    assert len(found.pairs) == 4 and found.order == "same"
    swapped = align(reference, dump({**last, "lm_head(2)-output": head[0], "norm(2)-output": norm[0]}))
    assert swapped.order == "differs"
