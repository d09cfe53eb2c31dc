"""Weights in a comparison of runs: two captures that hold their parameters, and what is said of a culprit's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensordiff.capture.engines import ENGINES, Engine
from tensordiff.dump import open_dump
from tensordiff.dump.names import parameter_name
from tensordiff.dump.native.writer import DumpWriter
from tensordiff.report.comparison_json import compare_json
from tensordiff.report.model import build_report
from tensordiff.report.text import render as render_text
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.session.weights import open_checkpoints

SAMPLES = Path(__file__).parents[2] / "sample_dumps"
X = np.random.default_rng(3).normal(0, 1, (5, 32)).astype(np.float32)
WEIGHT = np.random.default_rng(4).normal(0, 0.2, (64, 32)).astype(np.float32)
PERMUTED = np.ascontiguousarray(WEIGHT.reshape(-1, 2, 8, 32).swapaxes(1, 2).reshape(64, 32))


def capture(folder: Path, weight: np.ndarray, *, gain: float = 1.0, held: bool = True) -> Path:
    """What a capture of two layers leaves, the weights of the second among it."""
    with DumpWriter(folder) as writer:
        if held:
            writer.add(parameter_name("model.layers.0.up.weight"), weight)
            writer.add(parameter_name("model.norm.weight"), WEIGHT[0])
        writer.add("model.norm-output", X)
        writer.add("model.layers.0.up-input_0", X)
        writer.add("model.layers.0.up-output", (X @ weight.T) * np.float32(gain))
        writer.add("lm_head-output", X @ WEIGHT.T * np.float32(gain) if weight is WEIGHT else X @ weight.T)
    return folder


def session(tmp_path: Path, weight: np.ndarray, **options: object) -> Session:
    reference = capture(tmp_path / "ref", WEIGHT, held=bool(options.get("held", True)))
    candidate = capture(tmp_path / "cand", weight, **options)  # type: ignore[arg-type]
    return Session.open(Request(reference, candidate))


def test_parameters_are_no_entries_of_the_run(tmp_path: Path) -> None:
    dump = open_dump(capture(tmp_path / "run", WEIGHT))
    assert [entry.layer for entry in dump.parameters] == ["model.layers.0.up.weight", "model.norm.weight"]
    assert len(dump) == 4
    assert all(entry.port != "parameter" for entry in dump.entries)


def test_a_culprit_whose_weights_differ(tmp_path: Path) -> None:
    opened = session(tmp_path, PERMUTED)
    outcome = opened.outcome(opened.rows())
    assert outcome.culprit is not None and outcome.culprit.pair.name == "layers.0.up"
    hint = opened.hint(outcome.culprit)
    assert hint is not None and hint.kind == "weights"
    assert hint.sentence == "its weights differ: rows permuted in blocks of 16 (rope: halves interleaved)"
    found = list(opened.header_findings())
    assert (found[0].where, found[0].level) == ("layers.0.up.weight", "warning")
    assert "rows permuted in blocks of 16" in found[0].what
    whole = compare_json(opened, outcome, found, None, hint)
    assert whole["culprit"]["weights"] == hint.sentence
    assert "its weights differ: rows permuted" in "".join(render_text(build_report(opened, outcome)))


def test_a_culprit_whose_weights_are_the_same(tmp_path: Path) -> None:
    opened = session(tmp_path, WEIGHT, gain=1.5)
    outcome = opened.outcome(opened.rows())
    assert outcome.culprit is not None
    weights = opened.layer_weights(outcome.culprit)
    assert weights is not None and weights.hint is None
    assert weights.sentence == "its weights are the same on both sides"
    hint = opened.hint(outcome.culprit)
    assert hint is None or hint.kind != "weights"
    assert "its weights are the same on both sides" in "".join(render_text(build_report(opened, outcome)))
    assert "the weights are the same on both sides (2 parameters compared)" in {
        f.what for f in opened.header_findings()
    }


def test_nothing_is_said_where_a_dump_holds_no_weights(tmp_path: Path) -> None:
    opened = session(tmp_path, PERMUTED, held=False)
    outcome = opened.outcome(opened.rows())
    assert opened.weights is None
    assert outcome.culprit is not None and opened.layer_weights(outcome.culprit) is None
    assert not [f for f in opened.header_findings() if "weights" in f.what]


@pytest.mark.parametrize("name", ["folder", "whole.safetensors"])
def test_weights_survive_a_conversion(tmp_path: Path, name: str) -> None:
    from tensordiff.dump.native.convert import convert

    source = open_dump(capture(tmp_path / "run", WEIGHT))
    list(convert(source, tmp_path / name))
    again = open_dump(tmp_path / name)
    assert [entry.layer for entry in again.parameters] == ["model.layers.0.up.weight", "model.norm.weight"]
    assert np.array_equal(again.parameters[0].read(), WEIGHT)
    assert len(again) == 4


def test_engines_of_other_packages_are_not_looked_for_when_sides_are_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """That reads what every installed package says of itself."""
    asked: list[str] = []

    def look(_: object) -> dict[str, Engine]:
        asked.append("looked")
        return {}

    monkeypatch.setattr(type(ENGINES), "_installed", look)
    assert open_checkpoints(Request(SAMPLES / "reference", SAMPLES / "candidate")) is None
    assert asked == []
    assert open_checkpoints(Request(Path("other:model"), SAMPLES / "candidate")) is None
    assert asked == ["looked"]
