from __future__ import annotations

import os
import resource
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch

from tensordiff.dump import open_dump
from tensordiff.errors import BadFile
from tests.dump.file_damage import allocating_under
from tests.dump.readers.safetensors_samples import bits, craft, opened, random_tensor, row

TORCH_DTYPES = {
    torch.bool: "bool", torch.uint8: "uint8", torch.int8: "int8", torch.int16: "int16",
    torch.uint16: "uint16", torch.int32: "int32", torch.uint32: "uint32", torch.int64: "int64",
    torch.uint64: "uint64",
    torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64",
    torch.complex64: "complex64", torch.float8_e4m3fn: "float8_e4m3fn", torch.float8_e5m2: "float8_e5m2",
    torch.float8_e4m3fnuz: "float8_e4m3fnuz", torch.float8_e5m2fnuz: "float8_e5m2fnuz",
    torch.float8_e8m0fnu: "float8_e8m0fnu",
}  # fmt: skip


@pytest.mark.parametrize(("dtype", "name"), TORCH_DTYPES.items(), ids=str)
def test_every_dtype_is_read_bit_for_bit(tmp_path: Path, dtype: torch.dtype, name: str) -> None:
    tensor = random_tensor(dtype, 3, 4, 5)
    path = tmp_path / "t.safetensors"
    safetensors.torch.save_file({"x": tensor}, path)
    [entry] = open_dump(path).entries
    array = entry.read()
    assert (array.dtype.name, array.shape) == (name, (3, 4, 5)) == (entry.spec.dtype.name, entry.spec.shape)
    assert array.tobytes() == bits(tensor)
    assert not array.flags.writeable


def test_float4_unpacks_low_bits_first(tmp_path: Path) -> None:
    packed = torch.tensor([[0x10, 0x32], [0x54, 0x76]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    path = tmp_path / "t.safetensors"
    safetensors.torch.save_file({"w": packed}, path)
    [entry] = open_dump(path).entries
    array = entry.read()
    assert entry.spec == ((2, 4), np.dtype(ml_dtypes.float4_e2m1fn)) == (array.shape, array.dtype)
    assert array.astype(np.float32).tolist() == [[0.0, 0.5, 1.0, 1.5], [2.0, 3.0, 4.0, 6.0]]
    assert not array.flags.writeable


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0, 2), (1,), (1, 1, 1)])
def test_odd_shapes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "t.safetensors"
    safetensors.torch.save_file({"x": torch.full(shape, 2.5)}, path)
    array = open_dump(path).entries[0].read()
    assert array.shape == shape
    assert (array == np.float32(2.5)).all()


def test_file_order_is_kept_and_not_called_execution_order(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    tensors = {"b": torch.zeros(2), "a": torch.zeros(2), "wide": torch.zeros(1, dtype=torch.int64)}
    safetensors.torch.save_file(tensors, path, metadata={"made by": "a test"})
    dump = open_dump(path)
    assert [e.name for e in dump.entries] == ["wide", "a", "b"]
    assert not dump.ordered
    assert (dump.format, dump.facts, dump.problems) == ("safetensors", {"made by": "a test"}, ())


def test_order_in_the_metadata_is_execution_order(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    tensors = {name: torch.full((1,), float(index)) for index, name in enumerate("cab")}
    safetensors.torch.save_file(tensors, path, metadata={"order": '["c", "a", "b"]'})
    dump = open_dump(path)
    assert dump.ordered
    assert [e.name for e in dump.entries] == ["c", "a", "b"]
    assert [e.read().item() for e in dump.entries] == [0, 1, 2]


@pytest.mark.parametrize(
    "order",
    ["", "[", "{}", '["a"]', '["a", "b", "c"]', '["a", "a"]', '["a", 1]', '[["a"], "b"]', '["a", "\\ud800"]'],
)
def test_an_order_that_is_wrong_orders_nothing(tmp_path: Path, order: str) -> None:
    header = {"__metadata__": {"order": order}, "b": row("U8", [1], 1, 2), "a": row("U8", [1], 0, 1)}
    dump = opened(tmp_path, craft(header, b"\1\2"))
    assert [(e.name, e.read().item()) for e in dump.entries] == [("a", 1), ("b", 2)]
    assert not dump.ordered
    assert "order" in dump.problems[0].sentence


def test_an_order_holds_beside_facts_that_are_wrong(tmp_path: Path) -> None:
    said = {"order": '["b", "a"]', "tensordiff.facts": "[]"}
    header = {"__metadata__": said, "a": row("U8", [1], 0, 1), "b": row("U8", [1], 1, 2)}
    dump = opened(tmp_path, craft(header, b"\1\2"))
    assert dump.ordered and [e.name for e in dump.entries] == ["b", "a"]
    [problem] = dump.problems
    assert "the facts in its __metadata__ are not a JSON object" in problem.sentence


def test_both_facts_and_order_that_are_wrong_are_told(tmp_path: Path) -> None:
    header = {"__metadata__": {"order": "{}", "tensordiff.facts": "[]"}, "a": row("U8", [1], 0, 1)}
    assert len(opened(tmp_path, craft(header, b"\1")).problems) == 2


def test_a_second_call_is_no_duplicate(tmp_path: Path) -> None:
    header = {"x": row("U8", [1], 0, 1), "x#step=0#call=2": row("U8", [1], 1, 2)}
    dump = opened(tmp_path, craft(header, b"\1\2"))
    assert dump.problems == ()
    assert [(e.name, e.call, e.read().item()) for e in dump.entries] == [("x", 1, 1), ("x", 2, 2)]


def test_a_second_call_in_a_file_of_another_format_is_no_duplicate(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(craft({"x#step=0#call=2": row("U8", [1], 0, 1)}, b"\2"))
    np.savez(tmp_path / "b.npz", x=np.ones(1, np.uint8))
    dump = open_dump(tmp_path)
    assert dump.unread == []
    assert sorted((e.name, e.call) for e in dump.entries) == [("x", 1), ("x", 2)]


def test_shards_are_one_dump(tmp_path: Path) -> None:
    for index in range(1, 11):
        tensors = {f"layers.{index}": torch.full((2,), float(index))}
        safetensors.torch.save_file(tensors, tmp_path / f"model-{index}-of-10.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"layers.1": "/etc/passwd"}}')
    dump = open_dump(tmp_path)
    assert [(e.name, e.read()[0]) for e in dump.entries] == [(f"layers.{index}", index) for index in range(1, 11)]
    assert dump.problems == ()


def test_tensors_of_one_shard_share_its_mapping(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    safetensors.torch.save_file({"a": torch.zeros(1 << 15), "b": torch.zeros(1 << 15)}, path)
    one, other = (e.read() for e in open_dump(path).entries)
    distance = abs(one.__array_interface__["data"][0] - other.__array_interface__["data"][0])
    assert distance == 4 << 15


def test_more_shards_than_files_may_be_open(tmp_path: Path) -> None:
    for index in range(100):
        (tmp_path / f"{index}.safetensors").write_bytes(
            craft({f"{index}": row("U8", [1 << 16], 0, 1 << 16)}, bytes(1 << 16))
        )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (80 + sum(1 for _ in Path("/dev/fd").iterdir()), hard))
    try:
        assert not any(entry.read().any() for entry in open_dump(tmp_path).entries)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_one_bad_shard_leaves_the_rest(tmp_path: Path) -> None:
    safetensors.torch.save_file({"a": torch.ones(2)}, tmp_path / "1.safetensors")
    (tmp_path / "2.safetensors").write_bytes(b"short")
    dump = open_dump(tmp_path)
    assert [e.name for e in dump.entries] == ["a"]
    assert [p.file for p in dump.problems] == ["2.safetensors"]
    (tmp_path / "1.safetensors").write_bytes(b"")
    with pytest.raises(BadFile, match=r"1\.safetensors"):
        open_dump(tmp_path)


def test_a_name_in_two_shards_is_kept_from_the_first(tmp_path: Path) -> None:
    for index in (1, 2):
        safetensors.torch.save_file({"a": torch.full((1,), float(index))}, tmp_path / f"part{index}.safetensors")
    dump = open_dump(tmp_path)
    assert [e.read().item() for e in dump.entries] == [1.0]
    [problem] = dump.problems
    assert (problem.file, problem.is_unread) == ("part2.safetensors", True)
    assert "'a' that part1.safetensors has too" in problem.sentence


def test_files_of_one_nameless_tensor_are_called_by_the_files_name(tmp_path: Path) -> None:
    """As transformers' debugger leaves them, each tensor a file under the key ``data``."""
    for index in (1, 2, 10):
        tensors = {"data": torch.full((1,), float(index))}
        safetensors.torch.save_file(tensors, tmp_path / f"Llama.model.layers.{index}.mlp_outputs.safetensors")
    dump = open_dump(tmp_path)
    assert {e.name: e.read().item() for e in dump.entries} == {
        f"Llama.model.layers.{index}.mlp_outputs": index for index in (1, 2, 10)
    }
    assert dump.problems == ()


def test_a_file_without_suffix_is_known_by_its_header(tmp_path: Path) -> None:
    blob = tmp_path / "0a1b2c"
    safetensors.torch.save_file({"a": torch.ones(2)}, blob)
    assert open_dump(blob).format == "safetensors"


def test_a_cache_of_links_into_blobs_is_followed(tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshots" / "rev"
    snapshot.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    safetensors.torch.save_file({"a": torch.ones(2)}, tmp_path / "blobs" / "0a1b")
    (snapshot / "model.safetensors").symlink_to("../../blobs/0a1b")
    assert [e.name for e in open_dump(snapshot).entries] == ["a"]


def test_unknown_dtypes_refuse_only_their_tensor(tmp_path: Path) -> None:
    header = {"new": row("F3", [3], 0, 2), "six": row("F6_E2M3", [4], 2, 5), "ok": row("U8", [1], 5, 6)}
    dump = opened(tmp_path, craft(header, b"\0\0\0\0\0\7"))
    new, six, ok = dump.entries
    assert ok.read().tolist() == [7]
    for entry, word in ((new, "'F3', which is not known"), (six, "'F6_E2M3', how its bits are packed")):
        with pytest.raises(BadFile, match=word):
            _ = entry.spec
        with pytest.raises(BadFile, match=entry.name):
            entry.read()


def test_opening_touches_only_the_header(tmp_path: Path) -> None:
    size = 1 << 40
    path = tmp_path / "t.safetensors"
    path.write_bytes(craft({"x": row("F32", [size // 4], 0, size)}))
    os.truncate(path, path.stat().st_size + size)
    with allocating_under(1 << 20):
        [entry] = open_dump(path).entries
        assert entry.spec.nbytes == size
        assert not entry.read()[-3:].any()


def test_many_tensors_are_listed_from_two_looks_at_the_file(tmp_path: Path, opens: list[str]) -> None:
    header = {f"model.layers.{i}.mlp.down_proj-output": row("F32", [1], 4 * i, 4 * i + 4) for i in range(20_000)}
    path = tmp_path / "t.safetensors"
    path.write_bytes(craft(header, bytes(80_000)))
    opens.clear()
    assert len(open_dump(path)) == 20_000
    assert opens == ["t.safetensors"] * 2  # the first bytes, then the header
