"""Planted bugs in graphs: wrong everywhere after the culprit as they run, and only there with right inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError
from tensordiff.search.oracle import search
from tensordiff.session.rerun.oracle import RerunOracle
from tests.capture.engines.onnx.graphs import exported_function, graph, plant, saved, tensors
from tests.capture.engines.torch.test_inject import wrong
from tests.capture.models import compared, injected_here, run_here
from tests.cli.command import process
from tests.making import write

pytest.importorskip("torch")


def near(reference: Path, other: Path) -> set[str]:
    """Layers whose outputs are further from the reference's than rounding."""
    session = compared(reference, other)
    rows = [row for row in session.rows() if not row.is_input and row.diff is not None and row.diff.rel_l2 > 1e-5]
    return {row.pair.candidate.layer for row in rows} - {"model"}


@pytest.fixture
def bad(small: str, tmp_path: Path) -> str:
    """The graph of a net with another activation; what the right net did lies in ``good``."""
    run_here(small + "good", tmp_path / "good")
    return f"onnx:{exported_function(small + 'bad', tmp_path / 'bad.onnx', dynamo=False, input_names=['x'])}"


AFTER = {"model.blocks.2.down", "model.blocks.3.up", "model.blocks.3.act", "model.blocks.3.down", "model.blocks.3",
         "model.last"}  # fmt: skip
HOLDERS = {"model.blocks.2.act", "model.blocks.2"}


def test_a_wrong_part_is_wrong_alone_when_all_get_right_inputs(bad: str, tmp_path: Path) -> None:
    run_here(bad, tmp_path / "plain", inputs=str(tmp_path / "good"))
    ran = injected_here(bad, tmp_path / "injected", tmp_path / "good")
    assert near(tmp_path / "good", tmp_path / "plain") == HOLDERS | AFTER
    assert near(tmp_path / "good", tmp_path / "injected") == HOLDERS
    names = [[entry.name for entry in open_dump(tmp_path / name).entries] for name in ("plain", "injected")]
    assert names[0] == names[1]
    assert ran.done.facts["notes"] == ["19 of 19 layers were given the reference's inputs"]


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("leaves", {"model.blocks.2.act"}),
        ("once", {"model.blocks.2.act"}),
        ("blocks.3", HOLDERS | {"model.blocks.2.down"}),
        ("..model.blocks.3", set()),
        ("model.blocks.3..model.last", HOLDERS | {"model.blocks.2.down"}),
        (r"blocks\.\d$", HOLDERS | {"model.blocks.2.down"}),
    ],
)
def test_where_right_inputs_go(bad: str, tmp_path: Path, at: str, expected: set[str]) -> None:
    injected_here(bad, tmp_path / "injected", tmp_path / "good", at)
    assert near(tmp_path / "good", tmp_path / "injected") == expected


def test_the_dump_says_what_every_layer_was_given(bad: str, tmp_path: Path) -> None:
    injected_here(bad, tmp_path / "injected", tmp_path / "good", "blocks.2")
    dump = open_dump(tmp_path / "injected")
    injection: Any = dump.facts["injection"]
    assert injection["layers"] == {
        "model.blocks.2": {"injected": {"input_0": "model.blocks.2-input_x"}, "kept": {}, "isolated": True}
    }
    assert (injection["at"], injection["passes"]) == ("blocks.2", 1)
    origins = {entry.name: entry.origin for entry in dump.entries}
    whole, part = origins["model.blocks.2-output"], origins["model.blocks.2.down-output"]
    assert whole is not None
    assert whole.injected == ("model.blocks.2-input_x",)
    assert part is None or part.injected is None


def test_what_could_not_be_put_in_is_said(bad: str, small: str, tmp_path: Path) -> None:
    run_here(small + "good", tmp_path / "part", layers=r"blocks\.0|^model$")
    injected_here(bad, tmp_path / "injected", tmp_path / "part")
    layers: Any = open_dump(tmp_path / "injected").facts["injection"]["layers"]  # type: ignore[index]
    assert layers["model.blocks.3"] == {
        "injected": {}, "kept": {"input_0": "no entry of the reference answers it"}, "isolated": False,
    }  # fmt: skip
    assert layers["model.blocks.1.up"]["injected"] == {"input_0": "model.blocks.0-output"}


def test_a_place_that_is_none_and_another_model_are_refused(bad: str, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="--inject-at nowhere: no layer matches"):
        injected_here(bad, tmp_path / "injected", tmp_path / "good", "nowhere")
    other = write(tmp_path / "other", {"elsewhere-output": np.ones((2, 2))})
    with pytest.raises(CaptureError, match="nothing in it answers a layer"):
        injected_here(bad, tmp_path / "injected", other, inputs=str(tmp_path / "good"))
    assert not (tmp_path / "injected").exists()


def test_a_value_under_a_second_name_is_not_put_in_for_others(tmp_path: Path) -> None:
    """The residual is read as the norm cast it; what is put in for the norm is not for the residual."""
    cast = helper.make_node("Cast", ["x"], ["c"], name="/block/norm/Cast", to=TensorProto.FLOAT)
    nodes = [
        cast, helper.make_node("Neg", ["c"], ["n"], name="/block/norm/Neg"),
        helper.make_node("Add", ["c", "n"], ["y"], name="/block/Add"),
    ]  # fmt: skip
    path = saved(graph(nodes, {"x": (TensorProto.FLOAT, [2])}, ["y"]), tmp_path / "g.onnx")
    x, other = np.array([1, 2], np.float32), np.array([10, 20], np.float32)
    reference = write(tmp_path / "ref", {"model.block.norm-input_0": other, "model.block.norm-output": -other})
    given = tensors(tmp_path / "x.safetensors", x=x)
    injected_here(f"onnx:{path}", tmp_path / "d", reference, "block.norm", inputs=str(given))
    entries = {entry.name: entry.read().tolist() for entry in open_dump(tmp_path / "d").entries}
    assert entries["model.block.norm-output"] == [-10, -20]
    assert entries["model-output_y"] == [1 - 10, 2 - 20]


def test_what_is_put_in_is_read_within_branches_too(tmp_path: Path) -> None:
    then = helper.make_graph(
        [helper.make_node("Neg", ["h"], ["t"])],
        "then",
        [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, [2])],
    )
    other = helper.make_graph(
        [helper.make_node("Abs", ["h"], ["o"])],
        "else",
        [],
        [helper.make_tensor_value_info("o", TensorProto.FLOAT, [2])],
    )
    nodes = [
        helper.make_node("Exp", ["x"], ["h"], name="/first/Exp"),
        helper.make_node("If", ["c"], ["y"], name="/second/If", then_branch=then, else_branch=other),
    ]
    inputs: Any = {"x": (TensorProto.FLOAT, [2]), "c": (TensorProto.BOOL, [])}
    path = saved(graph(nodes, inputs, ["y"]), tmp_path / "g.onnx")
    reference = write(tmp_path / "ref", {"model.second-input_h": np.array([5, 6], np.float32)})
    given = tensors(tmp_path / "x.safetensors", x=np.zeros(2, np.float32), c=np.array(True))
    injected_here(f"onnx:{path}", tmp_path / "d", reference, "second", inputs=str(given))
    entries = {entry.name: entry.read().tolist() for entry in open_dump(tmp_path / "d").entries}
    assert entries["model.second-output"] == [-5, -6]


def test_calls_of_one_module_are_given_each_its_own(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="/act/Neg"), helper.make_node("Exp", ["a"], ["b"], name="/Exp"),
        helper.make_node("Neg", ["b"], ["y"], name="/act/Neg_1"),
    ]  # fmt: skip
    path = saved(graph(nodes, {"x": (TensorProto.FLOAT, [2])}, ["y"]), tmp_path / "g.onnx")
    first, second = np.array([1, 2], np.float32), np.array([7, 8], np.float32)
    reference = write(tmp_path / "ref", {"model.act-input_0": first, "model.act(2)-input_0": second})
    given = tensors(tmp_path / "x.safetensors", x=np.zeros(2, np.float32))
    injected_here(f"onnx:{path}", tmp_path / "d", reference, "act", inputs=str(given))
    entries = {entry.name: entry.read().tolist() for entry in open_dump(tmp_path / "d").entries}
    assert (entries["model.act-output"], entries["model.act(2)-output"]) == ([-1, -2], [-7, -8])


def test_a_graph_s_own_values_put_in_change_nothing(small: str, tmp_path: Path) -> None:
    path = exported_function(small + "good", tmp_path / "net.onnx", dynamo=False, input_names=["x"])
    run_here(small + "good", tmp_path / "torch")
    run_here(f"onnx:{path}", tmp_path / "plain", inputs=str(tmp_path / "torch"))
    injected_here(f"onnx:{path}", tmp_path / "injected", tmp_path / "plain")
    assert wrong(tmp_path / "plain", tmp_path / "injected") == set()


# --- what stands on it


def test_a_layer_alone_is_replayed(bad: str, small: str, tmp_path: Path) -> None:
    said = process("replay", str(tmp_path / "good"), "blocks.2.act", "--source", bad)
    assert said.status == 1, said.err
    assert "first at blocks.2.act" in said.out
    said = process("replay", str(tmp_path / "good"), "blocks.3", "--source", bad)
    assert said.status == 0, said.err
    said = process("replay", str(tmp_path / "good"), "blocks.3", "--source", bad, "-o", str(tmp_path / "bundle"))
    assert "a layer of onnx: sources cannot be exported; leave -o out" in said.err


def test_a_search_by_rerun_names_the_layer(bad: str, tmp_path: Path) -> None:
    run_here(bad, tmp_path / "plain", inputs=str(tmp_path / "good"))
    session = compared(tmp_path / "good", tmp_path / "plain", only=r"blocks\.\d(\.act)?$|last$")
    oracle = RerunOracle.over(session, lambda run: run.result())
    states = list(search(oracle.verdicts().start(), oracle))
    assert states[-1].first_bad is not None
    assert states[-1].points[states[-1].first_bad].name.endswith("blocks.2.act")


def test_both_ways_at_once_name_the_culprit(small: str, tmp_path: Path) -> None:
    path = exported_function(small + "good", tmp_path / "net.onnx", dynamo=False, input_names=["x"])
    planted = plant(path, "/blocks.1/down/", tmp_path / "planted.onnx")
    run_here(small + "good", tmp_path / "good")
    given = str(tmp_path / "good")
    run_here(f"onnx:{planted}", tmp_path / "plain", inputs=given)
    injected_here(f"onnx:{planted}", tmp_path / "injected", tmp_path / "good")
    session = compared(tmp_path / "good", tmp_path / "plain", injected=tmp_path / "injected")
    culprit = session.outcome(list(session.rows())).culprit
    assert culprit is not None
    assert culprit.pair.candidate.layer == "model.blocks.1.down"
    assert "even when given the reference's inputs" in culprit.verdict.why
