"""Tensors that are spread over GPUs, put together and taken apart; MAX is not needed for it."""

from __future__ import annotations

import numpy as np
import pytest

from tensordiff.capture.engines.max.shards import Merger, ShardPath, merged_site, slots_by_input, split_by_shard
from tensordiff.capture.engines.max.sites import GraphSite, InputSlot, Role, Shard
from tensordiff.dump.dtypes import Array

PATH = "model.layers.0.mlp_shards"


def site(number: int, role: Role, port: str = "output", rest: str = "") -> GraphSite:
    return GraphSite(f"{PATH}.0{rest}", port, 1, shard=Shard(number, 2, role, PATH))


def numbers(seed: int, columns: int = 4) -> Array:
    return np.random.default_rng(seed).normal(size=(3, columns)).astype(np.float32)


def test_copies_that_differ_are_noted() -> None:
    merger, value = Merger(), numbers(0)
    for other in (value, value + np.float32(0.5)):
        assert merger.step([(site(0, "copy"), value), (site(1, "copy"), other)])[0][1] is value
    assert len(merger.differing) == 1
    assert (
        "1 tensors differ between GPUs that should hold copies, most model.layers.0.mlp_shards.0" in merger.notes()[0]
    )
    nan = np.full(3, np.nan, np.float32)
    clean = Merger()
    clean.step([(site(0, "copy"), nan), (site(1, "copy"), nan.copy())])
    assert clean.notes() == []


def test_terms_are_added_and_columns_stand_side_by_side() -> None:
    a, b = numbers(0), numbers(1)
    (_, total), (where, columns) = Merger().step(
        [
            (site(0, "term"), a),
            (site(0, "columns", "input_0"), a),
            (site(1, "term"), b),
            (site(1, "columns", "input_0"), b),
        ]
    )
    np.testing.assert_allclose(total, a + b)
    assert total.dtype == np.float32
    assert columns.shape == (3, 8) and (columns[:, 4:] == b).all()
    assert where == GraphSite(f"{PATH}.0", "input_0", 1)


def test_what_cannot_be_put_together_has_a_name_that_pairs_with_nothing() -> None:
    parts = Merger().step([(site(k, "part", rest=".q_norm"), numbers(k)) for k in range(2)])
    assert [where.layer for where, _ in parts] == [f"{PATH}.0of2.q_norm", f"{PATH}.1of2.q_norm"]


def test_one_device_is_left_as_it_is() -> None:
    plain = GraphSite("model.layers.0.mlp_shards.0", "output", 1)
    value = numbers(0)
    assert merged_site(plain) is plain
    assert Merger().step([(plain, value)]) == [(plain, value)]


@pytest.mark.parametrize(
    ("name", "whole", "first"),
    [
        ("model.layers.0.mlp_shards.1", "model.layers.0.mlp", "model.layers.0.mlp_shards.0"),
        ("model.a.mlp_shards.1.down_proj", "model.a.mlp.down_proj", "model.a.mlp_shards.0.down_proj"),
        ("model.attn.list_of_attentions.1.o_proj", "model.attn.o_proj", "model.attn.list_of_attentions.0.o_proj"),
        ("model.lm_head.distributed_linear_layers.1", "model.lm_head", "model.lm_head.distributed_linear_layers.0"),
    ],
)  # fmt: skip
def test_names(name: str, whole: str, first: str) -> None:
    found = ShardPath.of(name)
    assert found is not None and (found.whole, found.first) == (whole, first)
    assert ShardPath.of("model.layers.0.mlp.down_proj") is None


def test_a_whole_is_given_to_every_gpu() -> None:
    slots = [InputSlot(site(k, "copy", "input_0"), "float32", (3, 4), f"gpu:{k}") for k in (1, 0)]
    slots += [InputSlot(site(k, "columns", "input_1"), "float32", ("n", 2), f"gpu:{k}") for k in (1, 0)]
    wholes, value = slots_by_input(slots), numbers(0)
    copies = dict(split_by_shard(wholes[f"{PATH}.0", 1, "input_0"], value))
    assert {where.shard.number for where in copies if where.shard} == {0, 1} and all(
        v is value for v in copies.values()
    )
    columns = {
        where.shard.number: v for where, v in split_by_shard(wholes[f"{PATH}.0", 1, "input_1"], value) if where.shard
    }
    assert (columns[0] == value[:, :2]).all() and (columns[1] == value[:, 2:]).all()
