"""A dump of functions, as msprobe's L1 has, against one of modules: calls are counted through the whole model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Dump
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.align.learn.model_runs import Run

BLOCKS, TOKENS, HIDDEN = 5, 7, 24


@dataclass
class Twice:
    """Writes a run twice: as modules, and as the functions that these call."""

    modules: Run = field(default_factory=Run)
    functions: Run = field(default_factory=Run)
    calls: Counter[str] = field(default_factory=Counter)
    unseen: frozenset[tuple[str, int]] = frozenset()
    """Calls that were not dumped."""

    def call(self, function: str, given: Mapping[str, Array], made: Array) -> Array:
        self.calls[function] += 1
        number = self.calls[function]
        if (function, number) not in self.unseen:
            name = function if number == 1 else f"{function}({number})"
            for port, value in (*given.items(), ("output", made)):
                self.functions.see(name, port, value)
        return made

    def module(self, name: str, function: str, given: Array, weight: Array, made: Array) -> Array:
        self.modules.layer(name, given, made)
        return self.call(function, {"input_0": given, "input_1": weight}, made)


def twice(
    wrong_at: int | None = None, *, unseen: frozenset[tuple[str, int]] = frozenset(), scales: bool = False
) -> tuple[Dump, Dump]:
    """One run, as modules and as functions; a norm may be wrong: it is computed by other functions, and otherwise."""
    rng = np.random.default_rng(3)

    def weight(*shape: int) -> Array:
        return np.asarray(rng.standard_normal(shape) / np.sqrt(shape[0]), np.float32)

    def norm(name: str, x: Array, *, is_wrong: bool) -> Array:
        scale = np.asarray(1 + 0.3 * weight(HIDDEN), np.float32)
        if not is_wrong:
            centred = x - x.mean(-1, keepdims=True)
            return run.module(name, "Functional.layer_norm", x, scale, centred / centred.std(-1, keepdims=True) * scale)
        if scales:
            run.call("Tensor.__mul__", {"input_0": x, "input_1": scale}, x * scale)
        root = np.sqrt((x**2).mean(-1, keepdims=True)) * 0.7
        bare = run.call("Tensor.__truediv__", {"input_0": x, "input_1": root}, x / root)
        run.modules.layer(name, x, made := bare * scale)
        return run.call("Tensor.__mul__", {"input_0": bare, "input_1": scale}, made)

    def half(name: str, x: Array, *, is_wrong: bool) -> Array:
        normed = norm(f"{name}.norm", x, is_wrong=is_wrong)
        up, down = weight(HIDDEN, 40), weight(40, HIDDEN)
        wide = run.module(f"{name}.up", "Functional.linear", normed, up, normed @ up)
        bent = run.module(f"{name}.act", "Functional.gelu", wide, wide[..., :1], np.tanh(wide) * wide)
        out = run.module(f"{name}.down", "Functional.linear", bent, down, bent @ down)
        return run.call("Tensor.__add__", {"input_0": out, "input_1": x}, out + x)

    run = Twice(unseen=unseen)
    table = weight(TOKENS, HIDDEN) * 9
    x = run.module("embed", "Functional.embedding", table[None, :, :3], table, table[None])
    for i in range(BLOCKS):
        run.modules.see(f"layers.{i}", "input_0", x)
        middle = half(f"layers.{i}.first", x, is_wrong=False)
        x = half(f"layers.{i}.second", middle, is_wrong=i == wrong_at)
        run.modules.see(f"layers.{i}", "output", x)
    head = weight(HIDDEN, 50)
    run.module("head", "Functional.linear", x, head, x @ head)
    return run.modules.dump(), run.functions.dump()


def session(reference: Dump, candidate: Dump) -> Session:
    return Session.of_dumps(Request(Path("a"), Path("b")), reference, candidate)


def test_functions_are_paired_with_the_modules_that_call_them() -> None:
    modules, functions = twice()
    opened = session(modules, functions)
    rows = list(opened.rows())
    assert opened.outcome(rows).verdict == "agrees"
    paired = {(row.pair.reference.name, row.pair.candidate.name) for row in rows}
    outputs = {e.name for e in modules.entries if not e.is_input}
    assert {ours for ours, _ in paired} >= outputs
    assert ("layers.3-output", "Tensor.__add__(8)-output") in paired


@pytest.mark.parametrize("block", range(BLOCKS - 1))
def test_a_norm_that_calls_other_functions_is_the_culprit(block: int) -> None:
    modules, _ = twice()
    opened = session(modules, twice(block)[1])
    culprit = opened.outcome(opened.rows()).culprit
    assert culprit is not None and culprit.pair.reference.layer == f"layers.{block}.second.norm"


def test_two_tensors_that_both_sides_have_are_no_pair_because_they_come_from_one_input() -> None:
    """The blocks' own sums were not dumped; the sum within is given the block's input, and gives something else."""
    modules, functions = twice(unseen=frozenset(("Tensor.__add__", 2 * i + 2) for i in range(BLOCKS)))
    opened = session(modules, functions)
    rows = list(opened.rows())
    assert opened.outcome(rows).culprit is None
    assert {row.verdict.name for row in rows} == {"agrees"}


def test_a_weight_is_no_token_of_what_another_call_of_a_function_was_given() -> None:
    """A wrong norm multiplies by its weight; its own product is matched, and the weight has the shape of a token."""
    modules, _ = twice()
    opened = session(modules, twice(1, scales=True)[1])
    assert not [row.pair.reference.name for row in opened.rows() if "last_token" in row.pair.reference.name]
