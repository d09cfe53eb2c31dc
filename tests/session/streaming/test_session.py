"""Comparing while sources run: the same answer as with dumps, to the bit, in a window that holds a part of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensordiff.capture.events import Done
from tensordiff.capture.runner import Run
from tensordiff.capture.settings import Settings
from tensordiff.compare.judge.upstream_error import LATEST
from tensordiff.compare.lint import lint_rows
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError, WriteError
from tensordiff.report.comparison_json import compare_json
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.session.sources import Sources
from tensordiff.session.streaming.options import StreamOptions
from tensordiff.session.streaming.session import RereadablePairs, open_stream
from tensordiff.util.remote import user_path
from tests.capture.models import SMALL, run_here, script, tiny_model
from tests.stores import WebServer

pytest.importorskip("torch")

DEEP = """
import os
import signal
from pathlib import Path

import torch
from torch import nn

HERE = Path(__file__).parent

class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up_proj, self.act, self.down_proj = nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)

    def forward(self, x):
        return self.down_proj(self.act(self.up_proj(x)))

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp, self.scale = nn.LayerNorm(64), Mlp(), 1.0

    def forward(self, x):
        return x + self.scale * self.mlp(self.norm(x))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens, self.lm_head = nn.Embedding(100, 64), nn.Linear(64, 100)
        self.layers = nn.ModuleList(Layer() for _ in range(20))

    def forward(self, input_ids):
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)

def good():
    torch.manual_seed(0)
    return Net().eval(), (), {"input_ids": torch.arange(3, 19)[None]}

def bad():
    net, args, kwargs = good()
    for weight in net.layers[8].mlp.down_proj.parameters():
        weight.data *= 1.25
    return net, args, kwargs

def glue():
    net, args, kwargs = good()
    net.layers[12].scale = 1.5
    return net, args, kwargs

class Backwards(Net):
    def forward(self, input_ids):
        x = torch.ones(1, 16, 64)
        for layer in reversed(self.layers):
            layer(x)
        return self.lm_head(self.embed_tokens(input_ids))

def backwards():
    net, args, kwargs = good()
    net.__class__ = Backwards
    return net, args, kwargs

class Wrapped(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.wte, self.h, self.output = net.embed_tokens, net.layers, net.lm_head
        for layer in self.h:
            layer.ffn, layer.ln = layer._modules.pop("mlp"), layer._modules.pop("norm")
            layer.ffn.fc1, layer.ffn.fc2 = layer.ffn._modules.pop("up_proj"), layer.ffn._modules.pop("down_proj")
            layer.ffn.forward = lambda x, ffn=layer.ffn: ffn.fc2(ffn.act(ffn.fc1(x)))
            layer.forward = lambda x, layer=layer: x + layer.ffn(layer.ln(x))

    def forward(self, ids):
        x = self.wte(ids)
        for layer in self.h:
            x = layer(x)
        return self.output(x)

def renamed():
    net, _, kwargs = good()
    return Wrapped(net).eval(), (kwargs["input_ids"],), {}

def raising():
    net, args, kwargs = good()
    def hook(module, given):
        raise ValueError("no such kernel")
    net.layers[7].mlp.register_forward_pre_hook(hook)
    return net, args, kwargs

def in_second_run(mark, do):
    net, args, kwargs = good()
    def hook(module, given, gave):
        if mark.exists():
            return do(gave, net)
        mark.touch()
    net.layers[7].mlp.act.register_forward_hook(hook)
    return net, args, kwargs

def changing():
    return in_second_run(HERE / "changing", lambda gave, net: gave[:, 1:])

def growing():
    return in_second_run(HERE / "growing", lambda gave, net: (net.lm_head(torch.zeros(1, 16, 64)), None)[1])

def dying():
    return in_second_run(HERE / "dying", lambda gave, net: os.kill(os.getpid(), signal.SIGKILL))
"""
ALL = 10**9
LARGEST = 16 * 128 * 4
"""Bytes of the largest tensor."""
LITTLE = 900_000
"""Bytes that hold some layers of both sides, and not all of them."""


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"py:{script(tmp_path_factory.mktemp('deep'), DEEP)}:"


@pytest.fixture(scope="module")
def captured(deep: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Dumps of the same sources."""
    folder = tmp_path_factory.mktemp("dumps")
    sources = {"good_again": "good"} | {name: name for name in ("good", "bad", "glue", "renamed")}
    return {name: run_here(deep + source, folder / name).path for name, source in sources.items()}


def follow(run: Run, label: str) -> Done:
    return run.result()


def as_json(session: Session) -> dict[str, Any]:
    """What ``compare --json`` prints, without where the two sides lie."""
    findings = list(session.header_findings())
    outcome = session.outcome(session.rows())
    hint = session.hint(outcome.culprit) if outcome.culprit else None
    whole = compare_json(session, outcome, [*findings, *lint_rows(outcome.rows)], session.logits(outcome.rows), hint)
    for side in ("reference", "candidate"):
        del whole[side]["path"]
    return whole


def streamed(reference: object, candidate: object, window: int = ALL, **more: Any) -> dict[str, Any]:
    request = Request(Path(str(reference)), Path(str(candidate)), **more)
    with open_stream(request, StreamOptions(window, "none"), follow) as session:
        return as_json(session)


def with_dumps(captured: dict[str, Path], reference: str, candidate: str, **more: Any) -> dict[str, Any]:
    return as_json(Session.open(Request(captured[reference], captured[candidate], **more)))


# --- what cannot be done is a sentence --------------------------------------------------------------


def test_two_dumps_have_nothing_to_stream(captured: dict[str, Path]) -> None:
    with pytest.raises(CaptureError, match="both sides are dumps; leave it out"):
        streamed(captured["good"], captured["bad"])


def test_workers_of_a_cluster_cannot_read_a_stream(deep: str) -> None:
    with pytest.raises(CaptureError, match="--cluster: workers read dumps"):
        streamed(deep + "good", deep + "bad", cluster="local:2")


def test_sides_that_run_too_far_apart_are_said(deep: str) -> None:
    """One gives last what the other gives first, so everything in between would have to be held."""
    with pytest.raises(CaptureError, match=r"more than 50\.0 kB of this side would have to be held .*--window"):
        streamed(deep + "good", deep + "backwards", 100_000)


def test_a_model_that_raises_while_it_is_listed(deep: str) -> None:
    with pytest.raises(CaptureError, match=r"ValueError.*: no such kernel$"):
        streamed(deep + "good", deep + "raising")


def test_a_child_that_dies_in_the_midst(deep: str) -> None:
    with pytest.raises(CaptureError, match="was ended by SIGKILL while running") as died:
        streamed(deep + "good", deep + "dying")
    assert "lies in" not in str(died.value)  # what it reached is gone


@pytest.mark.parametrize(
    ("function", "why"), [("changing", "when it was listed"), ("growing", "came in only one of two runs")]
)
def test_a_source_that_does_not_run_twice_alike(function: str, why: str, deep: str) -> None:
    with pytest.raises(CaptureError, match=f"{why}; its two runs differ"):
        streamed(deep + "good", deep + function)


def test_a_folder_that_holds_something_is_not_written_to(deep: str, tmp_path: Path) -> None:
    (tmp_path / "candidate").mkdir()
    request = Request(Path(deep + "good"), Path(deep + "bad"))
    options = StreamOptions(ALL, "diverging", tmp_path)
    with pytest.raises(WriteError, match="is there already"), open_stream(request, options, follow):
        pass


# --- the same answer --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidate", "window"),
    [
        ("bad", LITTLE),
        ("good", ALL),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("bad", ALL), ("good", LITTLE), ("glue", LITTLE), ("glue", ALL))
        ),
    ],
)
def test_two_sources_give_what_two_dumps_give(
    candidate: str, window: int, deep: str, captured: dict[str, Path]
) -> None:
    found = streamed(deep + "good", deep + candidate, window)
    assert found == with_dumps(captured, "good", "good_again" if candidate == "good" else candidate)
    assert found["verdict"] == ("agrees" if candidate == "good" else "diverges")


@pytest.mark.parametrize(
    ("candidate", "window"),
    [
        ("bad", LARGEST),
        *(pytest.param("bad", window, marks=pytest.mark.slow) for window in (1000, 8 * LARGEST)),
        *(pytest.param("good", window, marks=pytest.mark.slow) for window in (1000, LARGEST, 8 * LARGEST)),
    ],
)
def test_a_few_tensors_are_enough_for_two_sides_in_lockstep(
    candidate: str, window: int, deep: str, captured: dict[str, Path]
) -> None:
    found = streamed(deep + "good", deep + candidate, window)
    assert found == with_dumps(captured, "good", "good_again" if candidate == "good" else candidate)


def test_what_is_looked_at_again_is_spilled_and_goes(deep: str, captured: dict[str, Path]) -> None:
    request = Request(Path(deep + "good"), Path(deep + "bad"))
    with open_stream(request, StreamOptions(8 * LARGEST, "none"), follow) as session:
        spilled = [set[str]()]
        for _ in session.rows():
            files = (file for side in session.streamed for file in side.spilled_files())
            spilled.append({str(file) for file in files if file.exists()})
        latest = 2 * (LATEST + 10)  # of both sides: outputs, and inputs of modules that are open
        assert 0 < max(map(len, spilled)) <= latest < len(set().union(*spilled))


def test_what_was_let_go_for_good_makes_a_pair_unknown_and_not_right(
    deep: str, captured: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        RereadablePairs, "released_by", lambda _, row: iter([row.pair])
    )  # as if the judge never looked back
    found = streamed(deep + "good", deep + "bad", 8 * LARGEST)
    expected = with_dumps(captured, "good", "bad")
    assert found["culprit"]["name"] == expected["culprit"]["name"] and found["verdict"] == "diverges"
    pairs = list(zip(found["pairs"], expected["pairs"], strict=True))
    gone = [pair for pair, _ in pairs if "is needed again" in pair["why"]]
    assert gone and {pair["verdict"] for pair in gone} == {"unknown"}
    assert all(whole["verdict"] == "agrees" for pair, whole in pairs if pair["verdict"] == "agrees")


@pytest.mark.parametrize("window", [pytest.param(LITTLE, marks=pytest.mark.slow), ALL])
def test_a_dump_and_a_source_give_what_two_dumps_give(window: int, deep: str, captured: dict[str, Path]) -> None:
    expected = with_dumps(captured, "good", "bad")
    assert streamed(captured["good"], deep + "bad", window) == expected
    assert streamed(deep + "good", captured["bad"], window) == expected
    assert expected["culprit"]["name"] == "layers.8.mlp.down_proj" and expected["culprit"]["hint"]


@pytest.mark.parametrize("window", [LITTLE, ALL])
def test_a_dump_in_a_store_and_a_source_that_runs_once(window: int, deep: str, captured: dict[str, Path]) -> None:
    runs: list[Run] = []
    with WebServer(captured["good"].parent) as server:
        request = Request(user_path(f"{server.address}/{captured['good'].name}"), Path(deep + "bad"))
        with open_stream(request, StreamOptions(window, "none"), follow, started=runs.append) as session:
            assert session.outcome(session.rows()).verdict == "diverges"
    assert [run.job.writes for run in runs] == ["listing", "stream"]  # however many pairs are read ahead


def test_two_checkpoints_of_hugging_face_that_decode(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    good = tiny_model("mixtral", tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(good)
    model.model.layers[1].self_attn.v_proj.weight.data *= 1.3
    model.save_pretrained(tmp_path / "bad")
    settings = Settings(input_ids=(3, 14, 15, 92, 65, 35), steps=2, device="cpu")
    request = Request(Path(f"hf:{good}"), Path(f"hf:{tmp_path / 'bad'}"), settings=settings)
    sources = Sources.of(request)
    while sources.side is not None:
        sources = sources.with_dump(Path(Run(sources.job(tmp_path / sources.side)).result().path))
    expected = as_json(Session.open(sources.request))
    assert {pair["step"] for pair in expected["pairs"]} == {0, 1}
    assert expected["culprit"]["name"] == "layers.1.self_attn.v_proj"
    assert streamed(request.reference, request.candidate, settings=settings) == expected


def test_a_graph_of_onnx_gives_what_its_dump_gives(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from tests.capture.engines.onnx.graphs import exported_function

    small = f"py:{script(tmp_path, SMALL)}:"
    reference = run_here(small + "good", tmp_path / "torch").path
    graph = exported_function(small + "bad", tmp_path / "net.onnx", dynamo=False, input_names=["x"])
    settings = Settings(inputs=str(reference))
    dump = run_here(f"onnx:{graph}", tmp_path / "onnx", settings).path
    expected = as_json(Session.open(Request(reference, dump)))
    assert expected["culprit"]["candidate"] == "model.blocks.2.act-output"
    assert streamed(reference, f"onnx:{graph}", settings=settings) == expected


def test_rules_are_learned_from_what_the_window_holds(deep: str, captured: dict[str, Path]) -> None:
    expected = with_dumps(captured, "good", "renamed")
    assert expected["alignment"]["learned"]
    assert streamed(deep + "good", deep + "renamed") == expected


def test_rules_that_are_learned_from_a_part_say_so(deep: str) -> None:
    found = streamed(deep + "good", deep + "renamed", LITTLE)
    assert found["alignment"]["learned"] and found["verdict"] == "agrees"
    (told,) = (finding for finding in found["lint"] if "was learned from" in finding["what"])
    assert "--window" in told["do"]


# --- what is held, and what stays -------------------------------------------------------------------


def test_no_more_is_held_than_the_window(deep: str) -> None:
    request = Request(Path(deep + "good"), Path(deep + "good"))
    with open_stream(request, StreamOptions(LITTLE, "none"), follow) as session:
        session.outcome(session.rows())
        whole = sum(entry.spec.nbytes for entry in session.reference.entries)
        assert whole > LITTLE
        assert all(0 < side.most_bytes <= LITTLE // 2 for side in session.streamed)


def test_what_was_let_go_is_fetched_again(deep: str, captured: dict[str, Path]) -> None:
    request = Request(Path(deep + "good"), Path(deep + "bad"))
    expected = {entry.key: entry for entry in open_dump(captured["good"]).entries}
    with open_stream(request, StreamOptions(LITTLE, "none"), follow) as session:
        session.outcome(session.rows())
        early = [e for e in session.reference.entries if e.layer.endswith("layers.0.mlp.up_proj")]
        assert len(early) == 2
        for entry in early:
            assert np.array_equal(entry.read(), expected[entry.key].read())


def test_what_diverges_stays_as_a_dump(deep: str, captured: dict[str, Path], tmp_path: Path) -> None:
    request = Request(Path(deep + "good"), Path(deep + "bad"))
    with open_stream(request, StreamOptions(LITTLE, "diverging", tmp_path / "kept"), follow) as session:
        outcome = session.outcome(session.rows())
        assert outcome.culprit is not None
        session.keep_culprit(outcome.culprit)
    kept = {side: open_dump(tmp_path / "kept" / side) for side in ("reference", "candidate")}
    diverging = [row.pair.reference.name for row in outcome.rows if row.verdict.name == "diverges"]
    for side, dump in kept.items():
        assert not dump.problems and not dump.interrupted
        names = {entry.name for entry in dump.entries}
        assert names >= {*diverging, "model.layers.8.mlp.down_proj-input_0"}
        assert len(dump) < 40 < len(session.reference)
        original = {entry.key: entry for entry in open_dump(captured["good" if side == "reference" else "bad"]).entries}
        assert all(np.array_equal(entry.read(), original[entry.key].read()) for entry in dump.entries)
        assert dump.facts["source"] == str(session.request.reference if side == "reference" else request.candidate)


def test_a_run_that_agrees_leaves_nothing(deep: str, tmp_path: Path) -> None:
    request = Request(Path(deep + "good"), Path(deep + "good"))
    with open_stream(request, StreamOptions(ALL, "diverging", tmp_path / "kept"), follow) as session:
        assert session.outcome(session.rows()).verdict == "agrees"
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("window", [LITTLE, ALL])
def test_all_can_stay(window: int, deep: str, captured: dict[str, Path], tmp_path: Path) -> None:
    request = Request(captured["good"], Path(deep + "bad"))
    with open_stream(request, StreamOptions(window, "all", tmp_path / "kept"), follow) as session:
        session.outcome(session.rows())
    kept, original = open_dump(tmp_path / "kept" / "candidate"), open_dump(captured["bad"])
    assert [entry.key for entry in kept.entries] == [entry.key for entry in original.entries]
    found = as_json(Session.open(Request(captured["good"], kept.path)))
    assert found["pairs"] == with_dumps(captured, "good", "bad")["pairs"]


def test_both_runs_end_at_the_first_culprit(deep: str, captured: dict[str, Path]) -> None:
    request = Request(Path(deep + "good"), Path(deep + "bad"))
    expected = with_dumps(captured, "good", "bad")
    with open_stream(request, StreamOptions(LITTLE, "none", stops=True), follow) as session:
        found = as_json(session)
    assert found["culprit"] == expected["culprit"] and found["verdict"] == "diverges"
    assert len(found["pairs"]) < len(expected["pairs"])
    assert found["pairs"] == expected["pairs"][: len(found["pairs"])]
