"""Attention computed anew: what the candidate did otherwise is told, and nothing is said of what cannot be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tensordiff.compare.comparer import Comparer
from tensordiff.compare.hint import Hint
from tensordiff.compare.hint.row_hint import hint_for_row
from tensordiff.dump.dtypes import Array
from tests.making import held, numbers, pairs

HEADS, SIZE, TOKENS = 4, 16, 12
POSITIONS = np.arange(TOKENS)
Turn = Callable[[Array], Array]


def table(theta: float = 1e4, positions: Array = POSITIONS) -> tuple[Array, Array]:
    angles = positions[:, None] * theta ** (-np.arange(SIZE // 2) / (SIZE // 2))
    whole = np.concatenate((angles, angles), -1)[None]
    return np.cos(whole).astype(np.float32), np.sin(whole).astype(np.float32)


def rotated(x: Array) -> Array:
    cos, sin = table()
    half = np.concatenate((-x[..., SIZE // 2 :], x[..., : SIZE // 2]), -1)
    return np.asarray(x * cos + half * sin)


def nothing(x: Array) -> Array:
    return x


def attended(
    turn: Turn = rotated, scale: float = SIZE**-0.5, far: int = TOKENS, ahead: int = 0
) -> tuple[dict[str, Array], Array, Array]:
    """The parts, what comes out, and the weights."""
    parts = {name: numbers(1, TOKENS, HEADS * SIZE, seed=k) for k, name in enumerate(("q_proj", "k_proj", "v_proj"))}
    q, k, v = (side.reshape(1, TOKENS, HEADS, SIZE).swapaxes(1, 2) for side in parts.values())
    away = POSITIONS[:, None] - POSITIONS
    hidden = (away < -ahead) | (away >= far)
    scores = np.where(hidden, -np.inf, turn(q) @ turn(k).swapaxes(-1, -2) * scale)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    made = (weights @ v).swapaxes(1, 2).reshape(1, TOKENS, -1)
    return parts, made.astype(np.float32), weights.astype(np.float32)


def side(with_weights: bool, **changed: object) -> dict[str, Array]:
    parts, made, weights = attended(**changed)  # type: ignore[arg-type]
    cos, sin = table()
    mask = np.where(POSITIONS[:, None] < POSITIONS, np.finfo(np.float32).min, 0.0).astype(np.float32)[None, None]
    tensors: dict[str, Array] = {
        "attn-input_position_embeddings_0": cos,
        "attn-input_position_embeddings_1": sin,
        "attn-input_attention_mask": mask,
    }
    tensors |= {f"attn.{name}-output": values for name, values in parts.items()}
    tensors |= {"attn.o_proj-input_0": made, "attn.o_proj-output": made @ numbers(64, 64, seed=9)}
    tensors |= {"attn-output_0": tensors["attn.o_proj-output"]}
    return tensors | ({"attn-output_1": weights} if with_weights else {})


def told(with_weights: bool = False, **changed: object) -> Hint | None:
    reference, candidate = side(with_weights), side(with_weights, **changed)
    found = list(pairs(reference, candidate))
    rows = list(Comparer().rows(found))
    row = next(row for row in rows if row.pair.reference.name == "attn-output_0")
    return hint_for_row(row, found, held(reference))


def interleaved(x: Array) -> Array:
    cos, sin = (side[..., : SIZE // 2] for side in table())
    one, other = x[..., 0::2], x[..., 1::2]
    return np.stack((one * cos - other * sin, other * cos + one * sin), -1).reshape(x.shape)


@pytest.mark.parametrize(
    ("turn", "kind"),
    [
        (nothing, "rope_missing"),
        (lambda x: rotated(rotated(x)), "rope_twice"),
        (interleaved, "rope_order"),
    ],
)
def test_another_rotation_is_told_without_weights(turn: Turn, kind: str) -> None:
    found = told(turn=turn)
    assert found is not None
    assert found.kind == kind


@pytest.mark.parametrize("with_weights", [False, True])
def test_another_scale_of_scores_is_told(with_weights: bool) -> None:
    found = told(with_weights, scale=2 * SIZE**-0.5)
    assert found is not None
    assert found.kind == "score_scale"
    if with_weights:
        assert found.evidence["factor"] == pytest.approx(2, rel=1e-3)


def test_masks_are_told_by_what_the_weights_show() -> None:
    window, ahead = told(with_weights=True, far=5), told(with_weights=True, ahead=TOKENS)
    assert window is not None
    assert ahead is not None
    assert (window.kind, window.evidence["what"]) == ("mask", "window")
    assert "sees 5 keys back, in the reference 12 (all there are)" in window.sentence
    assert (ahead.kind, ahead.evidence["what"]) == ("mask", "ahead")


def test_a_rotation_that_is_not_known_gets_no_such_name() -> None:
    found = told(turn=lambda x: rotated(x) + 0.3 * x**2)
    assert found is None or not found.kind.startswith(("rope", "score", "mask"))


def test_weights_that_leave_room_for_a_sink_are_told() -> None:
    reference, candidate = side(True), side(True)
    reference["attn-output_1"] = (0.7 * reference["attn-output_1"]).astype(np.float32)
    reference["attn.o_proj-input_0"] = (0.7 * reference["attn.o_proj-input_0"] + 0.0).astype(np.float32)
    reference["attn-output_0"] = (0.7 * reference["attn-output_0"]).astype(np.float32)
    found = list(pairs(reference, candidate))
    row = next(r for r in Comparer().rows(found) if r.pair.reference.name == "attn-output_0")
    hint = hint_for_row(row, found, held(reference))
    assert hint is not None
    assert hint.kind == "attention_sinks"


@pytest.mark.parametrize(
    "odd",
    [
        {"attn-input_position_embeddings_0": numbers(3, 1, TOKENS, SIZE)},  # a table each for time, height and width
        {"attn-input_position_embeddings_0": numbers(1, TOKENS + 4, SIZE)},
        {"attn-input_position_embeddings_1": numbers(1, TOKENS, 3)},  # fewer sines than cosines
        {"attn-input_attention_mask": np.zeros((3, 1, TOKENS, TOKENS), np.float32)},
        {"attn-input_attention_mask": np.zeros((1, 3, TOKENS, TOKENS), np.float32)},
        {"attn.k_proj-output": numbers(1, TOKENS, 3 * SIZE), "attn.v_proj-output": numbers(1, TOKENS, 3 * SIZE)},
        {"attn.k_proj-output": numbers(1, TOKENS, 8 * SIZE), "attn.v_proj-output": numbers(1, TOKENS, 8 * SIZE)},
        {"attn.q_proj-output": numbers(1, TOKENS, 2 * HEADS * SIZE)},  # a gate beside the queries
        {"attn.q_proj-output": numbers(TOKENS, HEADS * SIZE)},
        {
            "attn.k_proj-output": numbers(3, TOKENS, HEADS * SIZE),
            "attn.v_proj-output": numbers(3, TOKENS, HEADS * SIZE),
        },
    ],
)
def test_parts_that_do_not_fit_together_are_not_computed_with(odd: dict[str, Array]) -> None:
    """Of Qwen2-VL the tables have three rows for a batch of one: the comparison ended in a traceback."""
    if "attn-input_position_embeddings_0" in odd:
        odd = odd | {"attn-input_position_embeddings_1": odd["attn-input_position_embeddings_0"]}
    reference, candidate = side(False) | odd, side(False, scale=1.0) | odd
    found = list(pairs(reference, candidate))
    row = next(r for r in Comparer().rows(found) if r.pair.reference.name == "attn-output_0")
    hint = hint_for_row(row, found, held(reference))
    assert hint is None or not hint.kind.startswith(("rope", "score", "mask"))
