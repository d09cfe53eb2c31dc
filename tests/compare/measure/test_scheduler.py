"""Pieces that cores take in turn: the same numbers whoever takes which, however large a piece is."""

from __future__ import annotations

import numpy as np
import pytest

from tensordiff.compare.measure import scheduler
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.measure.dispatch import MeasureInput, measure_many
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.dump.dtypes import DTYPES, Array
from tests.compare.measure.test_dispatch import check

SIZES = (0, 1, 31, 2304, 100_000, 300_001)
TYPES = ("float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "int64")


def sides() -> list[MeasureInput]:
    """Pairs of many sizes and types, some with odd values, one after the other."""
    rng = np.random.default_rng(5)
    found: list[MeasureInput] = []
    for size in SIZES:
        for name in TYPES:
            ref: Array = (8 * rng.standard_normal(size)).astype(DTYPES[name])
            cand: Array = (ref.astype(np.float64) * 1.01).astype(DTYPES[name])
            found.append((ref, cand, None if size % 2 else Tolerance(1e-3, 1e-3)))
    odd = found[-6][1].copy()
    odd[[7, 200_000]] = np.nan
    return [*found, (found[-6][0], odd, None)]


def said(diffs: list[Diff]) -> list[str]:
    return [repr(diff.as_json()) + str(diff.profile) for diff in diffs]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "PIECE", 10_000)


@pytest.mark.usefixtures("small_pieces")
def test_many_pieces_are_one_pair() -> None:
    for (ref, cand, how), diff in zip(sides(), measure_many(sides(), compiled=True), strict=True):
        if ref.size and ref.dtype.name == "float32":
            check(diff, ref, cand, how or Tolerance(1e-5, 1.3e-6))


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("cores", [1, 2, 7])
def test_numbers_do_not_depend_on_how_many_cores_there_are(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = said(measure_many(sides(), compiled=True))
    monkeypatch.setattr(scheduler, "cores", lambda: cores)
    assert said(measure_many(sides(), compiled=True)) == before


def test_numbers_do_not_depend_on_what_was_measured_with_them() -> None:
    together = said(measure_many(sides(), compiled=True))
    assert together == [said(measure_many([one], compiled=True))[0] for one in sides()]
