"""Hints of weights where nothing, or little, may be said: what is not proven has no name."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tensordiff.dump import open_dump
from tensordiff.weights.comparison import ParameterRow, WeightsOutcome, compare_weights
from tensordiff.weights.hint.catalogue import hint_for
from tensordiff.weights.hint.orders import match_rows
from tensordiff.weights.hint.pair_tables import ParameterFinder, read_tables
from tensordiff.weights.pairing import pair_parameters
from tests.weights.making import Weights, llama, write_npz

Values = NDArray[Any]
UP, NORM = "model.layers.1.mlp.up_proj.weight", "model.norm.weight"


def random(seed: int = 5) -> np.random.Generator:
    return np.random.default_rng(seed)


def outcome(tmp_path: Path, reference: Weights, candidate: Weights) -> WeightsOutcome:
    sides = write_npz(reference, tmp_path / "a.npz"), write_npz(candidate, tmp_path / "b.npz")
    return compare_weights(open_dump(sides[0]), open_dump(sides[1]))


def changed(tmp_path: Path, name: str, change: Callable[[Values], Values]) -> ParameterRow:
    weights = llama(77)
    found = outcome(tmp_path, weights, weights | {name: change(weights[name].copy())})
    assert len(found.findings) == 1
    return found.findings[0]


SILENT: dict[str, tuple[str, Callable[[Values], Values]]] = {
    "a fine-tuned parameter": (UP, lambda v: (v + 0.003 * random().standard_normal(v.shape)).astype("f4")),
    "relative noise": (UP, lambda v: (v * (1 + 0.01 * random().standard_normal(v.shape))).astype("f4")),
    "permuted and scaled": (UP, lambda v: (2 * v[random().permutation(len(v))]).astype("f4")),
    "permuted and noisy": (
        UP,
        lambda v: (v[random().permutation(len(v))] + 1e-3 * random().standard_normal(v.shape)).astype("f4"),
    ),
    "rows repeated": (UP, lambda v: np.repeat(v[:80], 2, 0)),
    "running sums": (UP, lambda v: np.cumsum(v, 0).astype("f4")),
    "a noisy norm": (NORM, lambda v: (v + 0.01 * random().standard_normal(v.shape)).astype("f4")),
    "rows moved by other numbers of places": (UP, lambda v: v[np.arange(160) // 2 + np.arange(160) % 3]),
    "another shape": (UP, lambda v: v.reshape(80, 128)),
}


@pytest.mark.parametrize("name", SILENT)
def test_what_is_not_proven_has_no_name(tmp_path: Path, name: str) -> None:
    row = changed(tmp_path, *SILENT[name])
    assert row.hint is None, row.sentence


SAID: dict[str, tuple[str, Callable[[Values], Values], str, str]] = {
    "another checkpoint": (UP, lambda v: (0.04 * random().standard_t(6, v.shape)).astype("f4"),
                           "other weights", "nothing in common"),
    "half of it": (UP, lambda v: np.concatenate([v[:80], (0.04 * random().standard_t(6, v[80:].shape)).astype("f4")]),
                   "slice", "rows 80 to 159 of 160 differ"),
    "a constant": (NORM, lambda v: np.full_like(v, 0.5), "not loaded", "0.5 everywhere"),
    "a norm reversed": (NORM, lambda v: v[::-1], "permuted", "reverse order"),
    "last bits": (UP, lambda v: v * (1 + random().choice([-2.0, 0, 2], v.shape) * 2.0**-22).astype("f4"),
                  "last bits", "computed, not copied"),
    "rows cut": (UP, lambda v: v[:100], "truncated", "rows 100 to 159 are left out"),
    "a factor for each row": (UP, lambda v: v * np.linspace(0.5, 2, 160, dtype="f4")[:, None],
                              "scale", "each row has a factor of its own"),
    "a root": (UP, lambda v: (v / np.sqrt(48)).astype("f4"), "scale", "1/√48 times"),
    "a whole factor": (UP, lambda v: v * np.float32(3), "scale", "3 times the reference"),
    "a whole part": (UP, lambda v: v / np.float32(-12), "scale", "-1/12 times the reference"),
    "one row zero": (UP, lambda v: np.concatenate([v[:-1], 0 * v[-1:]]),
                     "slice", "row 159 of 160 is zero, all others are equal: a slice left out"),
    "one row scaled": (UP, lambda v: np.concatenate([v[:-1], 2 * v[-1:]]), "slice", "row 159 of 160 is 2 times the"),
    "one row other": (UP, lambda v: np.concatenate([v[:-1], v[:1] * v[1:2]]), "slice", "row 159 of 160 differs, all"),
    "uniform": (UP, lambda v: random().uniform(-0.125, 0.125, v.shape).astype("f4"), "not loaded", "uniform within"),
    "truncated bfloat16": (UP, lambda v: (v.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32),
                           "cast", "truncated to bfloat16"),
    "rows in blocks": (UP, lambda v: v.reshape(-1, 5, 64)[:, [1, 2, 0, 4, 3]].reshape(v.shape),
                       "permuted", "rows permuted in blocks of 5: 1, 2, 0, 4, 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_what_is_proven_is_said(tmp_path: Path, name: str) -> None:
    parameter, change, kind, words = SAID[name]
    row = changed(tmp_path, parameter, change)
    assert row.hint is not None, row.why
    assert (row.hint.kind, words in row.sentence) == (kind, True), row.sentence


def test_one_element(tmp_path: Path) -> None:
    def change(values: Values) -> Values:
        values[3, 3] = 9
        return values

    assert changed(tmp_path, UP, change).sentence == "1 element differs ([3, 3]), all others are equal"


def test_infinity(tmp_path: Path) -> None:
    def change(values: Values) -> Values:
        values[3, 3] = np.inf
        return values

    assert changed(tmp_path, UP, change).sentence == "NaN or infinite on one side, in 1 of 10240 elements"


ODD: Weights = {
    "a.weight": np.zeros((0, 4), "f4"), "b.weight": np.array(3.0, "f4"), "c.weight": np.ones((1, 1), "f4"),
    "d.bias": np.ones(3, "f4"), "e.weight": np.ones((2, 3, 4, 5), "f4"), "f.weight": np.array([True, False]),
    "g.weight": np.arange(5),
}  # fmt: skip


def test_odd_shapes_and_types(tmp_path: Path) -> None:
    assert {row.verdict for row in outcome(tmp_path, ODD, dict(ODD)).rows} == {"agrees"}
    other: Weights = {name: ~value if value.dtype == bool else value + 1 for name, value in ODD.items()}
    found = outcome(tmp_path, ODD, other)
    assert {row.name for row in found.findings} == {name for name in ODD if name != "a.weight"}


def test_integers_beside_floats_are_unknown_and_not_missing(tmp_path: Path) -> None:
    weights = llama(77)
    found = outcome(tmp_path, weights, weights | {UP: weights[UP].astype(np.int32)})
    assert (found.verdict, found.findings) == ("unknown", ())
    assert "packed" in found.doubts[0]


def test_rows_of_one_value_are_equal_in_any_order(tmp_path: Path) -> None:
    weights = llama(77)
    weights[UP] = np.outer(np.ones(160), weights[UP][0]).astype(np.float32)
    assert outcome(tmp_path, weights, weights | {UP: np.roll(weights[UP], 1, 0)}).verdict == "agrees"


def rows_of(count: int, columns: int = 32) -> Values:
    return (0.02 * random(8).standard_normal((count, columns))).astype("f4")


def sentence_of_table(
    tmp_path: Path, reference: Values, candidate: Values, name: str = "model.embed_tokens.weight"
) -> str:
    other = {"model.norm.weight": rows_of(1, 64)[0]}
    (row,) = outcome(tmp_path, {name: reference} | other, {name: candidate} | other).findings
    return row.sentence


def padded(values: Values, before: int, after: int) -> Values:
    return np.concatenate([np.zeros((before, values.shape[1]), "f4"), values, np.zeros((after, values.shape[1]), "f4")])


SHIFTED: dict[str, tuple[Callable[[Values], Values], str]] = {
    "one row before the first": (lambda v: padded(v, 1, 62),
                                 "rows shifted by -1: rows 1 to 256 hold the reference's 0 to 255"),
    "the first row left out": (lambda v: padded(v[1:], 0, 63),
                               "rows shifted by 1: rows 0 to 255 hold the reference's 1 to 256"),
    "a row put in": (lambda v: np.concatenate([v[:100], np.zeros((1, 32), "f4"), padded(v[100:], 0, 62)]),
                     "rows shifted by -1 from row 100 on: rows 101 to 256 hold the reference's 100 to 255"),
    "a row left out": (lambda v: padded(np.delete(v, 200, 0), 0, 1),
                       "rows shifted by 1 from row 200 on: rows 200 to 255 hold the reference's 201 to 256"),
    "the first half twice": (lambda v: np.concatenate([v[:129], v[:128]]),
                             "rows shifted by -129 from row 129 on: rows 129 to 256 hold the reference's 0 to 127"),
}  # fmt: skip


@pytest.mark.parametrize("name", SHIFTED)
def test_rows_that_moved_from_some_row_on(tmp_path: Path, name: str) -> None:
    change, sentence = SHIFTED[name]
    assert sentence_of_table(tmp_path, rows_of(257), change(rows_of(257))) == sentence


def test_a_vocabulary_with_repeated_rows_that_moved(tmp_path: Path) -> None:
    values = padded(rows_of(257), 0, 15)
    found = sentence_of_table(tmp_path, values, np.roll(values, 1, 0))
    assert found == "rows shifted by -1: rows 1 to 257 hold the reference's 0 to 256"


MANY = 24_000
MANY_ROWS: dict[str, tuple[Callable[[Values], Values], str]] = {
    "rolled": (lambda v: np.roll(v, 1, 0), "rows shifted by -1"),
    "rolled and rounded": (lambda v: np.roll(v, 1, 0).astype("f2"), "rows shifted by -1"),
    "in another order": (lambda v: v[random(2).permutation(MANY)], "rows in another order: the first are "),
    "in blocks": (lambda v: v.reshape(-1, 100, 32)[random(2).permutation(MANY // 100)].reshape(v.shape),
                  "blocks of 100 rows in another order: "),
    "a row left out": (lambda v: padded(v[1:], 0, 1), "rows shifted by 1: rows 0 to 23998 hold"),
    "scaled and in another order": (lambda v: v[random(2).permutation(MANY)] * np.float32(1.5), "rel_l2 "),
}  # fmt: skip


@pytest.mark.parametrize("name", MANY_ROWS)
def test_tables_of_many_rows(tmp_path: Path, name: str) -> None:
    change, sentence = MANY_ROWS[name]
    assert sentence_of_table(tmp_path, rows_of(MANY), change(rows_of(MANY))).startswith(sentence)


def test_rows_of_many_that_are_alike_up_to_noise() -> None:
    """What no rounding makes equal is found by its neighbours in a projection."""
    ref = rows_of(MANY)
    turn = random(2).permutation(MANY)
    cand = ref[turn] * (1 + 1e-4 * random(3).standard_normal(ref.shape)).astype("f4")
    order = match_rows(ref, cand.astype("f4"), 4e-3)
    assert order is not None and np.array_equal(order, turn)


def test_a_hint_takes_a_few_times_the_memory_of_what_it_looks_at(tmp_path: Path) -> None:
    name, shape = "model.embed_tokens.weight", (1 << 14, 256)
    sides = [write_npz({name: random(k).standard_normal(shape).astype("f4")}, tmp_path / f"{k}.npz") for k in (1, 2)]
    pairing = pair_parameters(open_dump(sides[0]), open_dump(sides[1]))
    tables = read_tables(pairing.pairs[0], ParameterFinder(pairing.reference), ParameterFinder(pairing.candidate))
    tracemalloc.start()
    hint = hint_for(tables)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert hint is not None and hint.kind == "not loaded"
    assert peak < 5 * tables.ref.nbytes
