"""Bugs planted in checkpoints of several formats: the parameter and the kind are named, and nothing else is.

Seeds of these checkpoints were not used while the hints were written (those of tests/weights/test_hints.py were).
docs/weights.md has the table.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import pytest

from tensordiff.dump import open_dump
from tensordiff.weights.comparison import WeightsOutcome, compare_weights
from tensordiff.weights.hint.catalogue import KINDS
from tests.weights.making import Weights, llama, write_bin, write_gguf, write_npz, write_sharded
from tests.weights.plants import PLANTS, Plant, planted_row

PAGE = (Path(__file__).parents[2] / "docs" / "weights.md").read_text("utf-8")
WRITERS: dict[str, Callable[[Weights, Path], Path]] = {
    "safetensors": write_sharded,
    "bin": write_bin,
    "gguf": lambda weights, folder: write_gguf(weights, folder / "model.gguf"),
    "npz": lambda weights, folder: write_npz(weights, folder / "weights.npz"),
}


def _outcome(reference: Path, candidate: Path) -> WeightsOutcome:
    return compare_weights(open_dump(reference), open_dump(candidate))


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sharded(llama(1001), tmp_path_factory.mktemp("clean") / "hf")


@pytest.mark.parametrize("form", WRITERS)
def test_the_same_weights_agree(clean: Path, tmp_path: Path, form: str) -> None:
    outcome = _outcome(clean, WRITERS[form](llama(1001), tmp_path / "same"))
    assert outcome.verdict == "agrees"
    assert {row.verdict for row in outcome.rows} == {"agrees"}
    assert outcome.compared == len(llama(1001))


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_the_kind_is_named(clean: Path, tmp_path: Path, plant: Plant, form: str) -> None:
    weights = llama(1001)
    plant.apply(weights)
    outcome = _outcome(clean, WRITERS[form](weights, tmp_path / "buggy"))
    assert outcome.exit_status == 1
    row = next(row for row in outcome.findings if row.name == plant.where)
    assert row.hint is not None, row.why
    assert (row.hint.kind, plant.words in row.sentence) == (plant.kind, True), row.sentence
    assert planted_row(plant, row) in PAGE
    changed = {name for name, array in weights.items() if array is not None and not _same(array, llama(1001)[name])}
    assert len(outcome.findings) == len(changed)


TYPES: dict[str, tuple[Callable[[Weights, Path], Path], Callable[[Weights, Path], Path]]] = {
    "float32 to bfloat16": (write_sharded, lambda w, p: write_bin(_rounded(w), p)),
    "bfloat16 to bfloat16": (lambda w, p: write_bin(_rounded(w), p), lambda w, p: write_bin(_rounded(w), p)),
    "float32 to Q8_0": (write_sharded, lambda w, p: write_gguf(w, p / "model.gguf", "Q8_0")),
    "float32 to Q4_0": (write_sharded, lambda w, p: write_gguf(w, p / "model.gguf", "Q4_0")),
}


def _rounded(weights: Weights) -> Weights:
    return {name: array.astype(ml_dtypes.bfloat16) for name, array in weights.items()}


@pytest.mark.parametrize("types", TYPES)
def test_the_kinds_are_named_in_coarser_types(tmp_path: Path, types: str) -> None:
    """What a coarser type hides, a cast to another one above all, may go unnamed; nothing is named wrongly."""
    write_reference, write_candidate = TYPES[types]
    plants = [plant for plant in PLANTS if plant.kind != "cast"]
    reference = write_reference(llama(1002), tmp_path / "ref")
    wrong = {}
    for k, plant in enumerate(plants):
        weights = llama(1002)
        plant.apply(weights)
        outcome = _outcome(reference, write_candidate(weights, tmp_path / f"{k}"))
        row = next(row for row in outcome.rows if row.name == plant.where)
        if row.hint is None or row.hint.kind != plant.kind:
            wrong[plant.name] = row.sentence
    assert wrong == {}


@pytest.mark.parametrize("types", TYPES)
def test_a_cast_beneath_a_coarser_type_is_never_called_something_else(tmp_path: Path, types: str) -> None:
    write_reference, write_candidate = TYPES[types]
    reference = write_reference(llama(1002), tmp_path / "ref")
    for k, plant in enumerate(plant for plant in PLANTS if plant.kind == "cast"):
        weights = llama(1002)
        plant.apply(weights)
        outcome = _outcome(reference, write_candidate(weights, tmp_path / f"{k}"))
        assert {row.hint.kind for row in outcome.findings if row.hint is not None} <= {"cast"}


def test_the_docs_have_every_kind() -> None:
    assert all(f"| {kind} | {means} |" in PAGE for kind, means in KINDS.items())


def test_every_hint_in_the_docs_is_one_of_the_kinds() -> None:
    assert {plant.kind for plant in PLANTS} <= set(KINDS)
    assert len({plant.kind for plant in PLANTS}) >= 12


def _same(one: object, other: object) -> bool:
    import numpy as np

    return bool(np.array_equal(one, other))  # type: ignore[arg-type]
