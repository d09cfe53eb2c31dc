"""Norms that a candidate shows before their weight, too: which is which, up to the first error and beyond it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Dump
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.align.learn.test_learner import arrays, noise

WIDTH, BLOCKS = 64, 3


def normed(x: Array, *, centers: bool) -> Array:
    x = x - x.mean(-1, keepdims=True) if centers else x
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True)), np.float32)


def weighted(x: Array, seed: int, *, centers: bool) -> Array:
    return np.asarray(x * (1 + 0.1 * noise(seed, WIDTH)) + (0.1 * noise(seed + 1, WIDTH) if centers else 0), np.float32)


def reference(*, centers: bool = False) -> Dump:
    """A few blocks of a norm and a layer, and a norm after them."""
    x = noise(1, 1, 9, WIDTH)
    values: dict[str, Array] = {"embed-output": x}
    for k in range(BLOCKS):
        norm = weighted(normed(x, centers=centers), 10 + 2 * k, centers=centers)
        made = np.tanh(norm @ noise(30 + k, WIDTH, WIDTH) / 8)
        x = x + made
        values |= {f"layers.{k}.norm-output": norm, f"layers.{k}.mlp-output": made, f"layers.{k}-output": x}
    return arrays(**values, **{"norm-output": weighted(normed(x, centers=centers), 50, centers=centers)})


def shown_twice(right: Dump, *, wrong_from: str, centers: bool = False) -> Dump:
    """The same under other names, each norm before its weight as well, with noise in all from one tensor on."""
    values: dict[str, Array] = {}
    is_wrong = False
    for entry in right.entries:
        name, array = entry.name.replace("layers.", "blk.").replace("mlp", "ff"), entry.read()
        if entry.layer.endswith("norm"):
            x = values_of(right)[_before(entry.name)]
            values[name] = _noisy(normed(x, centers=centers), is_wrong, len(values))
            name = name.replace("norm", "scaled")
        is_wrong = is_wrong or entry.name == wrong_from
        values[name] = _noisy(array, is_wrong, len(values))
    return arrays(**values)


def values_of(dump: Dump) -> dict[str, Array]:
    return {entry.name: entry.read() for entry in dump.entries}


def _before(name: str) -> str:
    """What a norm is given."""
    block = int(name.split(".")[1]) if "." in name else BLOCKS
    return f"layers.{block - 1}-output" if block else "embed-output"


def _noisy(array: Array, is_wrong: bool, seed: int) -> Array:
    rms = np.sqrt((array**2).mean())
    return np.asarray(array + (0.2 * rms * noise(100 + seed, *array.shape) if is_wrong else 0), np.float32)


def compared(right: Dump, candidate: Dump) -> Session:
    return Session.of_dumps(Request(Path("a"), Path("b")), right, candidate)


@pytest.mark.parametrize("centers", [False, True])
@pytest.mark.parametrize("wrong_from", ["layers.0.norm-output", "layers.0.mlp-output", "layers.1.norm-output"])
def test_the_norm_is_the_one_after_its_weight_whatever_the_names_are(wrong_from: str, centers: bool) -> None:
    right = reference(centers=centers)
    session = compared(right, shown_twice(right, wrong_from=wrong_from, centers=centers))
    named = {pair.candidate.name: pair.reference.name for pair in session.alignment.pairs}
    assert not {name for name in named if name.endswith("norm-output")}
    assert {ours for theirs, ours in named.items() if theirs.endswith("scaled-output")} == {
        "norm-output", *(f"layers.{k}.norm-output" for k in range(BLOCKS))
    }  # fmt: skip
    culprit = session.outcome(session.rows()).culprit
    assert culprit is not None and culprit.pair.reference.name == wrong_from


@pytest.mark.parametrize("follows", ["layer", "sum with the residual"])
def test_a_norm_that_forgets_its_weight_stays_the_culprit(follows: str) -> None:
    """Nothing comes after it that could be the norm: a layer is unlike it, and the sum is nearer to the sum."""
    x = noise(1, 1, 9, WIDTH)
    sides = []
    for norm in (weighted(normed(x, centers=False), 10, centers=False), normed(x, centers=False)):
        after = np.tanh(norm @ noise(30, WIDTH, WIDTH) / 8) if follows == "layer" else 0.5 * x[:, ::-1] + norm
        sides.append({"embed": x, "scale": norm, "next": after, "head": after @ noise(31, WIDTH, 80)})
    names = ("embed", "scale", "next", "head"), ("table", "kept", "step", "vocab")
    ours, theirs = (
        arrays(**{f"{name}-output": array for name, array in zip(some, side.values(), strict=True)})
        for some, side in zip(names, sides, strict=True)
    )
    session = compared(ours, theirs)
    culprit = session.outcome(session.rows()).culprit
    assert culprit is not None and (culprit.pair.reference.layer, culprit.pair.candidate.layer) == ("scale", "kept")
