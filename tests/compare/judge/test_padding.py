"""Masks of padding: whose tokens they hide."""

from __future__ import annotations

import numpy as np
import pytest

from tensordiff.dump.dtypes import Array
from tests.compare.test_comparer import rows
from tests.making import nudged, numbers

STATES = numbers(2, 8, 64)
MASK = np.ones((2, 8), np.int64)
MASK[1, 4:] = 0
IDS = np.arange(16).reshape(2, 8)


def with_other_padding(states: Array) -> Array:
    found = states.copy()
    found[1, 4:] = 7
    return found


def verdicts(layer: str, **inputs: Array) -> set[str]:
    """Of two outputs that differ only where the mask of an encoder hides tokens."""
    given = {f"model-input_{name}": values for name, values in inputs.items()}
    right = {"model.embed": STATES, f"model.{layer}": 2 * STATES, "model": 3 * STATES}
    reference: dict[str, Array | None] = {**given, **right}
    wrong = {f"model.{layer}": with_other_padding(2 * STATES), "model": with_other_padding(3 * STATES)}
    return {row.verdict.name for row in rows(reference, {**reference, **wrong})}


def test_padding_is_nobodys_business() -> None:
    assert verdicts("layers.0", attention_mask=MASK) == {"agrees"}
    assert verdicts("decoder.layers.0", attention_mask=MASK) == {"agrees"}  # of a model that has no encoder


@pytest.mark.parametrize(
    "inputs",
    [
        {"encoder_attention_mask": MASK},
        {"attention_mask": MASK, "decoder_input_ids": IDS},
        {"decoder_input_ids": IDS, "attention_mask": MASK},
        {"attention_mask": MASK, "decoder_input_ids": IDS, "decoder_attention_mask": np.ones_like(MASK)},
    ],
)
def test_the_mask_of_an_encoder_hides_nothing_of_its_decoder(inputs: dict[str, Array]) -> None:
    assert verdicts("decoder.layers.0", **inputs) & {"diverges", "drifts"}


def test_each_side_of_such_a_model_has_a_mask_of_its_own() -> None:
    decoder = {"decoder_input_ids": IDS, "decoder_attention_mask": MASK}
    assert verdicts("encoder.layers.0", attention_mask=MASK, **decoder) == {"agrees"}
    assert verdicts("decoder.layers.0", attention_mask=MASK[::-1], **decoder) == {"agrees"}


@pytest.mark.parametrize(("error", "hidden"), [(2e-5, True), (5e-5, False)])
def test_padding_that_no_mask_tells_is_seen_though_one_other_token_is_off_by_more_than_the_whole_may_be(
    error: float, hidden: bool
) -> None:
    """Of float32: in one row four tokens are something else altogether, as at its end padding is."""
    wrong = with_other_padding(STATES)
    wrong[0, 5] = nudged(STATES[0, 5], error)
    [row] = rows({"layers.0.self_attn.o_proj": STATES}, {"layers.0.self_attn.o_proj": wrong})
    assert (row.verdict.name != "diverges") == hidden
    assert ("where padding may be" in row.verdict.why) == hidden


def test_several_streams_of_one_batch_have_the_same_padding() -> None:
    """Of Gemma 3n: [streams, batch, tokens, channels]."""
    streams = numbers(3, 2, 8, 64)
    wrong = streams.copy()
    wrong[:, 1, 4:] = 7
    given: dict[str, Array | None] = {"model-input_attention_mask": MASK, "model.embed": STATES}
    found = rows({**given, "model.layers.0": streams}, {**given, "model.layers.0": wrong})
    assert {row.verdict.name for row in found} == {"agrees"}
    wrong[1, 1, 2] = nudged(streams[1, 1, 2], 0.1)
    found = rows({**given, "model.layers.0": streams}, {**given, "model.layers.0": wrong})
    assert found[-1].verdict.name == "diverges"
