"""Tables of rotary positions: base, scaling, positions and precision are told apart."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tensordiff.compare.comparer import Comparer
from tensordiff.compare.hint import Hint
from tensordiff.compare.hint.row_hint import hint_for_row
from tensordiff.dump.dtypes import Array
from tests.making import held, numbers, pairs

FREQUENCIES = 1e4 ** (-np.arange(8) / 8)
POSITIONS = np.arange(32)[None]


def side(angles: Array, positions: Array = POSITIONS, size: float = 1.0) -> dict[str, Array]:
    whole = np.concatenate((angles, angles), -1).astype(np.float64)
    return {
        "rotary_emb-input_position_ids": positions,
        "rotary_emb-output_0": (size * np.cos(whole)).astype(np.float32),
        "rotary_emb-output_1": (size * np.sin(whole)).astype(np.float32),
    }


def told(candidate: dict[str, Array], reference: dict[str, Array] | None = None) -> Hint | None:
    reference = reference or side(POSITIONS[..., None] * FREQUENCIES)
    found = list(pairs(reference, candidate))
    row = next(r for r in Comparer().rows(found) if r.pair.reference.name == "rotary_emb-output_0")
    return hint_for_row(row, found, held(reference))


def test_another_base_is_named() -> None:
    found = told(side(POSITIONS[..., None] * 1e6 ** (-np.arange(8) / 8)))
    assert found is not None
    assert found.kind == "rope_theta"
    assert found.evidence["candidate"] == pytest.approx(1e6, rel=0.05)
    assert found.evidence["reference"] == pytest.approx(1e4, rel=0.05)


def test_a_linear_scaling_and_an_attention_factor_are_scalings() -> None:
    linear, factor = (
        told(side(POSITIONS[..., None] * FREQUENCIES / 4)),
        told(side(POSITIONS[..., None] * FREQUENCIES, size=1.2)),
    )
    assert linear is not None
    assert factor is not None
    assert (linear.kind, factor.kind) == ("rope_scaling", "rope_scaling")
    assert "0.25 times" in linear.sentence


def test_low_frequencies_that_only_one_side_scales_are_a_scaling() -> None:
    scaled = FREQUENCIES * np.where(np.arange(8) < 3, 1.0, 1 / 8)
    found = told(side(POSITIONS[..., None] * FREQUENCIES), side(POSITIONS[..., None] * scaled))
    assert found is not None
    assert found.kind == "rope_scaling"
    assert "of the candidate are not scaled" in found.sentence


def test_positions_further_on_are_an_offset_in_the_rows_that_have_it() -> None:
    both = np.repeat(POSITIONS, 2, 0)
    moved = both + np.array([[0], [5]])
    found = told(side(moved[..., None] * FREQUENCIES, both), side(both[..., None] * FREQUENCIES, both))
    assert found is not None
    assert (found.kind, found.evidence["rows"], found.evidence["offsets"]) == ("position_offset", [1], [5])


def test_angles_rounded_to_bfloat16_are_a_matter_of_precision() -> None:
    far = POSITIONS + 200
    rounded = far[..., None].astype(ml_dtypes.bfloat16) * FREQUENCIES.astype(ml_dtypes.bfloat16)
    found = told(side(rounded.astype(np.float64), far), side(far[..., None] * FREQUENCIES, far))
    assert found is not None
    assert (found.kind, found.evidence["type"]) == ("rope_precision", "bfloat16")


def test_a_table_of_another_width_is_another_share_of_the_head() -> None:
    found = told(side(POSITIONS[..., None] * FREQUENCIES[:4]))
    assert found is not None
    assert (found.kind, found.evidence["candidate"], found.evidence["reference"]) == ("rope_partial", 8, 16)


def test_angles_that_follow_no_frequencies_get_no_name() -> None:
    found = told(side(np.cumsum(np.abs(numbers(1, 32, 8)), 1)))
    assert found is None or not found.kind.startswith(("rope", "position"))
