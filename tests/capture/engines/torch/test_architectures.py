"""Tiny random models of many architectures: captured, compared with themselves, injected with their own inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensordiff.capture.events import Note
from tensordiff.capture.injection.passes import Layers, plan_passes
from tensordiff.dump import open_dump
from tests.capture.models import ARCHITECTURES, Make, Ran, compared, injected_here, run_here

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def captured(tiny: Make, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Every architecture, run once."""
    folder = tmp_path_factory.mktemp("captured")
    return {name: run_here(f"hf:{tiny(name)}", folder / name) for name in ARCHITECTURES}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_is_bit_equal_to_itself(name: str, captured: dict[str, Ran], tiny: Make, tmp_path: Path) -> None:
    again = run_here(f"hf:{tiny(name)}", tmp_path / "again")
    session = compared(captured[name].path, again.path)
    assert (session.alignment.coverage.share, session.alignment.order) == (1.0, "same")
    assert not session.alignment.reference_orphans
    rows = list(session.rows())
    assert len(rows) == again.done.entries > 60
    assert all(row.diff is not None and row.diff.max_abs == 0 for row in rows)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_right_inputs_change_no_bit(name: str, captured: dict[str, Ran], tiny: Make, tmp_path: Path) -> None:
    injected = injected_here(f"hf:{tiny(name)}", tmp_path / "injected", captured[name].path)
    before, after = (open_dump(path).entries for path in (captured[name].path, injected.path))
    assert [(e.name, e.step, e.call) for e in before] == [(e.name, e.step, e.call) for e in after]
    assert all(np.array_equal(a.read(), b.read(), equal_nan=False) for a, b in zip(before, after, strict=True))
    report = open_dump(injected.path).facts["injection"]
    assert isinstance(report, dict)
    layers = report["layers"]
    assert len(layers) > 15
    assert [name for name, layer in layers.items() if not layer["isolated"]] == []


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_size_is_foreseen(name: str, captured: dict[str, Ran]) -> None:
    note = next(e.text for e in captured[name].events if isinstance(e, Note) and e.text.startswith("about"))
    number, unit = note.split()[1:3]
    foreseen = float(number) * {"kB": 1e3, "MB": 1e6}[unit]
    assert 1 / 3 < foreseen / captured[name].done.facts["bytes"] < 3


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "whisper"])
def test_eager_and_sdpa_attention_agree(name: str, tiny: Make, tmp_path: Path) -> None:
    for kind in ("eager", "sdpa"):
        run_here(f"hf:{tiny(name)}", tmp_path / kind, attn_implementation=kind)
    session = compared(tmp_path / "eager", tmp_path / "sdpa")
    outcome = session.outcome(session.rows())
    assert outcome.culprit is None
    assert outcome.verdict in ("agrees", "drifts")


@pytest.mark.parametrize("name", ["llama", "t5", "whisper"])
def test_steps_go_on_with_the_cache(name: str, tiny: Make, tmp_path: Path) -> None:
    import torch

    ran = run_here(f"hf:{tiny(name)}", tmp_path / "d", steps=3)
    dump = open_dump(ran.path)
    assert {entry.step for entry in dump.entries} == {0, 1, 2}
    cached = [e for e in dump.entries if e.step == 2 and e.port.endswith("past_key_values_key") and e.is_input]
    assert cached
    logits = [e.read() for e in dump.entries if e.name == "model-output_logits"]
    assert len(logits) == 3
    ids = next(e.read() for e in dump.entries if e.step == 1 and e.name.endswith("input_ids") and e.layer == "model")
    assert ids.item() == int(torch.tensor(logits[0])[0, -1].argmax())


def test_steps_can_be_injected(tiny: Make, tmp_path: Path) -> None:
    source = f"hf:{tiny('llama')}"
    run_here(source, tmp_path / "d", steps=2)
    injected_here(source, tmp_path / "i", tmp_path / "d", steps=2)
    before, after = open_dump(tmp_path / "d").entries, open_dump(tmp_path / "i").entries
    assert all(np.array_equal(a.read(), b.read()) for a, b in zip(before, after, strict=True))
    layers = open_dump(tmp_path / "i").facts["injection"]["layers"]  # type: ignore[index]
    attention = layers["model.model.layers.0.self_attn step 1"]
    assert "input_past_key_values_key" in attention["injected"]
    assert "DynamicCache" in attention["kept"]["input_past_key_values"]


def test_layers_are_isolated_in_as_many_passes_as_they_are_deep(captured: dict[str, Ran]) -> None:
    layers = Layers.from_entries(open_dump(captured["llama"].path).entries, {})
    planned = plan_passes("all", layers)
    assert len(planned) == 5
    assert frozenset().union(*(one.inputs for one in planned)) == frozenset(layers.begun)
    for one in planned:
        assert not any(a != b and b.startswith(f"{a}.") for a in one.inputs for b in one.inputs)


def test_a_model_says_what_it_is(captured: dict[str, Ran]) -> None:
    dump = open_dump(captured["llama"].path)
    model, flags, versions = (dump.facts[key] for key in ("model", "flags", "versions"))
    assert isinstance(model, dict)
    assert isinstance(flags, dict)
    assert isinstance(versions, dict)
    assert model["class"] == "LlamaForCausalLM"
    assert str(model["path"]).endswith("modeling_llama.py")
    assert {"torch", "transformers", "python"} <= set(versions)
    assert flags["attention"] == "sdpa"
    assert flags["training"] is False
    assert dump.facts["token_ids"] == list(range(3, 12))
    assert str(dump.facts["weights_hash"]).startswith("sha256:")
    assert any(getattr(e, "text", "").startswith("LlamaForCausalLM, ") for e in captured["llama"].events)
