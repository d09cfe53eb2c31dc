"""Graphs for tests: exported from torch models, or made node by node, and bugs planted into them."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tensordiff.dump.dtypes import Array

OPSET = 20
IR = 9


def export(model: Any, args: tuple[Any, ...], path: Path, *, dynamo: bool, **more: Any) -> Path:
    """Export a torch model; what the exporters print and warn of is not the test's business."""
    import torch

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    options = {"external_data": False} | more
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(model, args, str(path), dynamo=dynamo, verbose=False, **options)
    return path


def exported_function(source: str, path: Path, *, dynamo: bool, **more: Any) -> Path:
    """Export what a ``py:`` source gives."""
    from tensordiff.capture.engines.py.engine import load_function
    from tensordiff.capture.job import parse_source

    parsed = parse_source(source)
    assert parsed is not None
    model, args, *_ = load_function(parsed)()
    return export(model, args, path, dynamo=dynamo, **more)


def graph(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[int | str | None] | None]],
    outputs: Iterable[str],
    weights: Mapping[str, Array] | None = None,
    **more: Any,
) -> ModelProto:
    """A model made node by node; inputs are given as type and shape."""
    declared = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    given = [onnx.ValueInfoProto(name=name) for name in outputs]
    held = [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()]
    made = helper.make_graph(nodes, "made", declared, given, held)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR, **more)


def saved(model: ModelProto, path: Path) -> Path:
    """A model in a file."""
    onnx.save(model, path)
    return path


def chain(path: Path, ops: Sequence[str], *, named: bool = True) -> Path:
    """A graph of single steps on ``x``, floats of shape [n, 4]."""
    values = ["x", *(f"v{k}" for k in range(len(ops) - 1)), "y"]
    nodes = [
        helper.make_node(op, [values[k]], [values[k + 1]], name=f"{op}_{k}" if named else "")
        for k, op in enumerate(ops)
    ]
    return saved(graph(nodes, {"x": (TensorProto.FLOAT, ["n", 4])}, ["y"]), path)


def plant(path: Path, node: str, to: Path, amount: float = 0.3) -> Path:
    """A copy of a model in which a weight that a node reads is another; the node is named by part of what it is."""
    model = onnx.load(path)
    weights = {each.name: each for each in model.graph.initializer}
    found = [each for each in model.graph.node if node in _told(each) and any(name in weights for name in each.input)]
    weight = weights[next(name for name in found[0].input if name in weights)]
    array = numpy_helper.to_array(weight).copy()
    array.reshape(-1)[: max(array.size // 8, 1)] += amount
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    return saved(model, to)


def _told(node: NodeProto) -> str:
    return "".join((node.name, *(each.value for each in node.metadata_props if each.key.endswith("name_scopes"))))


def tensors(path: Path, **arrays: Array) -> Path:
    """Inputs in a file."""
    from safetensors.numpy import save_file

    save_file(arrays, path)
    return path
