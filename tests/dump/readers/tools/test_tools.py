"""Dumps of other tools: layer, port, call, step and order as each means them; a sentence where they are damaged."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from tensordiff.align import align
from tensordiff.dump import Dump, open_dump
from tensordiff.errors import BadFile, DumpError
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.dump.readers.tools.stand_ins import STAND_INS, A, B, gguf, msprobe, pt, rank_files, sglang, tensor
from tests.verdicts import verdict_of

Place = tuple[str, str, int, int]


def made(tmp_path: Path, name: str) -> Dump:
    make, format_ = STAND_INS[name]
    dump = open_dump(make(tmp_path / name))
    assert (dump.format, dump.problems) == (format_, ())
    return dump


def places(dump: Dump) -> list[Place]:
    return [(e.layer, e.port, e.call, e.step) for e in dump.entries]


PLACES: dict[str, list[Place]] = {
    "debugger": [
        *((f"model.layers.{i}.mlp", port, 1, 0) for i in range(3) for port in ("input_0", "output")),
        ("model.head", "input_0", 1, 0), ("model.head", "output", 1, 0), ("model", "output_logits", 1, 0),
    ],
    "debugger_summary": [
        *((f"model.layers.{i}.mlp", port, 1, 0) for i in (0, 2) for port in ("input_0", "output")),
        ("model.head", "input_0", 1, 0), ("model.head", "output", 1, 0),
    ],
    "msprobe": [("mlp.act_fn", "output", 1, 0), ("mlp", "output", 1, 0)],
    "msprobe_statistics": [("mlp.act_fn", "output", 1, 0), ("mlp", "output", 1, 0)],
    "padiff": [("model.act", "output", 1, 0), ("model", "output", 1, 0)],
    "polygraphy": [("z", "output", 1, 0), ("a", "output", 1, 0), ("z", "output", 1, 1), ("a", "output", 1, 1)],
    "sglang": [("embed", "output", 1, 0), ("layers.0.q_proj", "output", 1, 0)],
    "sglang_ranks": [("embed", "output", 1, 0), ("layers.0.q_proj", "output", 1, 0)],
    "sglang_passes": [
        ("model.embed_tokens", "output", 1, 0), ("model.layers.0", "output", 1, 0), ("logits", "output", 1, 0),
        ("model.embed_tokens", "output", 1, 1), ("model.layers.0", "output", 1, 1),
    ],
    "megatron": [
        (f"layers.{i}.mlp", port, 1, 0) for i in (0, 1) for port in ("input_0", "output", "input_mask")
    ],
    "trtllm": [
        ("model.embed_tokens", "output", 1, 0), ("model.layers.0.mlp.gate_proj", "output", 1, 0),
        ("model.layers.0.mlp.act_fn", "input_0", 1, 0), ("model.layers.0.mlp.act_fn", "input_after_input", 1, 0),
        ("model.layers.0.mlp.act_fn", "output", 1, 0), ("model.layers.0.mlp.up_proj", "output", 1, 0),
        ("model.layers.0.mlp.down_proj", "output", 1, 0), ("lm_head", "output", 1, 0),
    ],
    "vllm_hidden": [
        ("token_ids", "output", 1, 0), ("hidden_states.0", "output", 1, 0), ("hidden_states.1", "output", 1, 0),
    ],
    "vllm_logger": [
        ("model.mlp", "input_0", 1, 0), ("model.mlp", "output", 1, 0), ("model.mlp", "output", 2, 0),
        ("model", "output", 1, 0),
    ],
    "flax": [("layers.0.mlp", "output", 1, 0), ("layers.0.mlp", "output", 2, 0)],
    "gguf": [("blk.0.ffn_up.weight", "output", 1, 0)],
    "llamacpp_log": [
        (layer, "output", 1, step) for step in (0, 1) for layer in ("embed_tokens", "layers.0.mlp.gate_proj")
    ],
    "llamacpp_logits": [("model", "input_input_ids", 1, 0), ("lm_head", "output", 1, 0)],
    "rank_files": [(name, "output", 1, 0) for name in ("x", "rows", "whole", "partial")],
}  # fmt: skip
UNORDERED = {"flax", "gguf"}


@pytest.mark.parametrize("name", STAND_INS)
def test_what_a_dump_says_of_its_tensors(tmp_path: Path, name: str) -> None:
    dump = made(tmp_path, name)
    assert places(dump) == PLACES[name]
    assert dump.ordered == (name not in UNORDERED)
    assert all(entry.read().size for entry in dump.entries)


@pytest.mark.parametrize("name", STAND_INS)
def test_a_dump_and_itself(tmp_path: Path, name: str) -> None:
    dump = made(tmp_path, name)
    assert verdict_of(dump.path, dump.path) == (("unknown", 2) if dump.statistics else ("agrees", 0))


@pytest.mark.parametrize("name", STAND_INS)
def test_damage_is_a_sentence(tmp_path: Path, name: str) -> None:
    """Bytes changed, files cut and emptied: whatever comes of it, nothing but our own errors."""
    source = STAND_INS[name][0](tmp_path / "source")
    files = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
    for seed in range(40):
        rng = random.Random(f"{name} {seed}")
        folder = shutil.copytree(source, tmp_path / "damaged")
        victim = folder / rng.choice(files)
        data = bytearray(victim.read_bytes())
        if seed % 4 == 0:
            del data[rng.randrange(len(data)) :]
        for _ in range(rng.randrange(1, 6)):
            if data:
                data[rng.randrange(min(len(data), 400 if seed % 2 else len(data)))] = rng.randrange(256)
        victim.write_bytes(data)
        try:
            for entry in open_dump(folder).entries:
                entry.read()
        except DumpError as error:
            assert str(error).isprintable()
        shutil.rmtree(folder)


def values(dump: Dump) -> dict[str, np.ndarray]:
    return {entry.layer: entry.read() for entry in dump.entries}


def test_ranks_are_put_together(tmp_path: Path) -> None:
    dump = made(tmp_path, "sglang_ranks")
    assert [entry.read().tobytes() for entry in dump.entries] == [A.tobytes(), B.tobytes()]


def test_shapes_and_values_prove_how_ranks_are_split(tmp_path: Path) -> None:
    found = values(made(tmp_path, "rank_files"))
    np.testing.assert_array_equal(found["rows"], A)
    np.testing.assert_allclose(found["partial"], B, rtol=1e-6)


def test_replicated_tensors_that_differ_are_a_finding(tmp_path: Path) -> None:
    folder = sglang(tmp_path / "d", ranks=2)
    (path,) = folder.glob("*rank=1*name=embed*")
    pt(path, {"value": tensor(A + 1), "meta": {"name": "embed", "dims": "t h"}})
    [problem] = open_dump(folder).problems
    assert problem.is_unread and "ranks 0 and 1 hold different values (by up to 1)" in problem.sentence
    assert verdict_of(folder, folder) == ("unknown", 2)


def test_a_part_that_only_one_rank_has_is_a_finding(tmp_path: Path) -> None:
    """Half of a tensor equals half of a tensor, and says nothing of the other half."""
    folder = sglang(tmp_path / "d", ranks=2)
    for path in folder.glob("*name=embed*"):
        renamed = path.with_name(path.name.replace("name=embed", "name=late"))
        rank = int("rank=1" in path.name)
        pt(renamed, {"value": tensor(A[:, 3 * rank : 3 * rank + 3]), "meta": {"name": "late", "dims": "t h[tp]"}})
    assert open_dump(folder).problems == ()
    next(folder.glob("*rank=1*name=late*")).unlink()
    [problem] = open_dump(folder).problems
    assert problem.is_unread and "1 of 2 ranks hold a part of it" in problem.sentence
    assert verdict_of(folder, folder) == ("unknown", 2)


def test_parts_that_nothing_proves_stay_apart(tmp_path: Path) -> None:
    folder = rank_files(tmp_path / "d")
    for rank in (0, 1):
        pt(folder / f"acts_rank{rank}.pt", {"x": tensor(A + rank)})
    dump = open_dump(folder)
    assert [entry.layer for entry in dump.entries] == ["x._ranks.0", "x._ranks.1"]
    assert [problem.is_unread for problem in dump.problems] == [True]


def test_folders_of_ranks_are_one_dump(tmp_path: Path) -> None:
    for rank in (0, 1):
        pt(tmp_path / f"rank{rank}" / "x.pt", tensor(A))
        pt(tmp_path / f"rank{rank}" / "y.pt", tensor(B[: rank + 1]))
    dump = open_dump(tmp_path)
    assert {name: array.shape for name, array in values(dump).items()} == {"x": (4, 6), "y": (3, 6)}
    assert dump.problems == ()


def test_joined_ranks_are_a_view(tmp_path: Path) -> None:
    dumps = open_dump(rank_files(tmp_path / "a")), open_dump(rank_files(tmp_path / "b"))
    views = {pair.name: pair.views for pair in align(*dumps).pairs}
    assert views == {
        "x": [], "whole": [], "rows": ["2 ranks, axis 0", "candidate 2 ranks, axis 0"],
        "partial": ["sum of 2 ranks", "candidate sum of 2 ranks"],
    }  # fmt: skip


def test_statistics_of_msprobe_that_are_null_are_counted(tmp_path: Path) -> None:
    folder = msprobe(tmp_path / "d", values=False)
    path = folder / "step0" / "rank0" / "dump.json"
    content = json.loads(path.read_text())
    content["data"]["Module.mlp.act_fn.SiLU.forward.0"]["output"][0]["Max"] = None
    path.write_text(json.dumps(content))
    dump = open_dump(folder)
    assert len(dump) == 1
    assert ["1 tensors have no statistics" in sentence for sentence in dump.unread] == [True]


def test_ranks_of_msprobe(tmp_path: Path) -> None:
    dump = open_dump(msprobe(tmp_path / "d", ranks=2))
    assert (len(dump), dump.problems) == (2, ())


def test_gradients_of_parameters(tmp_path: Path) -> None:
    """msprobe keeps them under a key of their own, by name, after the call that made them."""
    folder = msprobe(tmp_path / "d")
    at = folder / "step0" / "rank0"
    content = json.loads((at / "dump.json").read_text())
    leaf = dict(content["data"]["Module.mlp.TinyMLP.forward.0"]["output"][0])
    leaf["data_name"] = "Module.mlp.TinyMLP.parameters_grad.0.weight.pt"
    pt(at / "dump_tensor_data" / leaf["data_name"], tensor(A))
    content["data"]["Module.mlp.TinyMLP.parameters_grad.0"] = {"weight": [leaf]}
    (at / "dump.json").write_text(json.dumps(content))
    dump = open_dump(folder)
    assert dump.problems == ()
    assert places(dump)[-1] == ("mlp.weight.grad", "output", 1, 0)


def test_statistics_may_say_diverges(tmp_path: Path) -> None:
    folder, other = msprobe(tmp_path / "a", values=False), msprobe(tmp_path / "b", values=False)
    path = other / "step0" / "rank0" / "dump.json"
    path.write_text(path.read_text().replace(f'"Max": {float(B.max())}', '"Max": 77.0'))
    assert verdict_of(folder, other) == ("diverges", 1)


def test_statistics_beside_values(tmp_path: Path) -> None:
    """The values are seen through the same statistics: alike is not the same, unlike is."""
    statistics, whole = msprobe(tmp_path / "a", values=False), msprobe(tmp_path / "b")
    assert verdict_of(statistics, whole) == verdict_of(whole, statistics) == ("unknown", 2)
    (path,) = (whole / "step0" / "rank0" / "dump_tensor_data").glob("*SiLU*")
    pt(path, tensor(A * 1.5))
    assert verdict_of(statistics, whole) == ("diverges", 1)


def test_a_class_is_no_part_of_a_layer(tmp_path: Path) -> None:
    one, other = msprobe(tmp_path / "a"), msprobe(tmp_path / "b")
    at = other / "step0" / "rank0"
    for path in (at / "dump.json", at / "construct.json"):
        path.write_text(path.read_text().replace("SiLU", "GELU"))
    for path in list((at / "dump_tensor_data").iterdir()):
        path.rename(path.with_name(path.name.replace("SiLU", "GELU")))
    assert verdict_of(one, other) == ("agrees", 0)


def test_a_file_that_is_named_and_gone(tmp_path: Path) -> None:
    folder = msprobe(tmp_path / "d")
    next((folder / "step0" / "rank0" / "dump_tensor_data").iterdir()).unlink()
    pt(folder / "step0" / "rank0" / "dump_tensor_data" / "more.pt", tensor(A))
    sentences = [problem.sentence for problem in open_dump(folder).problems if problem.is_unread]
    assert ["not there" in sentence or "named nowhere" in sentence for sentence in sentences] == [True, True]


@pytest.mark.filterwarnings("ignore")
def test_a_distributed_checkpoint(tmp_path: Path) -> None:
    state = {"w": tensor(A), "deep": {"b": tensor(B).to(torch.bfloat16)}, "step": 3}
    dcp.save(state, checkpoint_id=str(tmp_path / "d"), no_dist=True)
    dump = open_dump(tmp_path / "d")
    assert (dump.format, dump.ordered, dump.problems) == ("torch-dcp", False, ())
    assert values(dump)["w"].tobytes() == A.tobytes()
    assert values(dump)["deep.b"].dtype.name == "bfloat16"
    (tmp_path / "d" / ".metadata").unlink()
    with pytest.raises(BadFile, match=r"no \.metadata"):
        open_dump(tmp_path / "d")


def two_runners(folder: Path) -> Path:
    make, _ = STAND_INS["polygraphy"]
    path = make(folder) / "out.json"
    content = json.loads(path.read_text())
    (_, iterations) = content["lst"][0]
    content["lst"] = [["onnxrt-runner-N0-11/17/26-16:00:00", iterations], ["trt-runner-N0", iterations[::-1]]]
    path.write_text(json.dumps(content))
    return path


def test_one_of_several_runners(tmp_path: Path) -> None:
    path = two_runners(tmp_path / "d")
    onnx, trt, whole = (
        open_dump(f"{path}::{name}") for name in ("onnxrt", "trt-runner-N0", "onnxrt-runner-N0-11/17/26-16:00:00")
    )
    assert values(onnx)["z"].tobytes() == values(whole)["z"].tobytes() == B.tobytes()
    assert values(trt)["z"].tobytes() == A.tobytes()
    assert (str(trt.path), trt.problems, len(trt)) == (f"{path}::trt-runner-N0", (), 4)
    assert open_dump(f"{path.parent}::trt").format == "polygraphy"


@pytest.mark.parametrize(("which", "why"), [("", "the outputs of 2 runners: "), ("::x", "no runner named 'x', only ")])
def test_a_runner_that_is_not_clear(tmp_path: Path, which: str, why: str) -> None:
    path = two_runners(tmp_path / "d")
    with pytest.raises(BadFile) as error:
        open_dump(f"{path}{which}")
    choices = "onnxrt-runner-N0-11/17/26-16:00:00, trt-runner-N0"
    assert f"holds {why}{choices}; name one as in {path}::onnxrt" in str(error.value)


def test_a_run_is_not_selected_where_there_is_one(tmp_path: Path) -> None:
    path = pt(tmp_path / "x.pt", {"a": tensor(A)})
    with pytest.raises(BadFile, match="is one run; open it without ::b"):
        open_dump(f"{path}::b")


def test_jax_names_in_an_npz(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"model/layers_1/mlp/__call__": A, "lm_head/__call__": B}
    np.savez(tmp_path / "x.npz", **arrays)
    assert places(open_dump(tmp_path / "x.npz")) == [
        ("model.layers.1.mlp", "output", 1, 0), ("lm_head", "output", 1, 0),
    ]  # fmt: skip


def block(code: int, rng: np.random.Generator) -> tuple[bytes, list[float]]:
    """A random block of a quantized type, and its values as ggml's own loops compute them."""

    def half(count: int = 1) -> np.ndarray:
        return rng.uniform(0.01, 0.1, count).astype(np.float16)

    def raw(count: int) -> np.ndarray:
        return rng.integers(0, 256, count).astype(np.uint8)

    d, m = half(), half()
    fd, fm = float(d[0]), float(m[0])
    if code in (2, 3):
        q = raw(16)
        low, high = [int(x) & 15 for x in q], [int(x) >> 4 for x in q]
        if code == 2:
            return d.tobytes() + q.tobytes(), [fd * (v - 8) for v in low + high]
        return d.tobytes() + m.tobytes() + q.tobytes(), [fd * v + fm for v in low + high]
    if code in (6, 7):
        q, bits = raw(16), raw(4)
        mask = int.from_bytes(bits.tobytes(), "little")
        low = [(int(q[j]) & 15) | (((mask >> j) & 1) << 4) for j in range(16)]
        high = [(int(q[j]) >> 4) | (((mask >> (j + 16)) & 1) << 4) for j in range(16)]
        if code == 6:
            return d.tobytes() + bits.tobytes() + q.tobytes(), [fd * (v - 16) for v in low + high]
        return d.tobytes() + m.tobytes() + bits.tobytes() + q.tobytes(), [fd * v + fm for v in low + high]
    if code == 8:
        q8 = raw(32).view(np.int8)
        return d.tobytes() + q8.tobytes(), [fd * int(v) for v in q8]
    if code in (12, 13):
        scales, high_bits, q = raw(12), raw(32) if code == 13 else np.zeros(32, np.uint8), raw(128)
        s = [int(x) for x in scales]
        pairs = [(s[j] & 63, s[j + 4] & 63) for j in range(4)]
        pairs += [((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4), (s[j + 4] >> 4) | ((s[j] >> 6) << 4)) for j in range(4, 8)]
        out = []
        for j in range(8):
            part = q[32 * (j // 2) : 32 * (j // 2) + 32]
            for i, byte in enumerate(part):
                v = (int(byte) >> 4 if j % 2 else int(byte) & 15) + (16 if (int(high_bits[i]) >> j) & 1 else 0)
                out.append(fd * pairs[j][0] * v - fm * pairs[j][1])
        body = scales.tobytes() + (high_bits.tobytes() if code == 13 else b"") + q.tobytes()
        return d.tobytes() + m.tobytes() + body, out
    if code == 14:
        ql, qh, sc = raw(128), raw(64), raw(16).view(np.int8)
        out = [0.0] * 256
        for n in (0, 1):
            for i in range(32):
                h, one, two = int(qh[32 * n + i]), int(ql[64 * n + i]), int(ql[64 * n + 32 + i])
                low = [one & 15, two & 15, one >> 4, two >> 4]
                quarters = [v | (((h >> (2 * k)) & 3) << 4) for k, v in enumerate(low)]
                for k, v in enumerate(quarters):
                    out[128 * n + 32 * k + i] = fd * int(sc[8 * n + 2 * k + i // 16]) * (v - 32)
        return ql.tobytes() + qh.tobytes() + sc.tobytes() + d.tobytes(), out
    if code == 10:
        sc, q = raw(16), raw(64)
        out = []
        for n in (0, 1):
            for k in range(4):
                for i in range(32):
                    scale = int(sc[8 * n + 2 * k + i // 16])
                    out.append(fd * (scale & 15) * ((int(q[32 * n + i]) >> (2 * k)) & 3) - fm * (scale >> 4))
        return sc.tobytes() + q.tobytes() + d.tobytes() + m.tobytes(), out
    signs, q, sc = raw(32), raw(64), raw(12)  # Q3_K
    nibbles = [int(sc[j]) & 15 if j < 8 else int(sc[j - 8]) >> 4 for j in range(16)]
    six = [nibbles[j] | (((int(sc[8 + j % 4]) >> (2 * (j // 4))) & 3) << 4) for j in range(16)]
    out = []
    for n in (0, 1):
        for k in range(4):
            for i in range(32):
                v = ((int(q[32 * n + i]) >> (2 * k)) & 3) - (0 if (int(signs[i]) >> (4 * n + k)) & 1 else 4)
                out.append(fd * (six[8 * n + 2 * k + i // 16] - 32) * v)
    return signs.tobytes() + q.tobytes() + sc.tobytes() + d.tobytes(), out


@pytest.mark.parametrize("code", [2, 3, 6, 7, 8, 10, 11, 12, 13, 14])
def test_quantized_blocks(tmp_path: Path, code: int) -> None:
    rng = np.random.default_rng(code)
    blocks = [block(code, rng) for _ in range(3)]
    expected = [value for _, part in blocks for value in part]
    folder = gguf(tmp_path / "d", code, b"".join(data for data, _ in blocks), len(expected))
    (found,) = open_dump(folder).entries
    assert found.spec.dtype.name == "float32"
    np.testing.assert_allclose(found.read().reshape(-1), expected, rtol=1e-5, atol=1e-6)


def test_a_gguf_type_that_is_not_read_is_named(tmp_path: Path) -> None:
    folder = gguf(tmp_path / "d", 16, bytes(66), 256)
    with pytest.raises(BadFile, match="no tensor"):
        open_dump(folder)


def test_both_sides_of_llama_cpp_in_one_folder(tmp_path: Path) -> None:
    """Its scripts write ``data/llamacpp-m.bin`` beside ``data/pytorch-m.bin``."""
    for side in ("llamacpp", "pytorch"):
        np.arange(8, dtype="<f4").tofile(tmp_path / f"{side}-m.bin")
        np.arange(3, dtype="<i4").tofile(tmp_path / f"{side}-m-tokens.bin")
    with pytest.raises(BadFile, match=r"holds the logits of 2 runs; name one of llamacpp-m\.bin, pytorch-m\.bin"):
        open_dump(tmp_path)
    session = Session.open(Request(tmp_path / "pytorch-m.bin", tmp_path / "llamacpp-m.bin"))
    assert session.outcome(session.rows()).verdict == "agrees"
