"""Axes that a rule moved: a hint calls them what they are in the reference's dump."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tensordiff.align.match import AlignmentPlan, Pair, align
from tensordiff.align.rules.tables import MapRule
from tensordiff.compare.comparer import Comparer
from tensordiff.compare.hint.axes import DumpedPairs, as_dumped
from tensordiff.compare.hint.row_hint import hint_for_row
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Spec
from tests.making import MemoryTensor, held, numbers

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


class Unplanned(MemoryTensor):
    """A tensor of a layer far away, whose shape no hint should ask for."""

    @property
    def spec(self) -> Spec:
        raise AssertionError("a hint looked at a layer far away")


def test_a_hint_moves_the_axes_of_no_pair_that_it_does_not_look_at() -> None:
    names = [f"{k}.attn-{port}" for k in range(70) for port in ("input_0", "output")]
    made = moved(dict.fromkeys(names, X), dict.fromkeys(names, tokens_first(X)) | {"1.attn-output": tokens_first(Y)})
    row = next(row for row in Comparer().rows(made) if row.verdict.name == "diverges")
    far = made[-1]
    unplanned = replace(far, candidate=far.candidate._replace(stored=Unplanned(X)))
    found = hint_for_row(row, [*made[:-1], unplanned], held(dict.fromkeys(names, X)))
    assert found == hint_for_row(row, made, held(dict.fromkeys(names, X)))


def test_pairs_are_moved_once() -> None:
    pairs = DumpedPairs(moved({"a": X, "b": X}, {"a": tokens_first(X), "b": tokens_first(X)}))
    (one,), (other,) = (list(pairs.where(lambda entry: entry.layer == "b")) for _ in range(2))
    assert one is other is pairs.first(9)[1] and one.reference.spec.shape == X.shape


def test_other_views_stay() -> None:
    pair = moved({"a": X}, {"a": X.reshape(2, 7, 4, 8)}, "heads({}, 4)")[0]
    assert as_dumped(pair) is pair
