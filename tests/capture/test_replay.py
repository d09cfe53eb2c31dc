"""One layer alone, and a bundle that anyone can run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensordiff.capture.events import Event
from tensordiff.capture.job import Job
from tensordiff.capture.settings import Settings
from tensordiff.capture.source import parse_source
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError
from tests.capture.making import Make, run_here
from tests.making import SAMPLES

pytest.importorskip("torch")


def replay(source: str, dump: Path, layer: str, output: Path, bundle: Path | None = None, **more: Any) -> list[Event]:
    from importlib import import_module

    parsed = parse_source(source)
    assert parsed is not None
    told: list[Event] = []
    about = {"dump": str(dump), "layer": layer, "step": 0, "call": 1, "bundle": bundle and str(bundle), **more}
    job = Job(parsed, Settings(), str(output), "replay", about)
    import_module(f"tensordiff.capture.children.{parsed.kind}").run(job, told.append)
    return told


def same(reference: Path, other: Path) -> bool:
    ours = {entry.name: entry.read() for entry in open_dump(reference).entries}
    theirs = open_dump(other).entries
    return bool(theirs) and all(np.array_equal(ours[entry.name], entry.read()) for entry in theirs)


@pytest.mark.parametrize("layer", ["model.layers.1.self_attn", "layers.0.mlp", "model.layers.0", "model.norm", "model"])
def test_a_layer_alone_gives_what_it_gave(layer: str, tiny: Make, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    source = f"hf:{tiny('llama')}"
    run_here(source, tmp_path / "d")
    if layer == "model":
        layer = "model.model"
    replay(source, tmp_path / "d", layer, tmp_path / "r")
    assert same(tmp_path / "d", tmp_path / "r")


def test_another_model_s_layer_is_run_on_the_same_inputs(small: str, tmp_path: Path) -> None:
    run_here(small + "good", tmp_path / "d")
    replay(small + "bad", tmp_path / "d", "blocks.2", tmp_path / "r")
    replay(small + "bad", tmp_path / "d", "blocks.3", tmp_path / "s")
    assert not same(tmp_path / "d", tmp_path / "r")
    assert same(tmp_path / "d", tmp_path / "s")


def test_a_bundle_runs_with_torch_alone_and_says_the_same(small: str, tmp_path: Path) -> None:
    run_here(small + "good", tmp_path / "d")
    told = replay(small + "bad", tmp_path / "d", "blocks.2", tmp_path / "r", tmp_path / "bundle")
    assert any("runs with torch alone; it says the same" in str(event) for event in told)
    names = {path.name for path in (tmp_path / "bundle").iterdir()}
    assert names == {"repro.py", "layer.pt2", "inputs.pt", "expected.pt", "weights.pt"}
    block = (
        "import sys\nclass No:\n def find_spec(self, name, *a):\n"
        "  if name.partition('.')[0] in ('transformers', 'tensordiff', 'safetensors'): raise ImportError(name)\n"
        f"sys.meta_path.insert(0, No())\nsys.argv = ['repro.py', '--json']\n"
        f"import runpy\nrunpy.run_path({str(tmp_path / 'bundle' / 'repro.py')!r}, run_name='__main__')"
    )
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", block], capture_output=True, text=True, check=True)
    rel_l2, largest = json.loads(ran.stdout)["output"]
    ours = {e.name: e.read().astype(np.float64) for e in open_dump(tmp_path / "d").entries}["model.blocks.2-output"]
    theirs = {e.name: e.read().astype(np.float64) for e in open_dump(tmp_path / "r").entries}["model.blocks.2-output"]
    assert rel_l2 == pytest.approx(np.linalg.norm(theirs - ours) / np.linalg.norm(ours), rel=1e-4)
    assert largest == pytest.approx(np.abs(theirs - ours).max(), rel=1e-4)
    assert rel_l2 > 1e-3


def test_a_bundle_does_not_write_over_anything(small: str, tmp_path: Path) -> None:
    run_here(small + "good", tmp_path / "d")
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "precious").touch()
    with pytest.raises(Exception, match="is not empty; choose a new folder"):
        replay(small + "good", tmp_path / "d", "blocks.2", tmp_path / "r", tmp_path / "bundle")


def test_a_dump_that_does_not_say_how_a_layer_was_called_is_refused(small: str, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"does not say how .* was called; capture it with tensordiff capture"):
        replay(small + "good", SAMPLES / "candidate", "layers.0.mlp", tmp_path / "r")


@pytest.mark.parametrize(("layer", "why"), [("nowhere", "it has no such layer"), ("act", "4 layers are called so")])
def test_a_layer_that_is_not_one_is_refused(small: str, tmp_path: Path, layer: str, why: str) -> None:
    run_here(small + "good", tmp_path / "d")
    with pytest.raises(CaptureError, match=why):
        replay(small + "good", tmp_path / "d", layer, tmp_path / "r")
