"""Real dumps of Hugging Face and MAX on the same checkpoint, where they lie beside the checkout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensordiff.dump.dtypes import Array
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.cli.command import Call
from tests.cli.conftest import call as call

CASES = Path(__file__).parents[2] / "shared" / "cases"
NAMES = ("bert", "llama", "llama_bf16", "phi3", "qwen3")

pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not beside this checkout")


def session(name: str, *, swapped: bool = False) -> Session:
    sides = CASES / name / "torch", CASES / name / "max"
    reference, candidate = sides[::-1] if swapped else sides
    return Session.open(Request(reference, candidate))


@pytest.mark.parametrize("name", NAMES)
def test_a_healthy_port_agrees(call: Call, name: str) -> None:
    said = call("compare", str(CASES / name / "torch"), str(CASES / name / "max"))
    assert (said.status, said.err) == (0, "")
    assert said.out.endswith("\nverdict: agrees\n")


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_pair_is_measured_and_agrees(name: str, swapped: bool) -> None:
    opened = session(name, swapped=swapped)
    assert opened.alignment.coverage.share > 0.5
    assert {row.verdict.name for row in opened.rows()} == {"agrees"}


def wide(array: Array, shape: tuple[int, ...] | None) -> Array:
    assert shape is not None
    return array.reshape(shape).astype(np.float64)


@pytest.mark.parametrize("name", ["llama", "llama_bf16"])
def test_the_numbers_are_those_of_a_float64_computation(name: str) -> None:
    rows = list(session(name).rows())
    assert len(rows) > 30
    for row in rows:
        ref, cand = (wide(e.read(), row.shape) for e in (row.pair.reference, row.pair.candidate))
        error = np.abs(cand - ref)
        norm = np.linalg.norm(ref)
        assert row.diff is not None
        assert row.diff.max_abs == pytest.approx(error.max(), rel=1e-6, abs=0)
        assert row.diff.max_abs_index is not None
        assert error[row.diff.max_abs_index] == error.max()
        assert row.diff.mse == pytest.approx((error**2).mean(), rel=1e-6, abs=0)
        assert row.diff.rel_l2 == pytest.approx(np.linalg.norm(error) / norm if norm else 0, rel=1e-6, abs=0)


def test_a_bug_planted_in_a_port_is_found(tmp_path: Path) -> None:
    """What the candidate's act_fn gives is left alone, what down_proj makes of it is not."""
    planted = tmp_path / "max"
    planted.mkdir()
    for path in (CASES / "llama" / "max").iterdir():
        data = bytearray(path.read_bytes())
        if path.name == "model.layers.layers.1.mlp.down_proj-output.max":
            data[-4:] = np.float32(9).tobytes()
        (planted / path.name).write_bytes(data)
    opened = Session.open(Request(CASES / "llama" / "torch", planted))
    culprit = opened.outcome(opened.rows()).culprit
    assert culprit is not None
    assert culprit.pair.name == "layers.1.mlp.down_proj"
    assert culprit.diff is not None
    assert culprit.diff.max_abs_index == (8, 63)
