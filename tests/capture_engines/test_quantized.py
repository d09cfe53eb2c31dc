"""Quantized candidates: what their weights explain is no error, and a bug beneath the quantization is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tensordiff.capture.interpreter import interpreter
from tensordiff.session.session import Session
from tests import processes
from tests.capture_engines.checkpoints import FORCED, IDS, Bug, make_gguf, scaled_norm, swapped
from tests.capture_engines.models import LLAMACPP, MLX, NAMES
from tests.capture_engines.running import Shelf, compared, culprit, wrong_by_themselves
from tests.cli.command import Call

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TORCH = ROOT / ".venv-quantized"
WRONG = 0.1
"""No right layer is so far off when it is given the reference's inputs, rounded to 8 bits as these may be."""
STEPS: dict[str, Any] = {"steps": 4, "decode_ids": FORCED}


class Way(NamedTuple):
    """A way to quantize a checkpoint, in an engine."""

    kind: str
    how: str
    said: str
    """What the sentence says of the weights."""

    def __str__(self) -> str:
        return f"{self.kind}-{self.how}"


WAYS = [
    Way("llamacpp", "Q8_0", "8-bit weights (Q8_0)"),
    Way("llamacpp", "Q4_K", "4-bit weights (Q4_K)"),
    Way("mlx", "4", "4-bit weights (MLX 4 bits in groups of 32)"),
    Way("mlx", "8", "8-bit weights (MLX 8 bits in groups of 32)"),
    Way("hf", "torchao-int8", "8-bit weights (torchao Int8Tensor int8)"),
    Way("hf", "torchao-int8-dynamic", "8-bit weights (torchao Int8Tensor int8)"),
    Way("hf", "torchao-int4", "4-bit weights (torchao IntxUnpackedToInt8Tensor int4)"),
    Way("hf", "bitsandbytes-8", "8-bit weights (bitsandbytes int8)"),
    Way("hf", "bitsandbytes-4", "4-bit weights (bitsandbytes nf4)"),
]
every = pytest.mark.parametrize("way", WAYS, ids=str)


@pytest.fixture(autouse=True)
def environment(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a way needs, or that it is not there."""
    if way.kind == "hf":
        if not TORCH.is_dir():
            pytest.skip("there is no .venv-quantized; make engine-quantized")
        monkeypatch.setenv("PYTHONPATH", str(TORCH))
    elif f".venv-{way.kind}" not in interpreter(way.kind):
        pytest.skip(f"there is no .venv-{way.kind}; make engine-{way.kind}")


def quantized(shelf: Shelf, way: Way, bug: Bug | None = None) -> str:
    """The source of a quantized checkpoint."""
    checkpoint = shelf.checkpoint("wide", bug)
    if way.kind == "llamacpp":
        return f"llamacpp:{make_gguf(checkpoint, Path(interpreter('llamacpp')), way.how)}"
    output = checkpoint.with_name(f"{checkpoint.name}-{way.how}")
    if not output.exists():
        script = HERE / ("quantize_mlx.py" if way.kind == "mlx" else "quantize_torch.py")
        python = interpreter(way.kind) if way.kind == "mlx" else str(ROOT / ".venv" / "bin" / "python")
        ran = processes.run([python, str(script), str(checkpoint), str(output), way.how])
        assert ran.returncode == 0, ran.stderr
    return f"{way.kind}:{output}"


def session(shelf: Shelf, way: Way, bug: Bug | None = None) -> Session:
    """The quantized candidate beside the reference that was given its weights."""
    source = quantized(shelf, way, bug)
    candidate = shelf.capture(source, **STEPS, weights=True)
    taken = candidate if way.kind == "hf" else Path(source.partition(":")[2])
    reference = shelf.reference("wide", **STEPS, quantized_as=str(taken))
    return compared(reference, candidate, shelf.injected(source, reference, **STEPS))


@every
def test_a_right_candidate_is_as_its_weights_explain(shelf: Shelf, way: Way) -> None:
    found = session(shelf, way)
    outcome = found.outcome(list(found.comparer.rows(found.pairs)))
    assert (outcome.culprit, outcome.taken_weights) == (None, way.said)
    assert outcome.verdict in ("agrees", "drifts")
    assert wrong_by_themselves(found, WRONG) == set()
    plain = compared(shelf.reference("wide", **STEPS), found.candidate.path)
    assert culprit(plain) is not None
    assert any("the candidate's weights are quantized" in finding.what for finding in plain.header_findings())


@every
@pytest.mark.parametrize("bug", [scaled_norm, swapped])
def test_a_bug_beneath_the_quantization_is_named(shelf: Shelf, way: Way, bug: Bug) -> None:
    found, wrong = session(shelf, way, bug), NAMES["llama"].wrong(bug, way.kind)
    assert culprit(found) == wrong[0]
    assert wrong_by_themselves(found, WRONG) == set(wrong)


@pytest.mark.parametrize("way", [way for way in WAYS if way.kind != "hf"], ids=str)
def test_another_rope_theta_is_named(shelf: Shelf, way: Way) -> None:
    engine = LLAMACPP if way.kind == LLAMACPP.kind else MLX
    source, wrong = quantized(shelf, way), {**STEPS, "config": engine.rope("llama")}
    reference = shelf.reference("wide", **STEPS, quantized_as=source.partition(":")[2])
    found = compared(reference, shelf.capture(source, **wrong), shelf.injected(source, reference, **wrong))
    assert culprit(found) == "layers.0.self_attn"


@pytest.mark.parametrize("way", [way for way in WAYS if way.kind != "hf"], ids=str)
def test_from_the_command_line(shelf: Shelf, call: Call, way: Way, tmp_path: Path) -> None:
    model, ids = shelf.checkpoint("wide"), ",".join(map(str, IDS))
    options = ("-o", tmp_path / "v", "--input-ids", ids, "--steps", "2")
    status, out, said = call("verify", f"hf:{model}", quantized(shelf, way), *options)
    assert (status, f", as its {way.said} explain," in out) == (0, True), (out, said)
    assert f"runs with the {way.said} of" in said


@pytest.mark.parametrize("way", [way for way in WAYS if way.kind != "hf"], ids=str)
def test_a_search_finds_the_bug_and_nothing_in_a_right_candidate(shelf: Shelf, call: Call, way: Way) -> None:
    for bug in (None, scaled_norm):
        found, wrong = session(shelf, way, bug), NAMES["llama"].wrong(scaled_norm, way.kind)[0]
        sides = found.reference.path, found.candidate.path
        (status, out, _), reran = call("bisect", *sides, "--auto", "--step", 0), call("bisect", *sides, "--rerun")
        if bug is None:
            assert (status, f"verdict: agrees, as its {way.said} explain" in out) == (0, True), out
            assert (reran.status, "the model's own output agrees already" in reran.err) == (2, True), reran
        else:
            assert (status, f"first bad: {wrong}\n" in out) == (1, True), out
            assert (reran.status, f"first bad: {wrong}\n" in reran.out) == (1, True), reran
