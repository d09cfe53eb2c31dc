"""Planted bugs: wrong everywhere after the culprit as the model runs, and only there with right inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError
from tests.capture.models import Make, compared, injected_here, run_here, script
from tests.making import SAMPLES, numbers, write

pytest.importorskip("torch")

SAMPLE = f"""
import sys
sys.path.insert(0, {str(SAMPLES)!r})
import torch
from make_samples import TOKEN_IDS, build, plant

def good():
    return build(), (torch.tensor([TOKEN_IDS]),), {{}}

def bad():
    return plant(build()), (torch.tensor([TOKEN_IDS]),), {{}}
"""


def wrong(reference: Path, other: Path) -> set[str]:
    """Layers whose outputs are not those of the reference."""
    ours = {(e.name, e.step): e.read() for e in open_dump(reference).entries if not e.is_input}
    theirs = {(e.name, e.step): (e.layer, e.read()) for e in open_dump(other).entries if not e.is_input}
    return {layer for key, (layer, values) in theirs.items() if not np.array_equal(values, ours[key])}


def test_a_wrong_part_is_wrong_alone_when_all_get_right_inputs(small: str, tmp_path: Path) -> None:
    for name in ("good", "bad"):
        run_here(small + name, tmp_path / name)
    injected_here(small + "bad", tmp_path / "injected", tmp_path / "good")
    holders = {"model.blocks.2.act", "model.blocks.2", "model"}
    after = {"model.blocks.2.down", "model.blocks.3.up", "model.blocks.3.act", "model.blocks.3.down", "model.blocks.3",
             "model.last"}  # fmt: skip
    assert wrong(tmp_path / "good", tmp_path / "bad") == holders | after
    assert wrong(tmp_path / "good", tmp_path / "injected") == holders


def test_what_a_module_does_between_its_parts_is_found_too(small: str, tmp_path: Path) -> None:
    run_here(small + "good", tmp_path / "good")
    injected_here(small + "glue", tmp_path / "injected", tmp_path / "good")
    assert wrong(tmp_path / "good", tmp_path / "injected") == {"model.blocks.1", "model"}


def test_the_comparison_names_the_culprit_and_the_victims(small: str, tmp_path: Path) -> None:
    for name in ("good", "bad"):
        run_here(small + name, tmp_path / name)
    injected_here(small + "bad", tmp_path / "injected", tmp_path / "good")
    session = compared(tmp_path / "good", tmp_path / "bad", injected=tmp_path / "injected")
    rows = {(row.pair.candidate.layer, row.pair.reference.port): row for row in session.rows()}
    culprit = session.outcome(rows.values()).culprit
    assert culprit is not None
    assert culprit.pair.candidate.layer == "model.blocks.2.act"
    victim = rows["model.last", "output"]
    assert victim.diff is not None
    assert victim.injected is not None
    assert victim.diff.rel_l2 > 1e-3
    assert victim.injected.rel_l2 == 0


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("leaves", {"model.blocks.2.act"}),
        ("once", {"model.blocks.2.act"}),
        ("model.blocks.3", {"model.blocks.2.act", "model.blocks.2.down", "model.blocks.2"}),
        ("blocks.3", {"model.blocks.2.act", "model.blocks.2.down", "model.blocks.2"}),
        ("..model.blocks.3", set()),
        ("model.blocks.3..", set()),
        ("model.blocks.3..model.last", {"model.blocks.2.act", "model.blocks.2.down", "model.blocks.2"}),
        (r"blocks\.\d$", {"model.blocks.2.act", "model.blocks.2.down", "model.blocks.2"}),
    ],
)
def test_where_right_inputs_go(small: str, tmp_path: Path, at: str, expected: set[str]) -> None:
    run_here(small + "good", tmp_path / "good")
    injected_here(small + "bad", tmp_path / "injected", tmp_path / "good", at)
    found = wrong(tmp_path / "good", tmp_path / "injected") - {"model"}
    assert found == expected


def test_one_layer_alone_and_its_parts_on_their_own(small: str, tmp_path: Path) -> None:
    run_here(small + "good", tmp_path / "good")
    injected_here(small + "bad", tmp_path / "injected", tmp_path / "good", "blocks.2")
    entries = {e.name: e for e in open_dump(tmp_path / "injected").entries}
    whole, part = entries["model.blocks.2-output"].origin, entries["model.blocks.2.down-output"].origin
    assert whole is not None
    assert part is not None
    assert whole.injected == ("model.blocks.2-input_x",)
    assert part.injected is None


def test_a_place_that_is_none_is_refused(small: str, tmp_path: Path) -> None:
    run_here(small + "good", tmp_path / "good")
    with pytest.raises(CaptureError, match="--inject-at nowhere: no layer matches; give all"):
        injected_here(small + "good", tmp_path / "injected", tmp_path / "good", "nowhere")
    assert not (tmp_path / "injected").exists()


def test_a_dump_of_another_model_is_refused(small: str, tmp_path: Path) -> None:
    other = write(tmp_path / "other", {"somewhere.else-output": numbers(2, 2)})
    with pytest.raises(CaptureError, match="nothing in it answers a layer"):
        injected_here(small + "good", tmp_path / "injected", other)


def test_what_could_not_be_injected_is_said_and_not_measured(small: str, tmp_path: Path) -> None:
    run_here(small + "good", tmp_path / "good", layers=r"blocks\.0|^model$", no_inputs=True)
    injected_here(small + "bad", tmp_path / "injected", tmp_path / "good")
    dump = open_dump(tmp_path / "injected")
    layers = dump.facts["injection"]["layers"]  # type: ignore[index]
    assert layers["model.blocks.3"] == {
        "injected": {}, "kept": {"input_x": "no entry of the reference answers it"}, "isolated": False,
    }  # fmt: skip
    # The reference has no inputs, but what block 0 gave is what block 1 was given.
    assert layers["model.blocks.1"]["injected"] == {"input_x": "model.blocks.0-output"}
    for name in ("good", "bad"):
        run_here(small + name, tmp_path / f"whole {name}")
    session = compared(tmp_path / "whole good", tmp_path / "whole bad", injected=tmp_path / "injected")
    by_layer = {row.pair.candidate.layer: row for row in session.rows() if not row.is_input}
    assert by_layer["model.blocks.3"].injected is None
    assert by_layer["model.blocks.1"].injected is not None


def test_inputs_of_a_narrower_type_keep_the_layer_s_own(tmp_path: Path) -> None:
    file = script(
        tmp_path,
        "import torch\nfrom torch import nn\n"
        "def half():\n    torch.manual_seed(0)\n    return nn.Sequential(nn.Linear(4, 4)).bfloat16().double(), "
        "(torch.linspace(0, 1, 4).bfloat16().double(),)\n",
    )
    run_here(f"py:{file}:half", tmp_path / "a")
    injected_here(f"py:{file}:half", tmp_path / "b", tmp_path / "a")
    assert {e.spec.dtype.name for e in open_dump(tmp_path / "b").entries} == {"float64"}
    assert wrong(tmp_path / "a", tmp_path / "b") == set()


def test_the_inputs_of_another_engine_go_through_the_views_backwards(tmp_path: Path) -> None:
    """MAX knows no batch: its [tokens, hidden] become [1, tokens, hidden] again, and qkv is given to q, k and v."""
    pytest.importorskip("transformers")
    file = script(tmp_path, SAMPLE)
    injected_here(f"py:{file}:bad", tmp_path / "injected", SAMPLES / "max")
    dump = open_dump(tmp_path / "injected")
    layers = dump.facts["injection"]["layers"]  # type: ignore[index]
    isolated = {name for name, layer in layers.items() if layer["isolated"]}
    assert {f"model.model.layers.{k}.mlp" for k in range(2)} <= isolated
    assert layers["model.model.layers.1.mlp"]["injected"] == {"input_0": "model.layers.layers.1.mlp-input_0"}
    session = compared(SAMPLES / "reference", tmp_path / "injected")
    errors = {row.pair.candidate.layer: row.diff.rel_l2 for row in session.rows() if row.diff and not row.is_input}
    assert errors["model.model.layers.1.mlp.act_fn"] > 1e-2
    assert errors["model.model.layers.0.mlp"] < 1e-5
    assert errors["model.model.norm"] < 1e-5


ROUNDING = """
import torch, transformers
from collections import defaultdict
from dataclasses import dataclass, field
from torch import nn

class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]

def attention():
    torch.manual_seed(1)
    return Attends().eval(), (torch.randn(2, 5, 16),)

def mamba():
    torch.manual_seed(0)
    config = transformers.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=160, state_size=4)
    model = transformers.MambaForCausalLM(config).eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.normal_(0, 0.15)
    return model, (torch.arange(3, 12)[None],)

def linear():
    torch.manual_seed(0)
    config = transformers.Qwen3NextConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=160, head_dim=8, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8,
        linear_value_head_dim=8, layer_types=["linear_attention", "full_attention"], num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16)
    model = transformers.Qwen3NextForCausalLM(config).eval()
    output = yield model, (torch.arange(3, 12)[None],), {"use_cache": True}
    yield model, (torch.tensor([[5]]),), {"past_key_values": output.past_key_values, "use_cache": True}

@dataclass
class Held:
    x: torch.Tensor
    count: int = field(init=False, default=3)

class Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, held, more):
        return self.line(held.x) * held.count + more["y"] + len(more["nothing"])

class Holds(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.inner = nn.Linear(4, 4), Reads()

    def forward(self, x):
        x = self.first(x)
        more = defaultdict(list)
        more["y"] = x + 1
        return self.inner(Held(x), more)

def containers():
    torch.manual_seed(0)
    return Holds().eval(), (torch.randn(2, 4),)
"""


def changed(reference: Path, other: Path) -> list[str]:
    """Entries that are not bit for bit those of the reference."""
    theirs = {(e.name, e.step): e for e in open_dump(other).entries}
    ours = open_dump(reference).entries
    return [e.name for e in ours if e.read().tobytes() != theirs[e.name, e.step].read().tobytes()]


@pytest.mark.parametrize("name", ["attention", "mamba", "containers"])
def test_a_run_on_its_own_inputs_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    """The strides of what is replaced are kept, one tensor at three ports stays one, containers stay what they are."""
    pytest.importorskip("transformers")
    source = f"py:{script(tmp_path, ROUNDING)}:{name}"
    run_here(source, tmp_path / "a")
    injected_here(source, tmp_path / "b", tmp_path / "a")
    layers = open_dump(tmp_path / "b").facts["injection"]["layers"]  # type: ignore[index]
    assert all(layer["isolated"] for layer in layers.values())
    assert changed(tmp_path / "a", tmp_path / "b") == []


def test_the_states_of_a_linear_attention_are_written_and_injected(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    source = f"py:{script(tmp_path, ROUNDING)}:linear"
    run_here(source, tmp_path / "a")
    injected_here(source, tmp_path / "b", tmp_path / "a")
    assert changed(tmp_path / "a", tmp_path / "b") == []
    entries = {(e.name, e.step): e.read() for e in open_dump(tmp_path / "a").entries}
    layers = open_dump(tmp_path / "b").facts["injection"]["layers"]  # type: ignore[index]
    for name in ("conv_states", "recurrent_states"):
        port, layer = f"input_cache_params_{name}", "model.model.layers.0.linear_attn"
        left = entries[f"model-output_past_key_values_0_{name}", 0]
        assert np.array_equal(entries[f"{layer}-{port}", 1], left)
        assert port in layers[f"{layer} step 1"]["injected"]


def test_what_cross_attention_finds_in_its_cache_is_written_and_injected(tiny: Make, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    source = f"hf:{tiny('t5')}"
    run_here(source, tmp_path / "a", steps=2)
    injected_here(source, tmp_path / "b", tmp_path / "a", steps=2)
    assert changed(tmp_path / "a", tmp_path / "b") == []
    entries = {(e.name, e.step): e for e in open_dump(tmp_path / "a").entries}
    layer = "model.decoder.block.0.layer.1.EncDecAttention"
    cached = entries[f"{layer}-input_past_key_values_cross_key", 1].read()
    keys = entries[f"{layer}.k-output", 0].read()  # made in the first step, of what the encoder gave
    heads = keys.reshape(1, -1, *cached.shape[1::2]).transpose(0, 2, 1, 3)
    assert np.array_equal(cached, heads)
    assert np.array_equal(cached, entries["model-output_past_key_values_0_cross_key", 0].read())
    told = open_dump(tmp_path / "b").facts["injection"]["layers"][f"{layer} step 1"]  # type: ignore[index]
    assert "input_past_key_values_cross_key" in told["injected"]
