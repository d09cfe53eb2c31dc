"""Scopes, calls and ports, on graphs made node by node: what names are read from, and what is not guessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper

from tensordiff.capture.engines.onnx.graph import Graph, infer
from tensordiff.capture.engines.onnx.layers import find_calls, with_neighbours
from tensordiff.capture.engines.onnx.model import load
from tensordiff.capture.engines.onnx.ports import Ports
from tensordiff.capture.engines.onnx.scopes import Scope, scopes
from tensordiff.dump.dtypes import Array
from tests.capture.engines.onnx.graphs import graph, saved

Shapes = Mapping[str, tuple[int, ...]]
LINEAR = "torch.nn.modules.linear.Linear"


def node(op: str, reads: str, makes: str, name: str = "", **properties: str) -> NodeProto:
    """A node that reads and makes values named with spaces between."""
    made = helper.make_node(op, reads.split(), makes.split(), name=name)
    for key, value in properties.items():
        made.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=value)
    return made


def ports(
    folder: Path, nodes: Sequence[NodeProto], inputs: Shapes, outputs: str, weights: Mapping[str, Array] | None = None
) -> list[str]:
    """The entries that a graph of floats would give."""
    declared = {name: (TensorProto.FLOAT, shape) for name, shape in inputs.items()}
    model = load(str(saved(graph(nodes, declared, outputs.split(), weights), folder / "g.onnx")))
    made = Graph.of(model, infer(model, inputs))
    found = with_neighbours(made, scopes(model.nodes, model.weight_names))
    return [port.key.name for port in Ports(made, found).of(find_calls(made, found))]


# --- scopes


def only(made: NodeProto, *weights: str) -> Scope:
    return scopes([made], weights)[0]


def test_the_newer_exporter_s_properties_are_read() -> None:
    made = node(
        "MatMul", "x w", "y", "node_linear",
        name_scopes="['', 'model', 'model.layers.0', 'model.layers.0.up', 'linear']",
        class_hierarchy=f"['my.Net', 'my.Model', 'my.Layer', '{LINEAR}', 'aten.linear.default']",
        stack_trace='File "/home/me/net.py", line 7, in forward\n  x\n'
        '  File "/v/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 134, in forward\n  y',
    )  # fmt: skip
    assert only(made) == Scope(
        ("model", "model.layers.0", "model.layers.0.up"), ("my.Model", "my.Layer", LINEAR), "my.Net", ("", "", ""),
        "torch/nn/modules/linear.py", 134, "linear",
    )  # fmt: skip


@pytest.mark.parametrize(
    "spelled",
    ["__import__('os').system('touch ran')", "[1, 2]", "['a'", "{'a': 1}", "[" * 5000, "['a', 'b']" + " " * (1 << 16)],
)
def test_properties_that_are_something_else_say_nothing(spelled: str, tmp_path: Path) -> None:
    assert only(node("Neg", "x", "y", "n", name_scopes=spelled)).modules == ()
    assert not Path("ran").exists()


def test_names_with_slashes_are_read() -> None:
    names = ["/model/layers.0/mlp/up/MatMul", "bert/encoder/MatMul", "/Add", "plain", ""]
    found = scopes([node("Neg", "x", "y", name) for name in names], ())
    assert [scope.modules for scope in found] == [
        ("model", "model.layers.0", "model.layers.0.mlp", "model.layers.0.mlp.up"),
        ("bert", "bert.encoder"), (), (), (),
    ]  # fmt: skip
    assert [scope.is_known for scope in found] == [True, True, True, False, False]


def test_a_part_of_a_sequential_is_called_by_its_whole_name() -> None:
    assert only(node("Relu", "x", "y", "/net/blocks.0/blocks.0.1/Relu")).modules[-1] == "net.blocks.0.1"
    twice = "/a/a.0/Relu"  # a list called as what holds it: the weights tell
    assert only(node("Relu", "x", "y", twice)).modules == ("a", "a.0")
    assert only(node("Relu", "x", "y", twice), "a.a.0.weight").modules == ("a", "a.a.0")


def test_a_number_at_the_end_is_a_call_unless_a_weight_says_that_it_is_a_name() -> None:
    names = ["/fc/Gemm", "/fc_1/Gemm", "/fc_1/Relu", "/fc_2/Gemm"]
    again = scopes([node("Gemm", "x", "y", name) for name in names], ["fc.weight"])
    assert [scope.modules for scope in again] == [("fc",)] * 4
    assert [scope.marks for scope in again] == [("",), ("1",), ("1",), ("2",)]
    named = scopes([node("Gemm", "x", "y", name) for name in names], ["fc.weight", "fc_1.weight", "fc_2.weight"])
    assert [scope.modules for scope in named] == [("fc",), ("fc_1",), ("fc_1",), ("fc_2",)]


def test_the_older_exporter_s_trace_is_read() -> None:
    made = node("Neg", "x", "y", "/a/Neg")
    made.doc_string = "/v/site-packages/my/net.py(12): forward\n/v/site-packages/torch/x.py(3): call\n"
    assert only(made)[4:6] == ("my/net.py", 12)


# --- calls


def test_a_module_is_called_again_where_what_left_it_comes_back(tmp_path: Path) -> None:
    nodes = [
        node("Neg", "x", "a", "/act/Neg"), node("Exp", "a", "b", "/Exp"), node("Neg", "b", "y", "/act/Neg_1"),
    ]  # fmt: skip
    found = ports(tmp_path, nodes, {"x": (2,)}, "y")
    assert found[1:-1] == ["model.act-input_0", "model.act-output", "model.act(2)-input_0", "model.act(2)-output"]


def test_lengths_that_go_round_are_no_call(tmp_path: Path) -> None:
    """An exporter keeps one of two shapes that are alike, wherever it finds the first."""
    nodes = [
        node("Shape", "x", "s", "/a/Shape"), node("Neg", "s", "t", "/b/Neg"), node("Neg", "t", "u", "/b/Neg_1"),
        node("Exp", "x", "h", "/b/Exp"), node("Reshape", "h u", "y", "/a/Reshape"),
    ]  # fmt: skip
    assert ports(tmp_path, nodes, {"x": (2,)}, "y") == [
        "model-input_x", "model.b-input_0", "model.b-output", "model.a-input_0", "model.a-output", "model-output_y",
    ]  # fmt: skip


def test_a_layer_of_torch_reads_its_weight_once_a_call(tmp_path: Path) -> None:
    said = {"name_scopes": "['', 'fc', 'linear']", "class_hierarchy": f"['Net', '{LINEAR}', 'aten.linear']"}
    nodes = [node("MatMul", "x w", "a", "n0", **said), node("MatMul", "a w", "y", "n1", **said)]
    weights = {"w": np.eye(2, dtype=np.float32)}
    names = ports(tmp_path, nodes, {"x": (2, 2)}, "y", weights)
    assert [name for name in names if name.endswith("-output")] == ["model.fc-output", "model.fc(2)-output"]
    loop = {**said, "class_hierarchy": "['Net', 'my.Cell', 'aten.linear']"}
    nodes = [node("MatMul", "x w", "a", "n0", **loop), node("MatMul", "a w", "y", "n1", **loop)]
    names = ports(tmp_path, nodes, {"x": (2, 2)}, "y", weights)
    assert [name for name in names if name.endswith("-output")] == ["model.fc-output"]


def test_a_node_that_says_nothing_lies_where_its_neighbours_do(tmp_path: Path) -> None:
    nodes = [node("Neg", "x", "a", "/m/Neg"), node("Exp", "a", "b", "put_in_later"), node("Neg", "b", "y", "/m/Neg_1")]
    names = ports(tmp_path, nodes, {"x": (2,)}, "y")
    assert names == ["model-input_x", "model.m-input_0", "model.m-output", "model-output_y"]


# --- ports


def test_a_cast_to_the_same_type_is_the_same_value(tmp_path: Path) -> None:
    """A residual that is added as its norm cast it is not what the norm gives."""
    cast = helper.make_node("Cast", ["x"], ["c"], name="/norm/Cast", to=TensorProto.FLOAT)
    nodes = [cast, node("Neg", "c", "n", "/norm/Neg"), node("Add", "c n", "y", "/Add")]
    assert ports(tmp_path, nodes, {"x": (2,)}, "y") == [
        "model-input_x", "model.norm-input_0", "model.norm-output", "model-output_y",
    ]  # fmt: skip


def test_inputs_of_one_shape_are_called_after_their_values(tmp_path: Path) -> None:
    nodes = [node("Add", "x y", "h", "/m/Add"), node("MatMul", "h z", "o", "/m/MatMul")]
    found = ports(tmp_path, nodes, {"x": (2, 3), "y": (2, 3), "z": (3, 2)}, "o")
    assert [name for name in found if name.startswith("model.m-input")] == [
        "model.m-input_x", "model.m-input_y", "model.m-input_2",
    ]  # fmt: skip


def test_outputs_that_are_made_of_each_other_are_not_numbered(tmp_path: Path) -> None:
    apart = [node("Cos", "x", "c", "/m/Cos"), node("Sin", "x", "s", "/m/Sin"), node("Add", "c s", "y", "/Add")]
    names = ports(tmp_path, apart, {"x": (2,)}, "y")
    assert [name for name in names if name.startswith("model.m-output")] == ["model.m-output_0", "model.m-output_1"]
    within = [node("Cos", "x", "c", "/m/Cos"), node("Sin", "c", "s", "/m/Sin"), node("Add", "c s", "y", "/Add")]
    names = ports(tmp_path, within, {"x": (2,)}, "y")
    assert [name for name in names if name.startswith("model.m-output")] == ["model.m-output_c", "model.m-output_s"]


def test_what_a_layer_lends_to_its_like_is_no_output(tmp_path: Path) -> None:
    nodes = [
        node("Exp", "p", "e", "/layers.0/Exp"), node("Mul", "x e", "a", "/layers.0/Mul"),
        node("Mul", "a e", "y", "/layers.1/Mul"),
    ]  # fmt: skip
    names = ports(tmp_path, nodes, {"x": (2, 3), "p": (2, 1)}, "y")
    assert [name for name in names if name.startswith("model.layers.0-output")] == ["model.layers.0-output"]


def test_what_only_the_graph_gives_is_called_as_it_is_there(tmp_path: Path) -> None:
    nodes = [
        node("Exp", "x", "present.3.key", "/attn/Exp"), node("Neg", "present.3.key", "h", "/attn/Neg"),
        node("Neg", "h", "logits", "/head/Neg"),
    ]  # fmt: skip
    names = ports(tmp_path, nodes, {"x": (2,)}, "logits present.3.key")
    assert [name for name in names if "output" in name] == [
        "model.attn-output", "model.attn-output_past_key_values_3_key", "model.head-output", "model-output_logits",
        "model-output_past_key_values_3_key",
    ]  # fmt: skip


def test_names_that_an_exporter_made_up_are_positions(tmp_path: Path) -> None:
    nodes = [node("Exp", "x", "12", "/a/Exp"), node("Neg", "12", "onnx::Neg_3", "/b/Neg")]
    assert ports(tmp_path, nodes, {"x": (2,)}, "12 onnx::Neg_3")[-2:] == ["model-output_0", "model-output_1"]


def test_no_two_entries_have_one_name(tmp_path: Path) -> None:
    nodes = [
        node("Neg", "x", "a/b", "/m/Neg"),
        node("Exp", "a/b", "a_b", "/m/Exp"),
        node("Add", "a/b a_b", "y", "/Add"),
    ]
    names = ports(tmp_path, nodes, {"x": (2,)}, "y")
    assert len(names) == len(set(names))


def test_weights_and_what_is_made_of_them_alone_are_no_inputs(tmp_path: Path) -> None:
    nodes = [node("Transpose", "w", "wt", "Transpose_of_w"), node("MatMul", "x wt", "y", "/fc/MatMul")]
    names = ports(tmp_path, nodes, {"x": (2, 2)}, "y", {"w": np.eye(2, dtype=np.float32)})
    assert names == ["model-input_x", "model.fc-input_0", "model.fc-output", "model-output_y"]


# --- layers by name
