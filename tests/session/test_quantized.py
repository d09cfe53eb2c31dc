"""A quantized candidate: which reference it is compared with, and what is said of both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tensordiff.capture.job import Source
from tensordiff.capture.quantization import quantization_facts
from tensordiff.capture.settings import Settings
from tensordiff.dump.dtypes import Array
from tensordiff.report.model import summary_sentence
from tensordiff.session.quantized import quantized_target
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.session.sources import Sources
from tensordiff.weights.quantization import Quantization
from tests.making import numbers, write
from tests.weights.making import llama, write_gguf

TAKEN = {
    "path": "/c.gguf", "weights": "4-bit weights (Q4_K)", "left": [], "layers": ["up"], "rounds_activations": True,
}  # fmt: skip
X = numbers(24, 64)


def off(x: Array, error: float) -> Array:
    return np.asarray(x * (1 + error * numbers(*x.shape, seed=9)), np.float32)


def session(folder: Path, candidate: dict[str, Array], *, taken: object, **facts: object) -> Session:
    """Two layers, of which ``up`` has weights; the candidate has other values for some."""
    both = {"model.norm-input_0": X, "model.norm-output": 2 * X, "model.up-input_0": 2 * X, "model.up-output": 3 * X}
    reference = write(folder / "reference", both, quantized_as=taken)
    return Session.open(Request(reference, write(folder / "candidate", both | candidate, 0, **facts)))


@pytest.mark.parametrize(
    ("layer", "error", "taken", "verdict"),
    [
        ("up", 0.01, TAKEN, "agrees"),
        ("up", 0.01, TAKEN | {"rounds_activations": False}, "diverges"),
        ("up", 0.01, None, "diverges"),
        ("up", 0.3, TAKEN, "diverges"),
        ("norm", 0.01, TAKEN, "diverges"),  # it has no quantized weights
    ],
)
def test_a_layer_may_be_off_by_what_rounding_to_8_bits_explains(
    tmp_path: Path, layer: str, error: float, taken: object, verdict: str
) -> None:
    name = f"model.{layer}-output"
    found = session(tmp_path, {name: off(2 * X if layer == "norm" else 3 * X, error)}, taken=taken)
    rows = {row.pair.reference.name: row for row in found.rows()}
    assert rows[name].verdict.name == verdict


def test_a_later_output_of_a_module_is_made_of_the_same_parts(tmp_path: Path) -> None:
    names = ("model-output_logits", "model-output_cache")
    whole = {"model.up-output": off(3 * X, 0.01)} | dict.fromkeys(names, off(3 * X, 0.012))
    both = {"model.up-input_0": 2 * X, "model.up-output": 3 * X} | dict.fromkeys(names, 3 * X)
    reference = write(tmp_path / "reference", both, quantized_as=TAKEN)
    found = Session.open(Request(reference, write(tmp_path / "candidate", both | whole)))
    assert {row.pair.reference.name: row.verdict.name for row in found.rows()} == dict.fromkeys(both, "agrees")


def test_the_sentence_says_what_explains_it(tmp_path: Path) -> None:
    right = session(tmp_path / "right", {}, taken=TAKEN)
    assert "agree, as its 4-bit weights (Q4_K) explain," in summary_sentence(right.outcome(right.rows()))
    assert (
        next(f.what for f in right.header_findings())
        == "the reference was run with the candidate's 4-bit weights (Q4_K)"
    )
    wrong = session(tmp_path / "wrong", {"model.up-output": off(3 * X, 0.5)}, taken=TAKEN)
    said = summary_sentence(wrong.outcome(wrong.rows()))
    assert said.startswith(
        "up is the first place that is wrong by itself, by more than its 4-bit weights (Q4_K) explain: "
    )


def test_a_quantized_candidate_beside_a_plain_reference_is_told_what_to_do(tmp_path: Path) -> None:
    facts = quantization_facts({"up.weight": Quantization("int4", 4, 32)}, rounds_activations=False)
    found = [f for f in session(tmp_path, {}, taken=None, **facts).header_findings() if "quantized" in f.what]
    assert [f.what for f in found] == ["the candidate's weights are quantized (int4), and the reference's are not"]
    assert "--quantized-as CAND" in found[0].do


def test_a_reference_is_given_the_weights_of_a_quantized_file(tmp_path: Path) -> None:
    quantized, plain = (write_gguf(llama(1), tmp_path / f"{kind}.gguf", kind) for kind in ("Q4_0", "F32"))
    assert quantized_target(Source("llamacpp", str(quantized))) == str(quantized)
    assert quantized_target(Source("llamacpp", str(plain))) is None
    assert quantized_target(Source("llamacpp", str(tmp_path / "none.gguf"))) is None
    request = Request(Path("hf:some/model"), Path(f"llamacpp:{quantized}"), settings=Settings(prompt="x"))
    assert Sources.of(request).job().settings.quantized_as == str(quantized)
    other = replace(request, settings=Settings(prompt="x", quantized_as="/other"))
    assert Sources.of(other).job().settings.quantized_as == "/other"
    ran = replace(other, reference=write(tmp_path / "ref", {"a": numbers(2)}, token_ids=[1, 2]))
    assert Sources.of(ran).job().settings.quantized_as is None  # it is about the reference
