"""A layer that multiplies an error where no other of its kind does; and inputs that no layer is to blame for."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tensordiff.compare.comparer import Comparer
from tensordiff.dump.dtypes import Array
from tensordiff.search.outcome import Outcome
from tests.making import numbers, pairs


def rounded(x: Array, error: float, seed: int) -> Array:
    return (x * (1 + error * numbers(*x.shape, seed=seed))).astype(ml_dtypes.bfloat16)


def run(errors: list[float]) -> Outcome:
    """Norms that were all given 1.4e-2, and give these errors, in a run that has had larger ones."""
    x = numbers(24, 64, seed=50)
    reference = {"embed-output": x.astype(ml_dtypes.bfloat16)}
    candidate = {"embed-output": rounded(x, 0.026, 51)}
    for k, error in enumerate(errors):
        for port, size in (("input_0", 0.014), ("output", error)):
            name, x = f"layers.{k}.input_layernorm-{port}", numbers(24, 64, seed=k)
            reference[name] = x.astype(ml_dtypes.bfloat16)
            candidate[name] = rounded(x, size, 100 + k)
    return Outcome(tuple(Comparer().rows(pairs(reference, candidate))))


def test_one_norm_that_multiplies_is_named_among_many_that_do_not() -> None:
    found = run([0.014, 0.015, 0.013, 0.055, 0.014, 0.016]).culprit
    assert found is None  # 3.9 times
    found = run([0.014, 0.015, 0.013, 0.07, 0.014, 0.016]).culprit
    assert found is not None
    assert found.pair.reference.layer == "layers.3.input_layernorm"
    assert "others of its kind" in found.verdict.why


@pytest.mark.parametrize("errors", [[0.014, 0.07, 0.014], [0.014, 0.07, 0.06, 0.05, 0.07, 0.014]])
def test_few_peers_or_several_that_multiply_say_nothing(errors: list[float]) -> None:
    named = run(errors).culprit
    assert named is None or "others of its kind" not in named.verdict.why


def test_an_input_that_no_layer_gave_wrong_is_said_to_lie_between_layers() -> None:
    a, b = numbers(24, 64), numbers(24, 64, seed=1)
    reference = {"first-output": a, "second-input_0": a, "second-output": b}
    candidate = {"first-output": a, "second-input_0": np.roll(a, 1, 0), "second-output": b}
    outcome = Outcome(tuple(Comparer().rows(pairs(reference, candidate))))
    assert outcome.exit_status == 1
    assert outcome.culprit is not None
    assert outcome.culprit.is_input
    assert "the fault lies between first and it" in outcome.culprit.verdict.why
