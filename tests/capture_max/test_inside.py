"""Into a layer and around it: operations, one layer alone, one layer's injection, steps, the other module system."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensordiff.capture.settings import Injection
from tensordiff.dump import open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.dump.native.writer import DumpWriter
from tests import processes
from tests.capture_max.running import Sides, capture, compare

Both = Callable[[str, str], Sides]


def _values(folder: object, name: str) -> Array:
    found = next(entry for entry in open_dump(str(folder)).entries if entry.name == name)
    return np.asarray(found.read(), np.float64).squeeze()


def _distance(one: Array, other: Array) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def test_operations_of_a_layer(sides: Both) -> None:
    both = sides("llama", "float32")
    dump = open_dump(both.on_max("ops", ops="layers.0.mlp"))
    names = [entry.layer.rpartition("/")[2] for entry in dump.entries if "/" in entry.layer]
    assert names == ["op_00_matmul", "op_01_split", "op_01_split", "op_02_silu", "op_03_mul", "op_04_matmul"]
    gate, up = (_values(dump.path, f"model.layers.layers.0.mlp/op_01_split-output_{k}") for k in (0, 1))
    reference = "model.model.layers.0.mlp"
    assert _distance(gate, _values(both.reference, f"{reference}.gate_proj-output")) < 2e-6
    assert _distance(up, _values(both.reference, f"{reference}.up_proj-output")) < 2e-6


def test_a_layer_alone(sides: Both) -> None:
    both = sides("llama", "float32")
    layer = "model.layers.layers.1.mlp"
    alone = both.on_max("alone", task="replay", more={"layer": layer, "dump": str(both.reference)})
    assert {entry.layer.startswith(layer) for entry in open_dump(alone).entries} == {True}
    assert (
        _distance(_values(alone, f"{layer}-output"), _values(both.reference, "model.model.layers.1.mlp-output")) < 2e-6
    )


def test_a_layer_alone_from_the_command_line(sides: Both) -> None:
    both = sides("llama", "float32")
    words = ["replay", str(both.reference), "model.model.layers.1.mlp", "--source", f"max:{both.model}", "--json"]
    ran = processes.run([sys.executable, "-m", "tensordiff", *words])
    found = json.loads(ran.stdout)
    assert (ran.returncode, found["verdict"]) == (0, "agrees")
    assert [pair["name"] for pair in found["pairs"]] == ["layers.1.mlp"]


@pytest.mark.skipif("TENSORDIFF_MAX_SLOW" not in os.environ, reason="compiles for minutes; set TENSORDIFF_MAX_SLOW=1")
def test_attention_alone(sides: Both) -> None:
    both = sides("llama", "float32")
    layer = "model.layers.layers.1.self_attn"
    asked = {"layer": "model.model.layers.1.self_attn", "dump": str(both.reference)}  # as the reference calls it
    alone = both.on_max("attention", task="replay", more=asked)
    reference = _values(both.reference, "model.model.layers.1.self_attn-output_0")
    assert _distance(_values(alone, f"{layer}-output"), reference) < 2e-6


def test_what_is_put_in_reaches_that_layer_and_what_follows(sides: Both) -> None:
    both = sides("llama", "float32")
    with DumpWriter(both.folder / "other", {"token_ids": both.token_ids}) as writer:
        for entry in open_dump(both.reference).entries:
            is_it = entry.name == "model.model.layers.1.mlp-input_0"
            writer.add(entry.name, entry.read() + 1 if is_it else entry.read())
    inject = Injection(str(both.folder / "other"), at="layers.1.mlp")
    changed, plain = both.on_max("changed", inject=inject), both.candidate
    names = [entry.name for entry in open_dump(plain).entries if not entry.is_input]
    differ = [name for name in names if _distance(_values(changed, name), _values(plain, name)) > 1e-4]
    assert differ == names[names.index("model.layers.layers.1.mlp.down_proj-output") : -1]
    origins = [(entry.layer, entry.origin) for entry in open_dump(changed).entries if entry.is_input]
    assert {layer for layer, origin in origins if origin and origin.injected} == {"model.layers.layers.1.mlp"}


def test_a_range_is_given_its_inputs(sides: Both) -> None:
    both = sides("llama", "float32")
    inject = Injection(str(both.reference), at="layers.1.input_layernorm..layers.1.post_attention_layernorm")
    dump = open_dump(both.on_max("range", inject=inject))
    put = [entry.layer for entry in dump.entries if entry.is_input and entry.origin and entry.origin.injected]
    parts = ("input_layernorm", "self_attn", "self_attn.qkv_proj", "self_attn.o_proj", "post_attention_layernorm")
    assert put == [f"model.layers.layers.1.{part}" for part in parts]


def test_steps_follow_the_reference(sides: Both) -> None:
    both = sides("llama", "float32")
    said: dict[str, Any] = {"steps": 3, "input_ids": tuple(both.token_ids)}
    reference = capture(f"hf:{both.model}", both.folder / "hf-3", attn_implementation="eager", **said).path
    candidate = capture(f"max:{both.model}", both.folder / "max-3", **said).path
    compared = compare(reference, candidate)
    assert {row.pair.candidate.step for row in compared.outcome.rows} == {0, 1, 2}
    assert compared.outcome.verdict == "agrees"
    injected = capture(
        f"max:{both.model}", both.folder / "max-3-injected", **said, inject=Injection(str(reference))
    ).path
    assert compare(reference, candidate, injected).injected(above=2e-6) == set()


def test_other_module_system(sides: Both) -> None:
    both = sides("llama", "float32")
    candidate = both.on_max("v3", prefer_module_v3=True)
    injected = both.on_max("v3-injected", prefer_module_v3=True, inject=Injection(str(both.reference)))
    compared = compare(both.reference, candidate, injected)
    assert any(entry.layer == "model.language_model.layers.0.mlp" for entry in open_dump(candidate).entries)
    assert compared.outcome.verdict == "agrees"
    assert len(compared.outcome.rows) > 35
    assert compared.injected(above=2e-6) == set()
