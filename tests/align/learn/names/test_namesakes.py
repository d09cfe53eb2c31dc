"""Layers that have the name of another tensor: they are not compared, and that is said; an error stays an error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Dump
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.align.learn.test_learner import arrays, noise


def compared(reference: Dump, candidate: Dump) -> Session:
    return Session.of_dumps(Request(Path("a"), Path("b")), reference, candidate)


def encoder(pooler: dict[str, Array]) -> Dump:
    """A few layers, and a pooler over what they give."""
    x = noise(1, 1, 9, 32)
    values: dict[str, Array] = {}
    for k in range(4):
        made = np.tanh(x @ noise(2 + k, 32, 32) / 4)
        values |= {f"encoder.{k}.dense-input_0": x, f"encoder.{k}.dense-output": made}
        x = made
    return arrays(**values, **pooler)


HIDDEN = encoder({}).entries[-1].read()
DENSE = HIDDEN[:, 0] @ noise(9, 32, 32)
POOLER = {
    "pooler-input_0": HIDDEN,
    "pooler.dense-input_0": HIDDEN[:, 0],
    "pooler.dense-output": DENSE,
    "pooler-output": np.tanh(DENSE),
}


@pytest.mark.parametrize("pooled", ["first", "mean", "normalized mean"])
def test_a_pooler_that_only_pools_is_not_compared_with_one_that_has_weights(pooled: str) -> None:
    made = HIDDEN[:, 0] if pooled == "first" else HIDDEN.mean(1)
    made = made / np.linalg.norm(made) if pooled == "normalized mean" else made
    session = compared(encoder(POOLER), encoder({"pooler-input_0": HIDDEN[0], "pooler-output": made[0]}))
    outcome = session.outcome(session.rows())
    assert outcome.culprit is None
    assert not any(pair.reference.name == pair.candidate.name == "pooler-output" for pair in session.alignment.pairs)
    [said] = session.dumps.learned.overruled()
    assert said.startswith("pooler is not compared with pooler: it is the ")
    assert outcome.exit_status == 2  # a port that forgot the dense layer looks the same
    assert any(doubt.startswith(said) for doubt in outcome.doubts)


def test_a_pooler_with_wrong_weights_stays_the_culprit() -> None:
    wrong = {"pooler-input_0": HIDDEN, "pooler-output": np.tanh(HIDDEN[:, 0] @ noise(10, 32, 32))}
    session = compared(encoder(POOLER), encoder(wrong))
    culprit = session.outcome(session.rows()).culprit
    assert culprit is not None and culprit.pair.candidate.name == "pooler-output"


def test_a_pooler_from_which_more_is_computed_stays_the_culprit() -> None:
    """A port that forgot the dense layer: what is computed from the pooler is wrong as well."""
    head = noise(11, 32, 5)
    more = {"classifier-input_0": POOLER["pooler-output"], "classifier-output": POOLER["pooler-output"] @ head}
    forgot = {"pooler-input_0": HIDDEN, "pooler-output": HIDDEN[:, 0]}
    forgot |= {"classifier-input_0": HIDDEN[:, 0], "classifier-output": HIDDEN[:, 0] @ head}
    session = compared(encoder(POOLER | more), encoder(forgot))
    culprit = session.outcome(session.rows()).culprit
    assert culprit is not None and culprit.pair.candidate.name == "pooler-output"


def ending(error: float) -> tuple[Dump, Dump]:
    """A last norm, which the candidate also gives before its weight, under the name of the whole one."""
    reference: dict[str, Array] = {}
    candidate: dict[str, Array] = {}
    x = y = noise(1, 1, 9, 64)
    for k in range(3):
        weight = noise(2 + k, 64, 64) / 8
        x, y = x + np.tanh(x @ weight), y + np.tanh(y @ weight) + error * noise(20 + k, 1, 9, 64)
        reference[f"layers.{k}-output"], candidate[f"blocks.{k}.out-output"] = x, y
    scale = 1 + 0.2 * noise(30, 64)
    normed = [one / np.sqrt((one**2).mean(-1, keepdims=True)) for one in (x, y)]
    reference |= {"norm-output": normed[0] * scale, "head-output": normed[0] * scale @ noise(31, 64, 80)}
    candidate |= {"norm-output": normed[1], "result-output": normed[1] * scale}
    candidate["logits-output"] = normed[1] * scale @ noise(31, 64, 80)
    return arrays(**reference), arrays(**candidate)


@pytest.mark.parametrize("error", [0.003, 0.02])
def test_a_norm_before_its_weight_is_not_the_norm_though_it_has_the_name(error: float) -> None:
    session = compared(*ending(error))
    named = {pair.candidate.name: pair.reference.name for pair in session.alignment.pairs}
    assert "norm-output" not in named
    assert named.get("result-output", "norm-output") == "norm-output"
    assert [one.layer for one in session.dumps.learned.namesakes] == ["norm"]


def test_an_error_in_a_norm_is_not_taken_for_another_tensor() -> None:
    """What comes after is as wrong as the norm; what is nearer comes before it."""
    reference, candidate = ending(0.0)
    right = next(entry for entry in candidate.entries if entry.layer == "result").read()
    wrong = right + 0.5 * noise(40, *right.shape)
    values = {entry.name: entry.read() for entry in candidate.entries if not entry.layer.startswith(("norm", "result"))}
    values |= {"before-output": right * 0.99, "norm-output": wrong, "after-output": wrong * 1.01}
    session = compared(reference, arrays(**values))
    assert not session.dumps.learned.namesakes
    assert any(pair.candidate.name == "norm-output" for pair in session.alignment.pairs)
