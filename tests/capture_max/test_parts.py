"""The parts that need MAX but no compilation: names, buffers, patches that are put back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensordiff.dump import Dump
from tensordiff.dump.dtypes import DTYPES


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "bool", "int64", "uint32", "float8_e4m3fn"])
@pytest.mark.parametrize("shape", [(), (0, 4), (3,), (2, 3)])
def test_buffers_keep_every_bit(name: str, shape: tuple[int, ...]) -> None:
    from max.dtype import DType
    from max.graph import DeviceRef

    from tensordiff.capture.engines.max.buffers import from_buffer, to_buffer

    array = np.random.default_rng(0).integers(0, 2, shape).astype(DTYPES[name])
    back = from_buffer(to_buffer(array, shape, getattr(DType, name), DeviceRef.CPU()))
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, shape, array.tobytes())


def test_not_a_number_survives() -> None:
    from max.dtype import DType
    from max.graph import DeviceRef

    from tensordiff.capture.engines.max.buffers import from_buffer, to_buffer

    array = np.array([np.nan, np.inf, -np.inf, -0.0], DTYPES["bfloat16"])
    assert from_buffer(to_buffer(array, (4,), DType.bfloat16, DeviceRef.CPU())).tobytes() == array.tobytes()


def test_layers_are_called_by_their_path() -> None:
    from max.nn.layer import Layer

    from tensordiff.capture.engines.max.layers import Names

    class Leaf(Layer):  # type: ignore[misc]
        def __call__(self) -> None: ...

    class Root(Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            self.first, self.several = Leaf(), [Leaf(), Leaf()]
            self.by_name = {"a": Leaf()}
            self.again = self.first
            self.parent = self

    root, names = Root(), Names()
    names.add_tree(root)
    there = [root, root.first, root.several[1], root.by_name["a"], root.again]
    assert [names.of(each) for each in there] == [
        "model", "model.first", "model.several.1", "model.by_name.a", "model.first",
    ]  # fmt: skip
    assert [names.of(Leaf()), names.of(Leaf())] == ["Leaf", "Leaf2"]


def test_nothing_outlives_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    from max.engine import InferenceSession
    from max.experimental.nn import Module as NewModule
    from max.graph import Graph, ops
    from max.nn.comm.allreduce import Allreduce, Signals
    from max.nn.layer import Module
    from max.nn.linear import MLP, Linear
    from max.pipelines import PIPELINE_REGISTRY
    from max.pipelines.modeling import config_enums

    from tensordiff.capture.engines.max import patches
    from tensordiff.capture.engines.max.layers import Listener
    from tensordiff.capture.engines.max.model import patch_max
    from tensordiff.capture.engines.max.pipeline import ModelOptions

    owners = (Graph, InferenceSession, NewModule, Module, MLP, Linear, Allreduce, Signals, ops, ops.allreduce)

    def state() -> list[Any]:
        encodings = [sorted(each.supported_encodings) for each in PIPELINE_REGISTRY.all_architectures()]
        return [*(dict(vars(owner)) for owner in owners), dict(config_enums._SUPPORTED_DEVICES), encodings]

    before = state()
    from max.driver import DeviceSpec

    with pytest.raises(RuntimeError, match="midway"), patches.Patches() as held:
        patch_max(held, ModelOptions(Path(), "bfloat16", (DeviceSpec.cpu(),), 8))
        Listener().install(held)
        patches.on_compile(held, print)
        assert state() != before
        raise RuntimeError("midway")
    assert state() == before


@pytest.mark.parametrize(("tokens", "room"), [(1, 256), (256, 256), (257, 512), (600, 700)])
def test_room_for_tokens_comes_in_few_sizes(tokens: int, room: int) -> None:
    from tensordiff.capture.engines.max.checkpoint import Checkpoint

    assert Checkpoint(Path(), {"max_position_embeddings": 700}).length_for(tokens) == room


def _asked(model: Callable[[str], Path], ids: list[int] | None, **said: Any) -> Any:
    from tensordiff.capture.engines.hf.tokenizer import tokenizer
    from tensordiff.capture.process.tokens import choose_tokens
    from tensordiff.capture.settings import Settings

    facts: dict[str, object] = {} if ids is None else {"token_ids": ids, "prompt": "theirs"}
    reference = Dump(Path("reference"), "seen", (), ordered=True, facts=facts)
    return choose_tokens(Settings(**said), reference, tokenizer(model("llama")))


def test_the_reference_says_which_tokens(model: Callable[[str], Path]) -> None:
    found = _asked(model, [5, 6, 7])
    assert (found.ids, found.prompt) == ((5, 6, 7), "theirs")
    assert _asked(model, [5, 6], input_ids=(5, 6)).ids == (5, 6)


def test_other_tokens_than_the_reference_are_refused(model: Callable[[str], Path]) -> None:
    from tensordiff.errors import CaptureError

    with pytest.raises(CaptureError, match=r"--input-ids gives the tokens \[5\], the reference was run on \[5, 6\]"):
        _asked(model, [5, 6], input_ids=(5,))
    with pytest.raises(CaptureError, match="the prompt gives the tokens"):
        _asked(model, [5, 6], prompt="The meaning of life")


def test_a_prompt_without_tokens_is_refused(model: Callable[[str], Path]) -> None:
    from tensordiff.errors import CaptureError

    with pytest.raises(CaptureError, match="has no tokens"):
        _asked(model, None, prompt="")
    assert len(_asked(model, None).ids) > 5


def test_the_manifest_names_the_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    from max.driver import CPU

    from tensordiff.capture.engines.max import engine

    assert engine.gpu_facts([CPU()]) == {}
    monkeypatch.setattr(engine, "accelerator_api", lambda: "cuda")
    monkeypatch.setattr(engine, "accelerator_architecture_name", lambda: "sm_90")
    monkeypatch.setattr(engine, "driver_version", lambda: "570.86.15")
    gpus = [SimpleNamespace(is_host=False, id=1, model_name="NVIDIA H100 80GB HBM3")]
    assert engine.gpu_facts([CPU(), *gpus]) == {
        "accelerators": [
            {"device": "gpu:1", "name": "NVIDIA H100 80GB HBM3", "vendor": "NVIDIA", "architecture": "sm_90"}
        ],
        "accelerator_software": {"driver": "570.86.15"},
    }
