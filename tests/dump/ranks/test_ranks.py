"""Ranks put together: what says how, what stays apart, and what is a finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from tensordiff.dump import open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import MemoryTensor, entry
from tensordiff.dump.ranks.joined_tensor import MeshPlacement, RankPart, Split, Zigzag
from tensordiff.dump.ranks.ranks import Joined, join_ranks
from tests.dump.readers.tools.variants import torch_dtensors_of_a_mesh
from tests.making import numbers, write

TOKENS, WIDTH = 6, 8


def joined(
    *ranks: dict[str, Array], placements: Mapping[str, Sequence[Sequence[MeshPlacement]]] | None = None
) -> Joined:
    """Tensors of several ranks, each in the order it ran."""
    told = placements or {}
    return join_ranks(
        RankPart(rank, entry(name, MemoryTensor(array)), tuple(told[name][rank]) if name in told else None)
        for rank, tensors in enumerate(ranks)
        for name, array in tensors.items()
    )


def values(found: Joined) -> dict[str, Array]:
    return {item.name: item.read() for item in found.entries}


def halves(array: Array, axis: int) -> list[Array]:
    return np.split(array, 2, axis=axis)


RESIDUAL = numbers(TOKENS, WIDTH)


def test_columns_of_another_width_than_the_model() -> None:
    whole = numbers(TOKENS, 20, seed=1)
    left, right = halves(whole, 1)
    found = joined({"norm": RESIDUAL, "x": left}, {"norm": RESIDUAL, "x": right})
    assert found.problems == ()
    np.testing.assert_array_equal(values(found)["x"], whole)


def test_some_of_the_tokens() -> None:
    whole = numbers(TOKENS, WIDTH, seed=1)
    first, second = halves(whole, 0)
    found = joined({"q_proj-input_0": RESIDUAL, "norm": first}, {"q_proj-input_0": RESIDUAL, "norm": second})
    np.testing.assert_array_equal(values(found)["norm"], whole)


@pytest.mark.parametrize(
    ("layer", "expected"), [("mlp.down_proj", "sum"), ("mlp.up_proj", "columns"), ("mlp", "apart")]
)
def test_convention_decides_where_shapes_leave_it_open(layer: str, expected: str) -> None:
    a, b = numbers(TOKENS, WIDTH, seed=1), numbers(TOKENS, WIDTH, seed=2)
    found = joined({"norm": RESIDUAL, layer: a}, {"norm": RESIDUAL, layer: b})
    if expected == "apart":
        assert list(values(found)) == ["norm", "mlp._ranks.0", "mlp._ranks.1"]
        assert [problem.is_unread for problem in found.problems] == [True]
    else:
        whole = a + b if expected == "sum" else np.concatenate([a, b], axis=1)
        np.testing.assert_allclose(values(found)[layer], whole, rtol=1e-6)


def test_replicas_that_differ_a_little_are_a_finding_and_no_parts() -> None:
    found = joined({"x": RESIDUAL}, {"x": RESIDUAL * np.float32(1.001)})
    assert list(values(found)) == ["x"]
    [problem] = found.problems
    assert problem.is_unread and "is replicated, and ranks 0 and 1 hold different values" in problem.sentence
    assert problem.sentence.endswith("; rank 0's was compared")
    assert problem.do == "look for a missing all-reduce or broadcast"


def test_replicas_of_halves() -> None:
    """Key and value heads that several ranks share, or two runs of the same batch."""
    whole = numbers(TOKENS, 20, seed=1)
    a, b = halves(whole, 1)
    for order in ((a, a, b, b), (a, b, a, b)):
        found = joined(*({"norm": RESIDUAL, "k_proj": part} for part in order))
        np.testing.assert_array_equal(values(found)["k_proj"], whole)


@pytest.mark.parametrize("split", [Zigzag(0), 0, "sum"])
def test_what_the_dump_says_comes_first(split: Split) -> None:
    whole = numbers(8, WIDTH, seed=1)
    chunks = np.split(whole, 4)
    parts = {
        Zigzag(0): [np.concatenate((chunks[0], chunks[3])), np.concatenate((chunks[1], chunks[2]))],
        0: halves(whole, 0), "sum": [whole * 0.25, whole * 0.75],
    }[split]  # fmt: skip
    told = {"x": [[MeshPlacement(0, split)], [MeshPlacement(1, split)]]}
    found = joined({"x": parts[0]}, {"x": parts[1]}, placements=told)
    np.testing.assert_allclose(values(found)["x"], whole, rtol=1e-6)


def test_a_mesh_of_two_axes() -> None:
    whole = numbers(8, WIDTH, seed=1)
    parts = [quarter for half in halves(whole, 0) for quarter in halves(half, 1)]
    told = {"x": [[MeshPlacement(rank // 2, 0), MeshPlacement(rank % 2, 1)] for rank in range(4)]}
    found = joined(*({"x": part} for part in parts), placements=told)
    np.testing.assert_array_equal(values(found)["x"], whole)


def test_pipeline_stages_follow_one_another_though_both_begin_alike() -> None:
    first = {"rotary": RESIDUAL, "layers.0.mlp": RESIDUAL, "layers.0": RESIDUAL}
    second = {"rotary": RESIDUAL, "layers.1.mlp": RESIDUAL, "layers.1": RESIDUAL, "norm": RESIDUAL}
    assert list(values(joined(first, second))) == [*first, "layers.1.mlp", "layers.1", "norm"]


def test_experts_stand_where_each_rank_has_them() -> None:
    ranks = ({"gate": RESIDUAL, f"experts.{rank}": RESIDUAL, "mlp": RESIDUAL} for rank in range(2))
    assert list(values(joined(*ranks))) == ["gate", "experts.0", "experts.1", "mlp"]


def fused_ranks(*, with_output: bool) -> tuple[list[dict[str, Array]], Array]:
    q, k, v = numbers(TOKENS, 12, seed=1), numbers(TOKENS, 4, seed=2), numbers(TOKENS, 4, seed=3)
    ranks = []
    for rank in range(2):
        part = np.concatenate([halves(one, 1)[rank] for one in (q, k, v)], axis=1)
        held = {"norm": RESIDUAL, "layers.0.self_attn.qkv_proj": part}
        ranks.append(held | ({"layers.0.self_attn.o_proj-input_0": halves(q, 1)[rank]} if with_output else {}))
    return ranks, np.concatenate([q, k, v], axis=1)


def test_query_key_and_value_of_all_ranks_come_together() -> None:
    ranks, whole = fused_ranks(with_output=True)
    np.testing.assert_array_equal(values(joined(*ranks))["layers.0.self_attn.qkv_proj"], whole)


def test_fused_parts_of_unknown_sizes_stay_apart() -> None:
    """One after the other they would be in an order that no other engine has: a fault that is none."""
    ranks, _ = fused_ranks(with_output=False)
    found = joined(*ranks)
    assert "layers.0.self_attn.qkv_proj._ranks.1" in values(found)
    assert "nothing says how much is query" in found.problems[0].sentence


def test_gates_of_all_ranks_come_before_the_rest() -> None:
    gate, up = numbers(TOKENS, 12, seed=1), numbers(TOKENS, 12, seed=2)
    ranks = [
        {"norm": RESIDUAL, "mlp.gate_up_proj": np.concatenate([halves(gate, 1)[r], halves(up, 1)[r]], axis=1)}
        for r in range(2)
    ]
    np.testing.assert_array_equal(values(joined(*ranks))["mlp.gate_up_proj"], np.concatenate([gate, up], axis=1))


def test_shards_of_devices_in_a_dump_of_our_own(tmp_path: Path) -> None:
    whole = numbers(TOKENS, 20, seed=1)
    left, right = halves(whole, 1)
    names = {"norm": RESIDUAL, "up_proj._shards.0-output": left, "up_proj._shards.1-output": right}
    replicas = {"norm2._shards.0-output": RESIDUAL, "norm2._shards.1-output": RESIDUAL + 1}
    dump = open_dump(write(tmp_path / "d", names | replicas))
    assert [item.layer for item in dump.entries] == ["norm", "up_proj", "norm2._shards.0", "norm2._shards.1"]
    np.testing.assert_array_equal(dump.entries[1].read(), whole)
    assert len(dump.unread) == 1


def test_one_rank_of_a_dtensor_is_no_whole_tensor(tmp_path: Path) -> None:
    folder = torch_dtensors_of_a_mesh(tmp_path / "d", False)
    (alone := tmp_path / "alone").mkdir()
    (folder / "rank1.pt").rename(alone / "rank1.pt")
    sentences = open_dump(alone / "rank1.pt").unread
    assert sentences and "is a part of a DTensor, [1, 3, 16] of [1, 6, 32]" in sentences[0]
