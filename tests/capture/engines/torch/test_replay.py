"""One layer alone, and a bundle that anyone can run."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensordiff.capture.events import Event, Note
from tensordiff.capture.job import Job, parse_source
from tensordiff.capture.settings import Settings
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError, WriteError
from tests import processes
from tests.capture.models import Make, run_here, script
from tests.making import SAMPLES

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from tensordiff.capture.engines.torch.replay.arguments import RebuiltCall  # noqa: E402
from tensordiff.capture.engines.torch.replay.bundle import Repro, write_bundle  # noqa: E402


def replay(source: str, dump: Path, layer: str, output: Path, bundle: Path | None = None, **more: Any) -> list[Event]:
    from importlib import import_module

    parsed = parse_source(source)
    assert parsed is not None
    told: list[Event] = []
    about = {"dump": str(dump), "layer": layer, "step": 0, "call": 1, "bundle": bundle and str(bundle), **more}
    job = Job(parsed, Settings(), str(output), "replay", about)
    import_module(f"tensordiff.capture.engines.{parsed.kind}.engine").run(job, told.append)
    return told


def repro(*bundles: Path) -> list[dict[str, Any]]:
    """What the scripts of bundles say where torch is there and nothing else."""
    block = (
        "import sys\nclass No:\n def find_spec(self, name, *a):\n"
        "  if name.partition('.')[0] in ('transformers', 'tensordiff', 'safetensors'): raise ImportError(name)\n"
        "sys.meta_path.insert(0, No())\nscripts = sys.argv[1:]\nsys.argv = ['repro.py', '--json']\n"
        "import runpy\nfor script in scripts: runpy.run_path(script, run_name='__main__')"
    )
    scripts = [bundle / "repro.py" for bundle in bundles]
    ran = processes.run([sys.executable, "-W", "ignore", "-c", block, *scripts], check=True)
    return [dict(json.loads(line)) for line in ran.stdout.splitlines()]


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


def test_a_bundle_does_not_write_over_anything(small: str, tmp_path: Path) -> None:
    run_here(small + "good", tmp_path / "d")
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "precious").touch()
    with pytest.raises(Exception, match="is not empty; choose a new folder"):
        replay(small + "good", tmp_path / "d", "blocks.2", tmp_path / "r", tmp_path / "bundle")


@pytest.mark.parametrize("is_new", [True, False])
def test_a_bundle_that_cannot_be_written_leaves_nothing(small: str, tmp_path: Path, is_new: bool) -> None:
    run_here(small + "good", tmp_path / "d")
    bundle = tmp_path / "bundle"
    if not is_new:
        bundle.mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))  # the dump is smaller, torch's files are larger
    try:
        with pytest.raises(WriteError, match=r"bundle/\w+\.pt: cannot be written \(file too large\)"):
            write_bundle(bundle, *_layer())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert bundle.exists() is not is_new
    assert is_new or list(bundle.iterdir()) == []


def _layer() -> tuple[Any, ...]:
    """What a bundle is of: a layer, what it is given, and what it gives."""
    given = {"input_0": torch.ones(1, 64)}
    call = RebuiltCall(given, {"args": [{"tensor": "input_0"}], "kwargs": {}}, {}, None, torch.device("cpu"), [])
    repro = Repro("name", "cpu", nn.Linear(64, 64), call)
    return repro, {"output": torch.ones(1, 64)}, {"output": torch.ones(1, 64)}


def test_a_dump_that_does_not_say_how_a_layer_was_called_is_refused(small: str, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"does not say how .* was called; capture it with tensordiff capture"):
        replay(small + "good", SAMPLES / "candidate", "layers.0.mlp", tmp_path / "r")


@pytest.mark.parametrize(("layer", "why"), [("nowhere", "there is no such layer"), ("act", "there are 4 of that name")])
def test_a_layer_that_is_not_one_is_refused(small: str, tmp_path: Path, layer: str, why: str) -> None:
    run_here(small + "good", tmp_path / "d")
    with pytest.raises(CaptureError, match=why):
        replay(small + "good", tmp_path / "d", layer, tmp_path / "r")


ODD = """
import torch
from dataclasses import dataclass
from typing import NamedTuple
from torch import nn

@dataclass
class Held:
    x: torch.Tensor

class Two(NamedTuple):
    one: torch.Tensor
    other: torch.Tensor

class Own:
    def __init__(self, x):
        self.x = x

class Inner(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.line, self.call = nn.Linear(4, 4), call

    def forward(self, x, *more, **named):
        return self.call(self.line, x, *more, **named)

class Outer(nn.Module):
    def __init__(self, inner, *more, make=lambda x: x, **named):
        super().__init__()
        self.inner, self.make, self.more, self.named = inner, make, more, named

    def forward(self, x):
        return self.inner(self.make(x * 1.5), *self.more, **self.named)

def net(call, *more, **named):
    torch.manual_seed(0)
    return Outer(Inner(call), *more, **named).eval(), (torch.randn(3, 4),)

def writes():
    return net(lambda line, x: line(x.add_(1)))

def narrow():
    return net(lambda line, x, dtype: line(x).to(dtype) * 0.3, dtype=torch.float16)

def numbered():
    return net(lambda line, x, scales: line(x) * scales[3], {3: torch.tensor(2.0)})

def dataclass():
    return net(lambda line, held: Two(line(held.x), held.x), make=Held)

def packed():
    def pack(x):
        return nn.utils.rnn.pack_padded_sequence(x[None].repeat(2, 1, 1), torch.tensor([3, 2]), batch_first=True)
    return net(lambda line, packed: line(packed.data) * packed.batch_sizes.sum(), make=pack)

def mixed():
    model, args = net(lambda line, x: nn.functional.linear(x, line.weight.to(x.dtype)))
    return model.bfloat16(), args

def trained():
    model, args = net(lambda line, x: line(x))
    model.inner.line = nn.BatchNorm1d(4)
    return model.train(), args

def function():
    return net(lambda line, x, act: act(line(x)), act=torch.relu)

def own():
    return net(lambda line, held: line(held.x), make=Own)

def dropped():
    return net(lambda line, x: nn.functional.dropout(line(x), 0.5))
"""


@pytest.mark.parametrize("name", ["writes", "narrow", "numbered", "dataclass", "packed", "mixed", "trained"])
def test_a_layer_is_called_with_what_it_was_called_with(name: str, tmp_path: Path) -> None:
    source = f"py:{script(tmp_path, ODD)}:{name}"
    run_here(source, tmp_path / "d")
    told = replay(source, tmp_path / "d", "inner", tmp_path / "r")
    assert same(tmp_path / "d", tmp_path / "r")
    assert any(not entry.is_input for entry in open_dump(tmp_path / "r").entries)
    assert not any(isinstance(event, Note) for event in told)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("function", "input_act was a builtin_function_or_method, which a dump does not hold"),
        ("own", "input_0 was a Own, which a dump does not hold"),
        ("dropped", "draws random numbers, and a dump does not hold those"),
    ],
)
def test_what_cannot_be_given_is_said_and_nothing_is_measured(name: str, why: str, tmp_path: Path) -> None:
    source = f"py:{script(tmp_path, ODD)}:{name}"
    run_here(source, tmp_path / "d")
    with pytest.raises(CaptureError, match=f"^model.inner: .*{why}"):
        replay(source, tmp_path / "d", "inner", tmp_path / "r")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("was", "is_now", "why"),
    [
        ('{"dtype":"float16"}', '{"dtype":"load"}', "was the type load, and torch has no such type"),
        ('{"dtype":"float16"}', '{"list":[1],"class":"collections:OrderedDict"}', "was a OrderedDict, and there is no"),
    ],
    ids=["a function of torch", "a class of another kind"],
)
def test_a_manifest_gives_a_layer_nothing_but_what_it_says_it_is(
    was: str, is_now: str, why: str, tmp_path: Path
) -> None:
    source = f"py:{script(tmp_path, ODD)}:narrow"
    manifest = run_here(source, tmp_path / "d").path / "manifest.json"
    text = manifest.read_text()
    assert was in text
    manifest.write_text(text.replace(was, is_now))
    with pytest.raises(CaptureError, match=why):
        replay(source, tmp_path / "d", "inner", tmp_path / "r")


def test_inputs_of_another_type_of_model_are_cast_and_it_is_said(tmp_path: Path) -> None:
    text = ODD + "\ndef half():\n    model, args = mixed()\n    return model.double(), args\n"
    file = script(tmp_path, text.replace("return model.bfloat16(), args", "return model, args"))
    run_here(f"py:{file}:mixed", tmp_path / "d")
    told = replay(f"py:{file}:half", tmp_path / "d", "inner", tmp_path / "r")
    assert "its float32 inputs are given as float64, the type of this model" in [getattr(e, "text", "") for e in told]
    outputs = [entry for entry in open_dump(tmp_path / "r").entries if not entry.is_input]
    assert [entry.spec.dtype.name for entry in outputs] == ["float64"]


@pytest.mark.parametrize(
    ("model", "layer"),
    [
        ("llama", "model.layers.1"), ("llama", "model.layers.0.self_attn"), ("llama", "model.model"),
        ("llama", "model"), ("gemma3", "model.layers.0"), ("t5", "decoder.block.1"),
        ("t5", "decoder.block.0.layer.1.EncDecAttention"), ("whisper", "model"),
    ],
)  # fmt: skip
def test_a_filled_cache_is_made_again(model: str, layer: str, tiny: Make, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    source = f"hf:{tiny(model)}"
    run_here(source, tmp_path / "d", steps=2)
    replay(source, tmp_path / "d", layer, tmp_path / "r", step=1)
    ours = {entry.name: entry.read() for entry in open_dump(tmp_path / "d").entries if entry.step == 1}
    theirs = {entry.name: entry.read() for entry in open_dump(tmp_path / "r").entries if not entry.is_input}
    assert theirs
    assert all(np.array_equal(ours[name], values) for name, values in theirs.items())


def test_a_cache_that_was_not_written_is_said(tiny: Make, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    source = f"hf:{tiny('llama')}"
    run_here(source, tmp_path / "d", steps=2, layers=r"layers\.\d$")
    with pytest.raises(CaptureError, match=r"what its cache held is not there: .*self_attn was captured without"):
        replay(source, tmp_path / "d", "model.layers.1", tmp_path / "r", step=1)


def replayed(source: str, dump: Path, layer: str, folder: Path, **more: Any) -> Path:
    """The bundle of a layer, which was tried and found to say what the layer did."""
    told = replay(source, dump, layer, folder / "r", folder / "bundle", **more)
    assert any("runs with torch alone; it says the same" in str(event) for event in told)
    names = {path.name for path in (folder / "bundle").iterdir()}
    assert names == {"repro.py", "layer.pt2", "inputs.pt", "expected.pt", "weights.pt"}
    return folder / "bundle"


def test_bundles_run_with_torch_alone_and_say_the_same(small: str, tiny: Make, tmp_path: Path) -> None:
    """A wrong layer, one that writes to its input, and one that is given a cache and gives a class of transformers."""
    pytest.importorskip("transformers")
    for name in ("wrong", "writes", "cached"):
        (tmp_path / name).mkdir()
    run_here(small + "good", good := tmp_path / "wrong" / "d")
    writing = f"py:{script(tmp_path / 'writes', ODD)}:writes"
    run_here(writing, tmp_path / "writes" / "d")
    run_here(llama := f"hf:{tiny('llama')}", tmp_path / "cached" / "d", steps=2)
    wrong, writes, cached = repro(
        replayed(small + "bad", good, "blocks.2", tmp_path / "wrong"),
        replayed(writing, tmp_path / "writes" / "d", "inner", tmp_path / "writes"),
        replayed(llama, tmp_path / "cached" / "d", "model.model", tmp_path / "cached", step=1),
    )
    rel_l2, largest = wrong["output"]
    ours, theirs = (
        {e.name: e.read().astype(np.float64) for e in open_dump(path).entries}["model.blocks.2-output"]
        for path in (good, tmp_path / "wrong" / "r")
    )
    assert rel_l2 == pytest.approx(np.linalg.norm(theirs - ours) / np.linalg.norm(ours), rel=1e-4)
    assert largest == pytest.approx(np.abs(theirs - ours).max(), rel=1e-4)
    assert rel_l2 > 1e-3
    assert writes["output"] == [0, 0]
    assert cached["output_last_hidden_state"][0] < 1e-6
