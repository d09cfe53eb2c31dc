"""Exported graphs against the models they were exported from, each captured by its own child process."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tensordiff.capture.events import Failed, Note, Phase, Progress
from tensordiff.capture.job import Job, Source
from tensordiff.capture.runner import Run
from tensordiff.capture.settings import Settings
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError
from tests import processes
from tests.capture.engines.onnx.graphs import chain, export, exported_function, graph, plant, saved, tensors
from tests.capture.models import SMALL, Make, Ran, compared, run_here, script
from tests.cli.command import Call, assert_one_sentence, process
from tests.cli.conftest import call as call
from tests.test_boundaries import BLOCK

pytest.importorskip("torch")

BOTH = pytest.mark.parametrize("dynamo", [False, True], ids=["traced", "dynamo"])
IDS = tuple(range(3, 12))
SHARED = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.shared, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2))

    def forward(self, x):
        h = torch.relu(self.shared(self.first(x)))
        for block in self.blocks:
            h = h + block(h)
        h = torch.tanh(self.shared(self.shared(h)))
        for block in self.blocks:
            h = h * block(h)
        return self.last(h), h.sum()

def net():
    torch.manual_seed(0)
    return Net().eval(), (torch.linspace(-1, 1, 12).reshape(3, 4),)
"""


def captured(path: Path, output: Path, *more: str) -> Path:
    """Capture a graph by the command, as a process of its own."""
    said = process("capture", f"onnx:{path}", "-o", str(output), *more)
    assert said.status == 0, said.err
    return output


def rows_of(reference: Path, candidate: Path, **more: Any) -> dict[str, Any]:
    """What compare says of two dumps."""
    session = compared(reference, candidate, **more)
    rows = list(session.rows())
    culprit = session.outcome(rows).culprit
    return {
        "coverage": session.alignment.coverage.candidate.share, "order": session.alignment.order,
        "verdicts": {row.verdict.name for row in rows}, "by": {row.pair.by for row in rows},
        "culprit": None if culprit is None else (culprit.pair.candidate.layer, culprit.pair.candidate.port),
    }  # fmt: skip


# --- models


@BOTH
def test_a_net_s_graph_has_the_net_s_names_and_order(small: str, tmp_path: Path, dynamo: bool) -> None:
    run_here(small + "good", tmp_path / "torch")
    path = exported_function(small + "good", tmp_path / "net.onnx", dynamo=dynamo, input_names=["x"])
    found = captured(path, tmp_path / "onnx", "--inputs", str(tmp_path / "torch"))
    theirs, ours = open_dump(tmp_path / "torch"), open_dump(found)
    hidden = {"model-output_logits", "model-output_pair_0", "model-output_pair_1"}  # a graph gives a list
    assert [e.name for e in theirs.entries if e.name not in hidden and not e.is_input] == [
        e.name for e in ours.entries if e.layer != "model" and not e.is_input
    ]
    said = rows_of(tmp_path / "torch", found)
    assert said["coverage"] > 0.8  # the graph's own outputs are a list, without names
    assert (said["order"], said["verdicts"], said["culprit"]) == ("same", {"agrees"}, None)


@BOTH
def test_a_module_that_is_called_again_is_counted(tmp_path: Path, dynamo: bool) -> None:
    source = f"py:{script(tmp_path, SHARED)}:net"
    run_here(source, tmp_path / "torch")
    path = exported_function(source, tmp_path / "net.onnx", dynamo=dynamo, input_names=["x"])
    run_here(f"onnx:{path}", tmp_path / "onnx", inputs=str(tmp_path / "torch"))
    names = [entry.name for entry in open_dump(tmp_path / "onnx").entries]
    assert "model.shared(3)-output" in names
    assert "model.blocks.1.0(2)-input_0" in names
    assert rows_of(tmp_path / "torch", tmp_path / "onnx") == {
        "coverage": 1.0, "order": "same", "verdicts": {"agrees"}, "by": {"name", "rule"}, "culprit": None,
    }  # fmt: skip


def test_a_llama_exported_whole_is_the_hub_s_and_a_wrong_weight_is_named(tiny: Make, tmp_path: Path) -> None:
    """Its shapes are dynamic: it is exported with nine tokens and run with five."""
    transformers = pytest.importorskip("transformers")
    import torch

    folder = tiny("llama")
    model = transformers.LlamaForCausalLM.from_pretrained(folder).eval()
    ids = torch.tensor([IDS])
    asked = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    free: dict[str, Any] = {"input_ids": {1: "n"}, "attention_mask": {1: "n"}, "use_cache": None}
    path = export(model, (), tmp_path / "llama.onnx", dynamo=True, kwargs=asked, dynamic_shapes=free)
    wrong = plant(path, "model.layers.1.mlp.up_proj", tmp_path / "wrong.onnx")
    run_here(f"hf:{folder}", tmp_path / "hf", input_ids=IDS[:5])
    right = captured(path, tmp_path / "onnx", "--input-ids", "3,4,5,6,7")
    said = rows_of(tmp_path / "hf", right)
    assert said["coverage"] > 0.8
    assert (said["order"], said["verdicts"]) == ("same", {"agrees"})
    said = rows_of(tmp_path / "hf", captured(wrong, tmp_path / "wrong", "--input-ids", "3,4,5,6,7"))
    assert said["culprit"] == ("model.model.layers.1.mlp.up_proj", "output")
    origin = next(e.origin for e in open_dump(right).entries if e.layer.endswith("layers.0.mlp"))
    assert origin is not None
    assert origin.module_class == "LlamaMLP"
    assert origin.source_file == "transformers/models/llama/modeling_llama.py"


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_traced_models_of_the_hub(tiny: Make, tmp_path: Path, name: str) -> None:
    """An encoder, and an encoder with a decoder whose layers lend each other their position bias."""
    pytest.importorskip("transformers")
    text = f"""
import torch, transformers
from torch import nn

class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = transformers.{"BertModel" if name == "bert" else "T5ForConditionalGeneration"}.from_pretrained(
            {str(tiny(name))!r}, attn_implementation="eager")

    def forward(self, input_ids, more):
        return self.net(input_ids, {"attention_mask=more" if name == "bert" else "decoder_input_ids=more"})[0]

def whole():
    ids = torch.tensor([{list(IDS)}])
    return Whole().eval(), (ids, {"torch.ones_like(ids)" if name == "bert" else "ids[:, :3]"})
"""
    source = f"py:{script(tmp_path, text)}:whole"
    names = ["input_ids", "attention_mask" if name == "bert" else "decoder_input_ids"]
    path = exported_function(source, tmp_path / "whole.onnx", dynamo=False, input_names=names)
    run_here(source, tmp_path / "torch")
    run_here(f"onnx:{path}", tmp_path / "onnx", inputs=str(tmp_path / "torch"))
    said = rows_of(tmp_path / "torch", tmp_path / "onnx")
    assert said["coverage"] > 0.8
    assert (said["order"], said["verdicts"]) == ("same", {"agrees"})


@pytest.mark.parametrize(
    ("planted", "culprit"), [("bad", ("model.blocks.2.act", "output")), ("glue", ("model.blocks.1", "output"))]
)
def test_a_graph_exported_from_a_wrong_net_is_found_out(
    small: str, tmp_path: Path, planted: str, culprit: tuple[str, str]
) -> None:
    run_here(small + "good", tmp_path / "torch")
    path = exported_function(small + planted, tmp_path / "net.onnx", dynamo=False, input_names=["x"])
    said = process("compare", str(tmp_path / "torch"), f"onnx:{path}", "--inputs", str(tmp_path / "torch"), "--json")
    assert said.status == 1, said.err
    found = json.loads(said.out)["culprit"]
    assert (found["candidate"], found["port"]) == (f"{culprit[0]}-{culprit[1]}", culprit[1])


# --- graphs that say nothing of modules


def test_a_graph_without_scopes_is_written_node_by_node(tmp_path: Path) -> None:
    path = chain(tmp_path / "g.onnx", ["Neg", "Exp", "Neg"])
    inputs = tensors(tmp_path / "x.safetensors", x=np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4))
    run_here(f"onnx:{path}", tmp_path / "d", inputs=str(inputs))
    dump = open_dump(tmp_path / "d")
    assert [entry.name for entry in dump.entries] == [
        "model-input_x", "Neg_0-input_0", "Neg_0-output", "Exp_1-input_0", "Exp_1-output", "Neg_2-input_0",
        "Neg_2-output", "model-output_y",
    ]  # fmt: skip
    x = dump.entries[0].read()
    assert np.allclose(dump.entries[-1].read(), -np.exp(-x))
    assert [entry.origin and entry.origin.module_class for entry in dump.entries][2] == "Neg"


def test_nodes_without_names_go_by_what_they_make_and_of_one_name_by_number(tmp_path: Path) -> None:
    steps = [("Neg", "x", "a", ""), ("Exp", "a", "b", "a"), ("Exp", "b", "y", "model")]
    nodes = [helper.make_node(op, [read], [made], name=name) for op, read, made, name in steps]
    path = saved(graph(nodes, {"x": (TensorProto.FLOAT, [2])}, ["y"]), tmp_path / "g.onnx")
    inputs = tensors(tmp_path / "x.safetensors", anything=np.zeros(2, np.float32))
    run_here(f"onnx:{path}", tmp_path / "d", inputs=str(inputs), no_inputs=True)
    assert [entry.name for entry in open_dump(tmp_path / "d").entries] == [
        "a-output", "a(2)-output", "model(2)-output", "model-output_y",
    ]  # fmt: skip


def test_branches_and_loops_are_one_node_and_what_they_read_is_known(tmp_path: Path) -> None:
    then = helper.make_graph([helper.make_node("Neg", ["h"], ["t"])], "then", [], [onnx.ValueInfoProto(name="t")])
    other = helper.make_graph([helper.make_node("Abs", ["h"], ["o"])], "else", [], [onnx.ValueInfoProto(name="o")])
    for branch in (then, other):
        branch.output[0].CopyFrom(helper.make_tensor_value_info(branch.output[0].name, TensorProto.FLOAT, None))
    nodes = [
        helper.make_node("Exp", ["x"], ["h"], name="/first/Exp"),
        helper.make_node("If", ["c"], ["y"], name="/second/If", then_branch=then, else_branch=other),
    ]
    inputs: Any = {"x": (TensorProto.FLOAT, [2]), "c": (TensorProto.BOOL, [])}
    path = saved(graph(nodes, inputs, ["y"]), tmp_path / "g.onnx")
    given = tensors(tmp_path / "x.safetensors", x=np.ones(2, np.float32), c=np.array(True))
    run_here(f"onnx:{path}", tmp_path / "d", inputs=str(given))
    entries = {entry.name: entry.read() for entry in open_dump(tmp_path / "d").entries}
    assert {"model.second-input_0", "model.second-input_1"} <= set(entries)
    assert np.allclose(entries["model.second-output"], -np.e)


def test_functions_are_inlined_and_strange_types_kept_or_said(tmp_path: Path) -> None:
    body = [helper.make_node("Cast", ["a"], ["b"], to=TensorProto.BFLOAT16), helper.make_node("Neg", ["a"], ["c"])]
    function = helper.make_function("own", "Both", ["a"], ["b", "c"], body, [helper.make_opsetid("", 20)])
    nodes = [
        helper.make_node("Both", ["x"], ["low", "neg"], domain="own", name="f"),
        helper.make_node("SequenceConstruct", ["x", "neg"], ["both"], name="seq"),
        helper.make_node("SequenceLength", ["both"], ["n"], name="len"),
    ]
    model = graph(nodes, {"x": (TensorProto.FLOAT, [3])}, ["low", "n"], functions=[function])
    model.opset_import.append(helper.make_opsetid("own", 1))
    path = saved(model, tmp_path / "g.onnx")
    x = np.array([1.5, -2.25, 3.0], np.float32)
    ran = run_here(f"onnx:{path}", tmp_path / "d", inputs=str(tensors(tmp_path / "x.safetensors", x=x)))
    low = next(e for e in open_dump(tmp_path / "d").entries if e.name == "model-output_low")
    assert low.spec.dtype.name == "bfloat16"
    assert np.array_equal(low.read().astype(np.float32), x)
    assert any("it is no tensor" in note for note in ran.done.facts["notes"])


def test_operators_of_onnxruntime_itself_are_run_and_their_types_known(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("BiasGelu", ["x", "b"], ["h"], domain="com.microsoft", name="/block/act/BiasGelu"),
        helper.make_node("Neg", ["h"], ["y"], name="/block/Neg"),
    ]
    model = graph(nodes, {"x": (TensorProto.FLOAT, ["n", 4])}, ["y"], {"b": np.ones(4, np.float32)})
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    path = saved(model, tmp_path / "g.onnx")
    x = tensors(tmp_path / "x.safetensors", x=np.ones((2, 4), np.float32))
    ran = run_here(f"onnx:{path}", tmp_path / "d", inputs=str(x))
    assert [e.name for e in open_dump(tmp_path / "d").entries if not e.is_input] == [
        "model.block.act-output", "model.block-output", "model-output_y",
    ]  # fmt: skip
    assert any("about 192 B to write" in event.text for event in ran.events if isinstance(event, Note))


# --- what is written


@pytest.fixture
def net(tmp_path: Path) -> str:
    """A graph of the small net, and its inputs beside it."""
    source = f"py:{script(tmp_path, SMALL)}:good"
    path = exported_function(source, tmp_path / "net.onnx", dynamo=False, input_names=["x"])
    tensors(tmp_path / "x.safetensors", x=np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))
    return f"onnx:{path}"


def written(net: str, folder: Path, **more: Any) -> Ran:
    return run_here(net, folder / "d", Settings(inputs=str(folder / "x.safetensors"), **more))


def layers(folder: Path) -> list[str]:
    return [entry.layer for entry in open_dump(folder / "d").entries]


def test_less_is_written_where_less_is_asked_for(net: str, tmp_path: Path) -> None:
    written(net, tmp_path, layers=r"blocks\.1\b", leaves=True, no_inputs=True)
    assert layers(tmp_path) == [f"model.blocks.1.{part}" for part in ("up", "act", "down")]
    ran = written(net, tmp_path, force=True, max_bytes=400)
    assert ran.done.facts["bytes"] <= 400
    assert "tensors were left out: --max-bytes 400 was reached" in ran.done.facts["notes"][0]
    part = [entry.name for entry in open_dump(tmp_path / "d").entries]
    written(net, tmp_path, force=True)
    whole = [entry.name for entry in open_dump(tmp_path / "d").entries]
    assert part == whole[: len(part)]  # nothing after the first that does not fit, though it were small
    assert 0 < len(part) < len(whole)


def test_much_is_computed_in_parts_and_written_as_if_at_once(
    net: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensordiff.capture.engines.onnx import session, writing

    written(net, tmp_path)
    once = [(entry.name, entry.read().tobytes()) for entry in open_dump(tmp_path / "d").entries]
    wanted: list[int] = []
    plain = session.GraphRunner.values

    def counted(self: Any, names: Any, *more: Any) -> Any:
        wanted.append(len(set(listed := list(names))))
        return plain(self, listed, *more)

    monkeypatch.setattr(writing, "PART", 400)
    monkeypatch.setattr(session.GraphRunner, "values", counted)
    ran = written(net, tmp_path, force=True)
    assert [(entry.name, entry.read().tobytes()) for entry in open_dump(tmp_path / "d").entries] == once
    assert len(wanted) > 5
    assert max(wanted) <= 4
    told = [event for event in ran.events if isinstance(event, Progress)]
    assert told[0].total == len(once)


def test_random_numbers_are_the_same_in_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensordiff.capture.engines.onnx import writing

    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="/first/Neg"),
        helper.make_node("RandomNormalLike", ["a"], ["r"], name="/noise/RandomNormalLike"),
        helper.make_node("Add", ["a", "r"], ["b"], name="/last/Add"),
        helper.make_node("Dropout", ["b"], ["y"], name="/last/Dropout"),
    ]
    path = saved(graph(nodes, {"x": (TensorProto.FLOAT, [4, 4])}, ["y"]), tmp_path / "g.onnx")
    inputs = str(tensors(tmp_path / "x.safetensors", x=np.ones((4, 4), np.float32)))
    run_here(f"onnx:{path}", tmp_path / "once", inputs=inputs, seed=5)
    run_here(f"onnx:{path}", tmp_path / "other", inputs=inputs, seed=6)
    monkeypatch.setattr(writing, "PART", 64)
    run_here(f"onnx:{path}", tmp_path / "parts", inputs=inputs, seed=5)
    values = [{e.name: e.read() for e in open_dump(tmp_path / name).entries} for name in ("once", "parts", "other")]
    assert all(np.array_equal(values[0][name], values[1][name]) for name in values[0])
    assert not np.array_equal(values[0]["model.noise-output"], values[2]["model.noise-output"])


def test_inside_a_layer(net: str, tmp_path: Path) -> None:
    ran = written(net, tmp_path, ops="blocks.2")
    names = list(dict.fromkeys(layers(tmp_path)))
    assert names == [
        f"model.blocks.2/op_{k:02d}_{op}" for k, op in enumerate(("Gemm", "Relu", "Gemm", "Mul", "Add"))
    ]  # fmt: skip
    assert any("5 operations in model.blocks.2" in event.text for event in ran.events if isinstance(event, Note))
    with pytest.raises(CaptureError, match=r"blocks\.9: there is no such layer; near it: model\.blocks"):
        written(net, tmp_path, ops="blocks.9", force=True)


def test_the_optimized_graph_gives_the_values_that_are_left(net: str, tmp_path: Path) -> None:
    written(net, tmp_path)
    (tmp_path / "d").rename(tmp_path / "plain")
    ran = written(net, tmp_path, optimized=True)
    found, plain = open_dump(tmp_path / "d"), open_dump(tmp_path / "plain")
    names = [entry.name for entry in plain.entries]
    assert [names.index(entry.name) for entry in found.entries] == sorted(names.index(e.name) for e in found.entries)
    assert "model.blocks.0.act-output" in {entry.name for entry in found.entries}
    assert 0 < len(found) < len(plain)
    assert f"{len(plain) - len(found)} tensors are not there in the optimized graph" in ran.done.facts["notes"]
    assert found.facts["flags"]["graph_optimizations"] == "extended"  # type: ignore[index]
    assert rows_of(tmp_path / "plain", tmp_path / "d")["verdicts"] == {"agrees"}
    with pytest.raises(CaptureError, match="--ops is not for onnx: sources"):
        written(net, tmp_path, optimized=True, ops="blocks.2")


def test_a_dump_says_how_it_was_made(net: str, tmp_path: Path) -> None:
    written(net, tmp_path, deterministic=True, seed=3)
    facts = open_dump(tmp_path / "d").facts
    assert facts["framework"] == "onnxruntime"
    assert facts["source"] == net
    assert facts["device"] == "cpu"
    assert facts["dtype"] == "float32"
    model, flags, versions = facts["model"], facts["flags"], facts["versions"]
    assert isinstance(model, dict)
    assert str(model["producer"]).startswith("pytorch 2.")
    assert model["opset"] == {"ai.onnx": 20}
    assert model["parameters"] > 100
    assert flags == {
        "providers": ["CPUExecutionProvider"], "provider_options": {}, "graph_optimizations": "off",
        "deterministic_compute": True,
    }  # fmt: skip
    assert isinstance(versions, dict)
    assert set(versions) == {"onnxruntime", "onnx", "python"}
    assert facts["settings"] == {"inputs": str(tmp_path / "x.safetensors"), "deterministic": True, "seed": 3}


def test_the_weights_hash_tells_weights_apart_wherever_they_lie(net: str, tmp_path: Path) -> None:
    from tensordiff.capture.engines.onnx.facts import weights_hash
    from tensordiff.capture.engines.onnx.model import load

    path = Path(net.removeprefix("onnx:"))
    model = onnx.load(path)
    onnx.save(model, tmp_path / "beside.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    same, other = load(str(tmp_path / "beside.onnx")), plant(path, "/last/", tmp_path / "other.onnx")
    assert weights_hash(load(str(path))) == weights_hash(same)
    assert weights_hash(load(str(path))) != weights_hash(load(str(other)))


# --- what goes wrong


def test_a_node_that_cannot_be_computed_leaves_what_came_before_it(call: Call, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["h"], name="/first/Exp"),
        helper.make_node("Add", ["h", "w"], ["y"], name="/second/Add"),
    ]
    weights = {"w": np.ones(7, np.float32)}
    path = saved(graph(nodes, {"x": (TensorProto.FLOAT, ["n"])}, ["y"], weights), tmp_path / "g.onnx")
    inputs = tensors(tmp_path / "x.safetensors", x=np.ones(3, np.float32))
    said = call("capture", f"onnx:{path}", "-o", tmp_path / "d", "--inputs", inputs)
    assert said.status == 2
    last = said.err.splitlines()[-1]
    assert "g.onnx: the Add node /second/Add could not be computed" in last
    assert "the layers it reached lie in" in last
    dump = open_dump(tmp_path / "d")
    assert dump.interrupted
    assert [entry.name for entry in dump.entries] == [
        "model-input_x", "model.first-input_0", "model.first-output", "model.second-input_0",
    ]  # fmt: skip
    assert "/second/Add" in str(dump.facts["error"])


def test_operators_without_a_kernel_are_one_sentence(tmp_path: Path) -> None:
    nodes = [helper.make_node("Frobnicate", ["x"], ["y"], domain="com.example", name="f")]
    model = graph(nodes, {"x": (TensorProto.FLOAT, [1])}, ["y"])
    inputs = str(tensors(tmp_path / "x.safetensors", x=np.ones(1, np.float32)))
    for declared in (False, True):
        if declared:
            model.opset_import.append(helper.make_opsetid("com.example", 1))
        path = saved(model, tmp_path / "g.onnx")
        with pytest.raises(CaptureError, match=r"g\.onnx: wants the operator com\.example\.Frobnicate, for which"):
            run_here(f"onnx:{path}", tmp_path / "d", inputs=inputs)
    assert not (tmp_path / "d").exists()


def test_a_capture_that_is_cancelled_leaves_a_flagged_dump(tmp_path: Path) -> None:
    """Minutes of products, of which the last is wanted."""
    values = ["x", *(f"v{k}" for k in range(3000))]
    nodes = [helper.make_node("MatMul", [read, "x"], [made], name=made) for read, made in pairwise(values)]
    path = saved(graph(nodes, {"x": (TensorProto.FLOAT, [1000, 1000])}, [values[-1]]), tmp_path / "g.onnx")
    inputs = tensors(tmp_path / "x.safetensors", x=np.eye(1000, dtype=np.float32))
    settings = Settings(inputs=str(inputs), layers=f"^{values[-1]}$", no_inputs=True)
    with Run(Job(Source("onnx", str(path)), settings, str(tmp_path / "d"))) as run:
        for event in run:
            if isinstance(event, Phase) and event.name == "running":
                run.cancel()
    assert isinstance(event, Failed)
    assert "cancelled while running; what was captured so far is in" in event.sentence
    assert open_dump(tmp_path / "d").interrupted


@pytest.mark.parametrize(
    ("option", "why"),
    [
        (("--dtype", "float16"), "--dtype is not for onnx: sources; that was decided when the graph was exported"),
        (("--num-hidden-layers", "1"), "--num-hidden-layers is not for onnx: sources"),
        (("--config", "a=1"), "--config is not for onnx: sources"),
        (("--attn-implementation", "eager"), "--attn-implementation is not for onnx: sources"),
        (("--steps", "2"), "--steps is not for onnx: sources; a graph is run once"),
        (("--image", "x.png"), "give its pixels with --inputs"),
        (("--device", "mps"), "onnxruntime is run on the cpu or one GPU with CUDA"),
        ((), "wants x (float32, [n, 4]), and it was not given; give --inputs FILE.safetensors with a tensor of that"),
    ],
)
def test_what_a_graph_cannot_be_asked_is_one_sentence(
    call: Call, tmp_path: Path, option: tuple[str, ...], why: str
) -> None:
    path = chain(tmp_path / "g.onnx", ["Neg"])
    inputs = tensors(tmp_path / "x.safetensors", x=np.ones((2, 4), np.float32))
    given = ("--inputs", inputs) if option else ()
    assert_one_sentence(call("capture", f"onnx:{path}", "-o", tmp_path / "d", *given, *option), why)


@pytest.mark.parametrize(("asked", "why"), [("toaster", "is not a device"), ("cuda", "this onnxruntime has no CUDA")])
def test_a_device_is_looked_at_before_anything_is_loaded(tmp_path: Path, asked: str, why: str) -> None:
    with pytest.raises(CaptureError, match=why):
        run_here(f"onnx:{chain(tmp_path / 'g.onnx', ['Neg'])}", tmp_path / "d", device=asked)  # and given no input


def test_an_interpreter_without_onnxruntime_says_how_to_get_it(call: Call, tmp_path: Path) -> None:
    import venv

    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / "bin" / "python"
    said = call("capture", f"onnx:{chain(tmp_path / 'g.onnx', ['Neg'])}", "-o", tmp_path / "d", "--python", python)
    assert_one_sentence(said, "has no numpy and no ml_dtypes and no msgspec and no onnx and no onnxruntime; install:")


def test_a_graph_runs_where_there_is_no_torch(tmp_path: Path) -> None:
    path = chain(tmp_path / "g.onnx", ["Neg", "Exp"])
    inputs = tensors(tmp_path / "x.safetensors", x=np.ones((2, 4), np.float32))
    run = (
        "from tensordiff.capture.engines.onnx.engine import run\n"
        "from tensordiff.capture.job import Job\n"
        "from tensordiff.capture.settings import Settings\n"
        "from tensordiff.capture.job import Source\n"
        f"job = Job(Source('onnx', {str(path)!r}), Settings(inputs={str(inputs)!r}), {str(tmp_path / 'd')!r})\n"
        "print(run(job, lambda event: None).entries)\n"
    )
    script = BLOCK.format(blocked=("torch", "transformers", "max", "safetensors")) + run
    done = processes.run([sys.executable, "-c", script])
    assert (done.returncode, done.stdout) == (0, "6\n"), done.stderr
