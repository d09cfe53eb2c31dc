"""The graphs that captures would run on GPUs, built for GPUs that are not there: names, devices, shards, pairs."""

from __future__ import annotations

import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensordiff.dump.dtypes import DTYPES
from tensordiff.dump.native.writer import DumpWriter
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests import processes
from tests.capture.models import run_here

Graph = dict[str, Any]
NVIDIA, AMD = ("cuda", "sm_90"), ("hip", "gfx942")
TOKENS = tuple(range(3, 12))
_SIZES = {"total_seq_len": len(TOKENS), "seq_len": len(TOKENS), "batch_size": 1, "input_row_offsets_len": 2}


@pytest.fixture(scope="module")
def graph(model: Callable[[str], Path]) -> Callable[..., Graph]:
    """The graph of a model on so many GPUs; a quarter of a minute each, built once."""

    @cache
    def built(name: str, machine: tuple[str, str], count: int) -> Graph:
        ran = build(model(name), machine, count)
        assert ran.returncode == 0, ran.stderr[-2000:]
        records = json.loads(ran.stdout.splitlines()[-1])
        return max(records, key=lambda record: len(record["taps"]))  # others are of what follows the model

    return built


def build(folder: Path, machine: tuple[str, str], count: int) -> Any:
    """Have MAX build a graph, in a process of its own."""
    device = "gpu:" + ",".join(map(str, range(count)))
    command = [sys.executable, "-m", "tests.capture_max.virtual_graph", *machine, str(count), device]
    return processes.run([*command, str(folder)])


CASES = [
    *itertools.product(("llama", "qwen3", "gemma3"), (NVIDIA, AMD), (1, 2)),
    *itertools.product(("bert",), (NVIDIA, AMD), (1,)),
]
"""All there are: MAX refuses bert on several GPUs."""


def test_what_max_does_not_spread_is_no_case(model: Callable[[str], Path]) -> None:
    ran = build(model("bert"), NVIDIA, 2)
    assert "Multiple GPU inference is currently not supported" in ran.stderr


@pytest.mark.parametrize(("name", "machine", "count"), CASES)
def test_what_is_seen_and_given_is_where_the_layer_computes(
    graph: Callable[..., Graph], name: str, machine: tuple[str, str], count: int
) -> None:
    found = graph(name, machine, count)
    floats = [tap for tap in found["taps"] if tap["dtype"].startswith(("float", "bfloat"))]
    outputs = [tap for tap in floats if "-output" in tap["name"]]
    assert len(outputs) > 10
    assert {tap["device"] for tap in outputs} == {f"gpu:{number}" for number in range(count)}
    taps = defaultdict(set)
    for tap in floats:
        taps[tap["name"], tap.get("number")].add(tap["device"])
    assert found["slots"]
    for slot in found["slots"]:
        assert {slot["device"]} == taps[slot["name"], slot.get("number")], slot


@pytest.mark.parametrize(("name", "machine", "count"), [case for case in CASES if case[2] > 1])
def test_an_input_that_is_given_reaches_every_gpu(
    graph: Callable[..., Graph], name: str, machine: tuple[str, str], count: int
) -> None:
    devices = defaultdict(set)
    for slot in graph(name, machine, count)["slots"]:
        devices[slot["name"]].add(slot["device"])
    alone = {name for name, where in devices.items() if len(where) < count}
    assert not alone and len(devices) > 10


@pytest.fixture
def session(graph: Callable[..., Graph], model: Callable[[str], Path], tmp_path: Path) -> Callable[..., Session]:
    """What MAX would write, with numbers of its own, beside what Hugging Face writes."""

    def opened(name: str, machine: tuple[str, str], count: int) -> Session:
        run_here(f"hf:{model(name)}", tmp_path / "hf", device="cpu", dtype="float32", input_ids=TOKENS)
        write(tmp_path / "max", graph(name, machine, count))
        return Session.open(Request(tmp_path / "hf", tmp_path / "max", learn=False))

    return opened


def write(folder: Path, found: Graph) -> None:
    """A dump of a graph's names and shapes."""
    random, shapes = np.random.default_rng(0), dict[str, list[Any]]()
    for tap in found["taps"]:
        shape = [_size(size) for size in tap["shape"]]
        before = shapes.get(tap["name"])
        if before is not None and tap.get("role") == "columns":
            shape = [*shape[:-1], before[0][-1] + shape[-1]]
        shapes[tap["name"]] = [shape, tap["dtype"], tap["class"], tap["call"]]
    with DumpWriter(folder, {"framework": "max", "token_ids": list(TOKENS)}) as writer:
        for name, (shape, dtype, module_class, call) in shapes.items():
            values = random.normal(size=shape).astype(DTYPES[dtype])
            writer.add(name, values, step=0, call=call, module_class=module_class)


def _size(size: str) -> int:
    """A number, the name of a dimension, or a sum of these: ``input_row_offsets_len + -1``."""
    terms = [term.strip() for term in size.split("+")]
    return sum(int(term) if term.lstrip("-").isdigit() else _SIZES.get(term, 1) for term in terms)


WHOLE = {
    "llama": ("layers.0", "layers.0.mlp", "layers.0.self_attn", "layers.0.input_layernorm", "norm", "embed_tokens",
              "layers.1.post_attention_layernorm", "lm_head"),
    "qwen3": ("layers.0", "layers.0.mlp", "layers.0.self_attn", "layers.0.input_layernorm", "norm", "embed_tokens",
              "layers.1.post_attention_layernorm", "lm_head"),
    "gemma3": ("layers.0", "layers.0.mlp", "layers.0.self_attn", "layers.0.input_layernorm", "norm",
               "layers.1.pre_feedforward_layernorm", "lm_head"),
    "bert": ("encoder.layer.0", "encoder.layer.0.attention.self", "encoder.layer.1.output", "embeddings"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "machine", "count"), CASES)
def test_whole_tensors_are_paired_with_whole_tensors(
    session: Callable[..., Session], name: str, machine: tuple[str, str], count: int
) -> None:
    pairs = session(name, machine, count).alignment.pairs
    outputs = {pair.name: pair for pair in pairs if not pair.reference.is_input}
    assert set(WHOLE[name]) <= set(outputs), sorted(outputs)
    for pair in pairs:
        assert pair.reference.spec.size == pair.candidate.spec.size, pair
        assert f"of{count}" not in pair.candidate.name, pair
    if count > 1:  # what the GPUs added up, and not one term of it
        inputs = {pair.name for pair in pairs if pair.reference.is_input}
        assert {"layers.0", "layers.1", "layers.0.mlp"} <= inputs
