"""Dumps of other tools that lie: what they claim is checked, what is left out is named, and no pipe is waited for."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tensordiff.dump import open_dump
from tensordiff.dump.dtypes import DTYPES
from tensordiff.dump.model import Spec
from tensordiff.dump.readers.tools import llamacpp
from tensordiff.dump.readers.tools.dcp import Piece, PiecedTensor
from tensordiff.errors import BadFile
from tests.dump.readers.tools.stand_ins import (
    A,
    megatron,
    msprobe,
    pt,
    sglang,
    sglang_passes,
    tensor,
    trtllm,
    vllm_logger,
)


def unread(path: Path) -> list[str]:
    return [problem.file for problem in open_dump(path).problems if problem.is_unread]


# --- what lies within folders that a reader took -----------------------------------------------------

PLACES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "sglang passes": (sglang_passes, "TP0_PP0_Rank0_pid7"),
    "trtllm": (trtllm, "rank0"),
    "megatron": (megatron, "activations/iter_0000007"),
    "vllm": (vllm_logger, "step_3/model.mlp"),
    "msprobe": (msprobe, "step0/rank0"),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_tensor_file_that_a_reader_has_no_use_for_is_named(tmp_path: Path, name: str) -> None:
    make, place = PLACES[name]
    folder = make(tmp_path / "dump")
    pt(folder / place / "another.pth", tensor(A))
    assert unread(folder) == [f"{place}/another.pth"]


@pytest.mark.parametrize("name", PLACES)
def test_a_pipe_or_a_link_to_elsewhere_is_named(tmp_path: Path, name: str) -> None:
    make, place = PLACES[name]
    folder = make(tmp_path / "dump")
    os.mkfifo(folder / place / "pipe.pt")
    (folder / place / "link.pt").symlink_to(pt(tmp_path / "elsewhere.pt", tensor(A)))
    assert sorted(unread(folder)) == [f"{place}/link.pt", f"{place}/pipe.pt"]


def test_files_beside_those_of_the_dumper(tmp_path: Path) -> None:
    folder = sglang(tmp_path / "dump")
    pt(folder / "plain.pt", tensor(A))
    assert unread(folder) == ["plain.pt"]


def test_a_pass_that_is_gone_is_named(tmp_path: Path) -> None:
    folder = sglang_passes(tmp_path / "dump")
    (folder / "TP0_PP0_Rank0_pid7" / "Pass00000.pt").unlink()
    assert unread(folder) == ["Pass00000.pt"]


@pytest.mark.parametrize("gone", ["mp_rank_00_001.pth", "mp_rank_01_000.pth mp_rank_01_001.pth", "mp_rank_00_000.pth"])
def test_a_stage_that_is_gone_is_named(tmp_path: Path, gone: str) -> None:
    names = ["mp_rank_00_000.pth", "mp_rank_00_001.pth", "mp_rank_01_000.pth", "mp_rank_01_001.pth"]
    names = names if "01_" in gone else names[:2]
    for stage, name in enumerate(names):
        pt(tmp_path / "iter_0000001" / name, {"model_chunk0": {f"decoder.layers.{stage % 2}.mlp/output0": tensor(A)}})
    assert unread(tmp_path) == []
    for name in gone.split():
        (tmp_path / "iter_0000001" / name).unlink()
    is_whole = gone.startswith("mp_rank_01")  # one rank of two, of all stages: nothing says that there were two
    assert unread(tmp_path) == ([] if is_whole else [f"iter_0000001/{(set(names) - set(gone.split())).pop()}"])


def test_a_module_that_is_gone_from_one_step_is_named(tmp_path: Path) -> None:
    for step in range(2):
        for module in ("model.embed_tokens", "model.norm"):
            pt(tmp_path / f"step_{step}" / module / "outputs_cpu.pt", tensor(A))
        (tmp_path / f"step_{step}" / "module_calls.txt").write_text("model.embed_tokens\nmodel.norm\nmodel.silent\n")
    assert unread(tmp_path) == []
    shutil.rmtree(tmp_path / "step_1" / "model.norm")
    assert unread(tmp_path) == ["step_1/model.norm"]


# --- GGUF --------------------------------------------------------------------------------------------


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(path: Path, shape: tuple[int, ...], kind: int = 0, keys: bytes = b"") -> Path:
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, bool(keys)) + keys
    for name, sizes, code in (("a.weight", shape, kind), ("b.weight", (32, 4), 0)):
        head += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, code, 0)
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(4096))
    return path


@pytest.mark.parametrize(("kind", "code", "value"), [(5, "i", -32), (11, "q", -1), (10, "Q", 1 << 63)])
def test_an_impossible_alignment(tmp_path: Path, kind: int, code: str, value: int) -> None:
    keys = text("general.alignment") + struct.pack("<I", kind) + struct.pack(f"<{code}", value)
    with pytest.raises(BadFile, match="aligned"):
        open_dump(gguf(tmp_path / "x.gguf", (32, 4), keys=keys))


@pytest.mark.parametrize(("shape", "kind"), [((0, 1 << 63), 8), ((1 << 62, 0), 8), ((0, 1 << 63), 0)])
def test_a_shape_that_is_empty_and_too_large(tmp_path: Path, shape: tuple[int, ...], kind: int) -> None:
    dump = open_dump(gguf(tmp_path / "x.gguf", shape, kind))
    assert [entry.name for entry in dump.entries] == ["b.weight"]
    assert "impossible shape" in dump.problems[0].sentence


# --- flax --------------------------------------------------------------------------------------------


def packed(shape: list[int], dtype: str, data: bytes) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(1, msgspec.msgpack.encode((shape, dtype, data)))


def chunked(sizes: list[int], *chunks: msgspec.msgpack.Ext) -> dict[str, Any]:
    shape = {str(k): size for k, size in enumerate(sizes)}
    return {"__msgpack_chunked_array__": True, "shape": shape, "chunks": {str(k): c for k, c in enumerate(chunks)}}


def _deep() -> object:
    value: object = packed([2], "float32", bytes(8))
    for _ in range(150):
        value = {"d": value}
    return value


@pytest.mark.parametrize(
    "value",
    [
        packed([0, 1 << 62], "float32", b""),
        chunked([-2, -3], packed([6], "float32", bytes(24))),
        chunked([4], packed([2], "float32", bytes(8)), packed([2], "int32", bytes(8))),
        chunked([4], packed([2], "float32", bytes(8)), packed([2], "float64", bytes(16))),
        msgspec.msgpack.Ext(2, b"x"),
        _deep(),
    ],
)
def test_an_array_of_flax_that_cannot_be_is_left_out_and_named(tmp_path: Path, value: object) -> None:
    path = tmp_path / "x.msgpack"
    path.write_bytes(msgspec.msgpack.encode({"bad": value, "good": packed([2], "float32", bytes(8))}))
    dump = open_dump(path)
    assert [entry.read().shape for entry in dump.entries] == [(2,)]
    assert [problem.is_unread for problem in dump.problems] == [True]


# --- JSON --------------------------------------------------------------------------------------------


def padiff(folder: Path, node: dict[str, Any]) -> Path:
    (folder / "tensors").mkdir(parents=True)
    np.save(folder / "tensors" / "tensor_0.npy", A)
    good = {"route": "net.good", "fwd_outputs": [{"path": "tensor_0.npy"}]}
    (folder / "report.json").write_text(json.dumps({"tree": [{"route": "net", "children": [good, node]}]}))
    return folder


@pytest.mark.parametrize("more", [{"fwd_outputs": 5}, {"metas": {"fwd_step": 10**400}}, {"fwd_outputs": {"path": 1}}])
def test_numbers_where_padiff_has_lists(tmp_path: Path, more: dict[str, Any]) -> None:
    node = {"route": "net.bad", "fwd_outputs": [{"path": "tensor_0.npy"}]} | more
    assert "model.good" in [entry.layer for entry in open_dump(padiff(tmp_path / "dump", node)).entries]


def test_a_layer_that_padiff_lists_twice_was_called_twice(tmp_path: Path) -> None:
    dump = open_dump(padiff(tmp_path / "dump", {"route": "net.good", "fwd_outputs": [{"path": "tensor_0.npy"}]}))
    assert [(entry.layer, entry.call) for entry in dump.entries] == [("model.good", 1), ("model.good", 2)]


def test_a_tree_of_padiff_that_is_too_deep(tmp_path: Path) -> None:
    node: dict[str, Any] = {"route": "net.deep", "fwd_outputs": [{"path": "tensor_0.npy"}]}
    for _ in range(210):
        node = {"route": "net", "children": [node]}
    with pytest.raises(BadFile, match="too deep"):
        open_dump(padiff(tmp_path / "dump", node))


@pytest.mark.parametrize("more", [{"Max": 10**400}, {"shape": [10**200, 10**200]}, {"shape": [1 << 61, 1 << 61]}])
def test_statistics_that_no_number_holds(tmp_path: Path, more: dict[str, Any]) -> None:
    folder = msprobe(tmp_path / "dump", values=False)
    path = folder / "step0" / "rank0" / "dump.json"
    content = json.loads(path.read_text())
    next(iter(content["data"].values()))["output"][0] |= more
    path.write_text(json.dumps(content))
    dump = open_dump(folder)
    assert len(dump.entries) == 1
    assert dump.problems[0].is_unread


# --- pieces and logs ---------------------------------------------------------------------------------


def test_pieces_that_lie_over_one_another(tmp_path: Path) -> None:
    file = pt(tmp_path / "x.distcp", tensor(A[:2]))
    size = file.stat().st_size
    pieces = tuple(Piece((at, 0), (2, 6), file, 0, size) for at in (0, 1))
    with pytest.raises(BadFile, match="leave gaps"):
        PiecedTensor("w", Spec((4, 6), DTYPES["float32"]), pieces).read()


@pytest.mark.parametrize(
    "line",
    ["ggml_debug: " + " = (f) x(" * 200_000, "ggml_debug: a = (f) x(" * 100_000, "ggml_debug:" + " " * 2_000_000],
)
def test_a_line_of_a_log_is_tried_once(tmp_path: Path, line: str) -> None:
    """It is over at once; each mark, or each space, tried by itself would take minutes."""
    path = tmp_path / "run.log"
    path.write_text(f"{line}\n")
    assert list(llamacpp._parse_log(path)) == []
