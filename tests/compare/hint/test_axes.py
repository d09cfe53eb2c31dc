"""Axes that a rule moved: a hint calls them what they are in the reference's dump."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tensordiff.align.match import AlignmentPlan, Pair, align
from tensordiff.align.rules.tables import MapRule
from tensordiff.compare.comparer import Comparer
from tensordiff.compare.hint.axes import as_dumped
from tensordiff.compare.hint.row_hint import hint_for_row
from tensordiff.dump.dtypes import Array
from tests.making import held, numbers

X, Y = numbers(2, 7, 32), numbers(2, 7, 32, seed=1)


def moved(reference: dict[str, Array], candidate: dict[str, Array], view: str = "permute({}, 1, 0, 2)") -> list[Pair]:
    """Pairs of two dumps by maps that move the axes of the reference."""
    sides = held(reference), held(candidate)
    maps = tuple(MapRule(view.format(name), name) for name in reference)
    plan = replace(AlignmentPlan.for_dumps(*sides), maps=maps)
    return list(align(*sides, plan).pairs)


def tokens_first(array: Array) -> Array:
    return np.ascontiguousarray(array.swapaxes(0, 1))


def test_tokens_that_stand_first_are_no_rows_of_a_batch() -> None:
    wrong = Y + np.float32(0.1) * numbers(2, 7, 32, seed=2)
    wrong[:, 0] = Y[:, 0]
    reference = {"attn-input_0": X, "attn-output": Y}
    made = moved(reference, {"attn-input_0": tokens_first(X), "attn-output": tokens_first(wrong)})
    rows = list(Comparer().rows(made))
    found = hint_for_row(rows[-1], made, held(reference))
    assert rows[-1].verdict.name == "diverges"
    assert found is not None and found.kind == "all_but_first"
    assert "every token but the first" in found.sentence


@pytest.mark.parametrize(
    ("view", "laid_out"),
    [
        ("permute({}, 1, 0, 2)", tokens_first(X)),
        ("transpose({}, 0, 1)", tokens_first(X)),
        ("permute({}, 2, 0, 1)", np.moveaxis(X, 2, 0)),
        ("permute({}, 2, 0, 1)", np.moveaxis(X, 2, 0).reshape(32, 14)),
    ],
)
def test_the_candidate_is_seen_as_the_reference_was_dumped(view: str, laid_out: Array) -> None:
    pair = as_dumped(moved({"a": X}, {"a": laid_out}, view)[0])
    assert pair.reference.spec.shape == X.shape
    np.testing.assert_array_equal(pair.candidate.read(), pair.reference.read())


def test_other_views_stay() -> None:
    pair = moved({"a": X}, {"a": X.reshape(2, 7, 4, 8)}, "heads({}, 4)")[0]
    assert as_dumped(pair) is pair
