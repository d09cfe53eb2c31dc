"""What stands around a tensor: its layer's inputs first, then the layer's parts; nothing that does not fit."""

from __future__ import annotations

from tensordiff.compare.hint.context import tensors_near
from tensordiff.dump.model import Dump, Entry
from tests.making import held, numbers

LAYER = {
    "layers.0.norm-input_0": numbers(9, 8), "layers.0.norm-output": numbers(9, 8), "layers.0.up-output": numbers(9, 32),
    "layers.0.attn.q-output": numbers(9, 8), "layers.0-input_1": numbers(1, 9, 8), "layers.0-output": numbers(9, 8),
    "layers.0-input_ids": numbers(9, 8).astype("int64"), "layers.0-input_0": None, "layers.00-input_0": numbers(9, 8),
}  # fmt: skip


def entry(dump: Dump, name: str) -> Entry:
    return next(entry for entry in dump.entries if entry.name == name)


def test_inputs_come_before_parts() -> None:
    dump = held(LAYER)
    names = list(tensors_near(entry(dump, "layers.0-output"), dump, 72))
    assert names == ["layers.0-input_1", "layers.0.norm-input_0", "layers.0.norm-output"]


def test_another_call_or_step_is_another_tensor() -> None:
    dump = held({"a-input_0": numbers(4), "a(2)-input_0": numbers(4), "a(2)-output": numbers(4)})
    assert list(tensors_near(entry(dump, "a(2)-output"), dump, 4)) == ["a(2)-input_0"]
    later = held({"a-output": numbers(4)}, step=1).entries[0]
    assert tensors_near(later, dump, 4) == {}


def test_nothing_stands_around_an_input() -> None:
    dump = held(LAYER)
    assert tensors_near(entry(dump, "layers.0-input_1"), dump, 72) == {}


def test_not_more_than_a_few_are_read() -> None:
    dump = held({f"a.{i}-output": numbers(4) for i in range(100)} | {"a-output": numbers(4)})
    assert len(tensors_near(entry(dump, "a-output"), dump, 4)) == 16
