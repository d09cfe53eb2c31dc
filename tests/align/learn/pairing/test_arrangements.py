"""Layers that have the ports of others, of which values prove what these mean: a sum, or one part of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Dump
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.align.learn.model_runs import HIDDEN, TOKENS, Run

BLOCKS = 3


def model(
    run: Run,
    *,
    apart: bool,
    wrong_in: int | None = None,
    error: float = 1.0,
    gives_sum: bool = True,
    ignores: Callable[[str], bool] = lambda _: False,
) -> Dump:
    """Blocks of a norm and two projections, and a last norm.

    With ``apart`` a norm is given a result and its residual, and gives their sum, too, if it ``gives_sum``. What
    ``ignores`` says is given a residual that it does not add.
    """
    rng = np.random.default_rng(3)

    def weight(*shape: int) -> Array:
        return np.asarray(rng.standard_normal(shape) / np.sqrt(shape[0]), np.float32)

    def norm(name: str, result: Array, residual: Array) -> tuple[Array, Array]:
        total = result if ignores(name) else result + residual
        for place, value in enumerate([result, residual] if apart else [total]):
            run.see(name, f"input_{place}", value)
        normed = np.tanh(total)
        run.see(name, "output_0" if apart and gives_sum else "output", normed)
        if apart and gives_sum:
            run.see(name, "output_1", total)
        return normed, total

    result, residual = weight(1, TOKENS, HIDDEN), weight(1, TOKENS, HIDDEN)
    result = run.layer("embed", result * 2, result)
    residual = run.layer("places", residual * 3, residual)
    for i in range(BLOCKS):
        normed, residual = norm(f"layers.{i}.norm", result, residual)
        up = normed @ weight(HIDDEN, 32)
        up = run.layer(f"layers.{i}.up", normed, up + (error * np.sin(7 * up) if i == wrong_in else 0))
        result = run.layer(f"layers.{i}.down", up, up @ weight(32, HIDDEN))
    normed, _ = norm("norm", result, residual)
    run.layer("head", normed, normed @ weight(HIDDEN, 40))
    return run.dump()


def renamed(layer: str) -> str:
    """All but what stands in no block has another name."""
    return layer.replace("layers.", "cells.").replace("norm", "unit") if "." in layer else layer


def pairs_of(candidate: Dump, reference: Dump) -> set[tuple[str, str]]:
    session = Session.of_dumps(Request(Path("a"), Path("b")), reference, candidate)
    return {(pair.reference.name, pair.candidate.name) for pair in session.alignment.pairs}


def flat(array: Array) -> Array:
    """Without the batch of one, as vLLM has it."""
    return np.asarray(array[0])


@pytest.mark.parametrize("gives_sum", [True, False])
def test_a_name_does_not_pair_a_sum_with_one_part_of_it(gives_sum: bool) -> None:
    """Of the last norm nothing is equal; those of healthy blocks say what its ports are."""
    candidate = model(Run(renamed, flat), apart=True, wrong_in=BLOCKS - 1, gives_sum=gives_sum)
    pairs = pairs_of(candidate, model(Run(), apart=False))
    assert ("norm-input_0", "norm-input_0") not in pairs
    whole = "flatten(norm-input_0, 0, 1)" if gives_sum else "norm-input_0"
    assert (whole, "sum(norm-input_0, norm-input_1)") in pairs
    assert (("norm-input_0", "norm-output_1") in pairs) == gives_sum
    assert any(ours.startswith("norm-output") and theirs.startswith("norm-output") for ours, theirs in pairs)


@pytest.mark.parametrize(("wrong_in", "error"), [(None, 0.0), (BLOCKS - 1, 1.0), (BLOCKS - 1, 4.0)])
@pytest.mark.parametrize("ignoring", [("norm",), ("norm", "layers.1.norm")])
def test_a_layer_that_ignores_its_residual_keeps_its_name(
    ignoring: tuple[str, ...], wrong_in: int | None, error: float
) -> None:
    """It has the ports of those that add it, and what it is given is nearer to the reference's than the sum."""
    reference = model(Run(), apart=False, ignores=ignoring.__contains__)
    candidate = model(
        Run(renamed, flat), apart=True, wrong_in=wrong_in, error=error, gives_sum=False, ignores=ignoring.__contains__
    )
    pairs = pairs_of(candidate, reference)
    assert ("norm-input_0", "norm-input_0") in pairs
    assert ("layers.0.norm-input_0", "sum(cells.0.unit-input_0, cells.0.unit-input_1)") in pairs
    assert not any(theirs.startswith("sum(norm-") for _, theirs in pairs)


def test_values_that_are_not_finite_prove_nothing_and_warn_of_nothing() -> None:
    candidate = model(Run(renamed, flat), apart=True, wrong_in=BLOCKS - 1, gives_sum=False)
    for one in candidate.entries:
        if one.name == "norm-input_0":
            one.read()[0, 3] = np.inf
    assert pairs_of(candidate, model(Run(), apart=False))


def test_nothing_follows_where_values_prove_both() -> None:
    """Of the same ports one norm adds the two and another does not: of a third nothing is known, and its name holds."""
    reference = model(Run(), apart=False, ignores="layers.1.norm".__eq__)
    other = Run(renamed, flat)
    candidate = model(other, apart=True, wrong_in=BLOCKS - 1, gives_sum=False, ignores="layers.1.norm".__eq__)
    pairs = pairs_of(candidate, reference)
    assert ("layers.1.norm-input_0", "cells.1.unit-input_0") in pairs
    assert ("norm-input_0", "norm-input_0") in pairs
