"""Likeness and order: which tensors are likely the same where an error has changed them all."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tensordiff.align.index import Index
from tensordiff.align.learn.evidence import evidence_of
from tensordiff.align.learn.resemblance import resembling
from tensordiff.align.rules.rule import RuleSet
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Dump, MemoryTensor, entry

RNG = np.random.default_rng(0)


def values() -> Array:
    return np.asarray(RNG.standard_normal((8, 64)).astype("f4"))


def wrong(array: Array, size: float = 0.5) -> Array:
    return np.asarray(array + np.float32(size) * values() * np.float32(np.sqrt((array**2).mean())))


def likely(ours: dict[str, Array], theirs: dict[str, Array], *, ordered: bool = True) -> set[tuple[str, str]]:
    sides = [
        Dump(Path("held"), "held", tuple(entry(_named(n), MemoryTensor(a)) for n, a in some.items()), ordered)
        for some in (ours, theirs)
    ]
    indexes = Index(sides[0], RuleSet(()), "reference"), Index(sides[1], RuleSet(()), "candidate")
    found = resembling(evidence_of(*indexes, 0))
    return {(a.members[0][0].entry.layer, b.members[1][0].entry.layer) for a, b, _ in found}


def _named(name: str) -> str:
    return name if "-" in name else f"{name}-output"


def test_what_an_error_has_changed_is_found_by_likeness() -> None:
    ours = {name: values() for name in "abc"}
    theirs = {name.upper(): wrong(array) for name, array in ours.items()}
    assert likely(ours, theirs) == {("a", "A"), ("b", "B"), ("c", "C")}
    assert likely(ours, theirs, ordered=False) == {("a", "A"), ("b", "B"), ("c", "C")}


def test_order_tells_a_stream_that_changes_little() -> None:
    stream = [values()]
    for _ in range(3):
        stream.append(stream[-1] + np.float32(0.5) * values())
    ours = {f"s{k}": array for k, array in enumerate(stream)}
    theirs = {f"t{k}": wrong(array, 0.3) for k, array in enumerate(stream)}
    assert likely(ours, theirs) == {(f"s{k}", f"t{k}") for k in range(4)}


def test_a_norm_is_not_its_input_though_it_points_the_same_way() -> None:
    x = np.float32(0.1) * values()
    ours = {"x": x, "norm": x / np.sqrt((x**2).mean(-1, keepdims=True))}
    theirs = {"NORM": wrong(ours["norm"], 0.2)}
    assert likely(ours, theirs) == {("norm", "NORM")}


def test_of_two_that_fit_neither_is_taken() -> None:
    ours = {"norm": values()}
    step = ours["norm"] * (np.float32(1) + np.float32(0.1) * values()[:1])
    assert likely(ours, {"before_weight": step, "norm": wrong(ours["norm"])}) == set()


def test_what_is_unlike_is_not_taken() -> None:
    assert likely({"a": values()}, {"b": values()}) == set()


def halves_as_pairs(array: Array, heads: int) -> Array:
    """Rope's halves of each head, laid out as pairs."""
    size = array.shape[-1] // heads
    split = array.reshape(len(array), heads, 2, size // 2)
    return np.ascontiguousarray(split.transpose(0, 1, 3, 2).reshape(array.shape))


def test_what_is_laid_out_otherwise_is_found_beyond_an_error_too() -> None:
    """Keys and values in another order, as llama.cpp has them, and keys with rope's pairs side by side."""
    ours = {"k": values(), "v": values(), "out": values()}
    theirs = {"V": wrong(ours["v"]), "K": halves_as_pairs(wrong(ours["k"]), 2), "OUT": wrong(ours["out"])}
    assert likely(ours, theirs) == {("k", "K"), ("v", "V"), ("out", "OUT")}
    assert likely({"a": values()}, {"b": halves_as_pairs(values(), 2)}) == set()


def test_an_input_is_an_output_where_as_much_is_left_of_it_as_of_what_is_around() -> None:
    """Not where less is left of it, as of a norm's input in the norm."""
    names = "abcdef"
    ours = {f"{name}-output": values() for name in names}
    given = values()
    theirs = {f"{name.upper()}-output": wrong(ours[f"{name}-output"]) for name in names}
    assert ("x", "Y") in likely(_inserted(ours, "x-input_0", given), _inserted(theirs, "Y-output", wrong(given)))
    less = wrong(given, 0.8)
    assert ("x", "Y") not in likely(_inserted(ours, "x-input_0", given), _inserted(theirs, "Y-output", less))


def _inserted(some: dict[str, Array], name: str, array: Array) -> dict[str, Array]:
    """With one more before the last five."""
    items = list(some.items())
    return dict([*items[:1], (name, array), *items[1:]])


def turned(heads: Array) -> Array:
    """Rope: [n, S, d] with each pair of halves turned by an angle that grows with the token."""
    half = heads.shape[-1] // 2
    angle = np.arange(heads.shape[1])[:, None] / 100 ** (np.arange(half) / half)
    a, b = heads[..., :half], heads[..., half:]
    both = [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)]
    return np.asarray(np.concatenate(both, -1), "f4")


def test_keys_after_rope_are_not_the_keys_before_it_in_another_layout() -> None:
    """A cache has them turned, heads first; an error in them is another matter."""
    ours = {"k": values()}
    cached = np.ascontiguousarray(ours["k"].reshape(8, 2, 32).transpose(1, 0, 2))
    assert likely(ours, {"cached": turned(cached)}) == set()
    assert likely(ours, {"cached": cached + np.float32(0.3) * values().reshape(2, 8, 32)}) == {("k", "cached")}
