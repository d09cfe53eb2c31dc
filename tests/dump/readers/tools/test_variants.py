"""One run as many tools write it, of several ranks and steps: all of it is read, in order, and its bug is found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tensordiff.align import align
from tensordiff.dump import open_dump
from tensordiff.search.outcome import Outcome
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.dump.readers.tools.stand_ins import pt
from tests.dump.readers.tools.tiny_run import tiny_run
from tests.dump.readers.tools.variants import VARIANTS
from tests.making import write

NAMES = pytest.mark.parametrize("name", VARIANTS)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("ours") / "dump", tiny_run().named())


def outcome(reference: Path, candidate: Path) -> Outcome:
    session = Session.open(Request(reference, candidate))
    return session.outcome(session.rows())


def culprit(reference: Path, candidate: Path) -> tuple[str, str]:
    found = outcome(reference, candidate)
    return found.verdict, found.culprit.pair.name if found.culprit else ""


@NAMES
def test_all_of_it_is_read_in_order(tmp_path: Path, ours: Path, name: str) -> None:
    variant = VARIANTS[name]
    dump = open_dump(variant.make(tmp_path / "clean", False))
    assert (dump.format, len(dump), dump.unread) == (variant.format, variant.tensors, [])
    if dump.ordered and variant.in_order:
        assert align(open_dump(ours), dump).order == "same"
    assert all(entry.read().size for entry in dump.entries)


@NAMES
def test_a_clean_run_agrees(tmp_path: Path, ours: Path, name: str) -> None:
    variant = VARIANTS[name]
    clean = variant.make(tmp_path / "clean", False)
    for reference, agrees in ((clean, variant.agrees), (ours, variant.agrees_with_ours)):
        found = outcome(reference, clean)
        assert (found.verdict, found.exit_status) == (("agrees", 0) if agrees else ("unknown", 2)), found.reasons


@NAMES
def test_the_planted_bug_is_found(tmp_path: Path, ours: Path, name: str) -> None:
    variant = VARIANTS[name]
    clean, buggy = variant.make(tmp_path / "clean", False), variant.make(tmp_path / "buggy", True)
    for reference, expected in ((clean, variant.culprit), (ours, variant.ours or variant.culprit)):
        verdict, layer = culprit(reference, buggy)
        assert verdict == "diverges" and layer.endswith(expected)


@pytest.mark.parametrize("embedding", ["model.embed_tokens", "transformer.wte"])
def test_what_stands_before_the_embedding_is_of_the_pass_before(tmp_path: Path, embedding: str) -> None:
    """The logits of a pass lie in the next file, and those of the last one in a file of their own."""
    held: dict[str, object] = {}
    for number in range(3):
        values = {embedding: torch.rand(1, 4, 8), "model.layers.0": torch.rand(1, 4, 8)} if number < 2 else {}
        pt(tmp_path / "TP0_PP0_Rank0_pid1" / f"Pass{number:05d}.pt", {**held, **values})
        held = {"lm_head": torch.rand(1, 4, 16)}
    dump = open_dump(tmp_path)
    layers = [embedding, "model.layers.0", "lm_head"]
    assert [(e.step, e.layer) for e in dump.entries] == [(step, layer) for step in range(2) for layer in layers]


def test_passes_that_begin_otherwise_stay_apart(tmp_path: Path) -> None:
    """A later stage has no embedding; a pass of other layers, which the one before has too, is one of its own."""
    for number, layers in enumerate((("layers.2", "norm"), ("layers.2", "norm"), ("norm",))):
        pt(tmp_path / f"Pass{number:05d}.pt", {layer: torch.rand(1, 4, 8) for layer in layers})
    found = [(entry.step, entry.layer) for entry in open_dump(tmp_path).entries]
    assert found == [(0, "layers.2"), (0, "norm"), (1, "layers.2"), (1, "norm"), (2, "norm")]
