"""Injection on GPUs: values of a dump go to the device of what they replace, whichever that is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensordiff.dump import open_dump
from tests.capture.models import Make, compared, injected_here, run_here, script
from tests.gpu.agreement import assert_same
from tests.gpu.conftest import Captures
from tests.gpu.programs import NET, spread_source


@pytest.fixture(scope="module")
def llama(tiny: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama's run on the CPU."""
    folder = tmp_path_factory.mktemp("llama") / "cpu"
    return run_here(f"hf:{tiny('llama')}", folder, device="cpu", steps=2).path


@pytest.mark.parametrize(
    ("at", "device"),
    [
        ("all", "cuda:0"), ("all", "device_map=auto"), ("once", "gpu:0,1"), ("leaves", "cuda:0"),
        ("leaves", "gpu:0,1"), ("model.model.layers.1.mlp", "device_map=auto"),
    ],
)  # fmt: skip
def test_a_run_on_its_own_inputs_gives_the_same(tiny: Make, llama: Path, tmp_path: Path, at: str, device: str) -> None:
    import torch

    if "," in device and torch.cuda.device_count() < 2:
        pytest.skip("two GPUs are needed")
    injected_here(f"hf:{tiny('llama')}", tmp_path / "injected", llama, at, device=device, steps=2)
    injected = open_dump(tmp_path / "injected")
    assert_same(open_dump(llama), injected)
    report = injected.facts["injection"]
    assert any(entry.origin and entry.origin.injected for entry in injected.entries), report


def test_a_range_heals(tiny: Make, llama: Path, tmp_path: Path) -> None:
    at = "model.model.layers.0..model.model.norm"
    injected_here(f"hf:{tiny('llama')}", tmp_path / "injected", llama, at, device="gpu", steps=2)
    assert_same(open_dump(llama), open_dump(tmp_path / "injected"))


def test_the_culprit_is_told_from_its_victims(captures: Captures, tmp_path: Path) -> None:
    source = f"py:{script(tmp_path, NET)}:"
    captures(f"{source}right", "cpu")
    captures(f"{source}wrong", "gpu")
    injected_here(f"{source}wrong", tmp_path / "injected", tmp_path / "cpu")
    session = compared(tmp_path / "cpu", tmp_path / "gpu", injected=tmp_path / "injected")
    outcome = session.outcome(session.rows())
    assert outcome.culprit is not None and outcome.culprit.pair.name == "scale"
    errors = {row.pair.name: row.injected.rel_l2 for row in outcome.rows if row.injected and row.pair.name != "model"}
    assert errors["scale"] == pytest.approx(0.5, rel=1e-3) and errors["last"] < 1e-5


def test_a_reference_of_more_bits_is_given_in_the_model_s_type(captures: Captures, tiny: Make, tmp_path: Path) -> None:
    source = f"hf:{tiny('llama')}"
    captures(source, "wide", device="cpu", dtype="float64")
    injected_here(source, tmp_path / "injected", tmp_path / "wide", device="gpu", dtype="float32")
    wide = {entry.name: entry.read() for entry in open_dump(tmp_path / "wide").entries}
    for entry in open_dump(tmp_path / "injected").entries:
        if entry.spec.dtype == np.float32:
            np.testing.assert_allclose(entry.read(), wide[entry.name].reshape(entry.spec.shape), 1e-3, 1e-5)


@pytest.mark.parametrize("function", ["two", "crossed", "offloaded"])
def test_into_a_model_that_is_spread(tiny: Make, tmp_path: Path, two_gpus: None, function: str) -> None:
    source = spread_source(tmp_path, tiny("llama"))
    run_here(f"{source}cpu", tmp_path / "cpu")
    injected_here(f"{source}{function}", tmp_path / "injected", tmp_path / "cpu")
    assert_same(open_dump(tmp_path / "cpu"), open_dump(tmp_path / "injected"))
