"""What measured numbers show of each side: each finding with a pair that has it and a twin that has not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tensordiff.align import align
from tensordiff.compare.comparer import Comparer
from tensordiff.compare.lint import lint_rows
from tensordiff.compare.measure.dispatch import measure_many
from tensordiff.compare.row import Row
from tensordiff.dump import Dump, open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.dump.lint import EntryFacts, Finding, lint_values, read_facts
from tensordiff.dump.model import Entry
from tests.making import SAMPLES, Tensors, held, nudged, numbers, write

A, B, C = (numbers(9, 4, seed=seed) for seed in range(3))
ZERO = np.zeros((9, 4), np.float32)


def rows(reference: Dump, candidate: Dump) -> list[Row]:
    return list(Comparer().rows(align(reference, candidate).pairs))


def of(reference: Tensors, candidate: Tensors) -> list[Finding]:
    return list(lint_rows(rows(held(reference), held(candidate))))


def told(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.where, finding.what) for finding in found]


def odd(value: float, array: Array = A) -> Array:
    changed = array.copy()
    changed[1, 1] = value
    return changed


@pytest.mark.parametrize("candidate", ["candidate", "golden", "max"])
def test_the_samples_are_sound(candidate: str) -> None:
    assert list(lint_rows(rows(open_dump(SAMPLES / "reference"), open_dump(SAMPLES / candidate)))) == []


def test_nothing_measured() -> None:
    assert list(lint_rows([])) == []
    assert of({"a": np.empty((0, 4))}, {"a": np.empty((0, 4))}) == []
    assert of({"a": A}, {"a": B[:2]}) == []


def test_nan_names_the_side() -> None:
    assert told(of({"a": A, "b": B}, {"a": A, "b": odd(np.nan)})) == [("candidate: b", "holds 1 NaN")]
    assert told(of({"a": A, "b": odd(np.nan)}, {"a": A, "b": B})) == [("reference: b", "holds 1 NaN")]
    both = {"a": A, "b": odd(np.nan), "c": odd(np.nan)}
    assert told(of(both, both)) == [("both sides: b", "holds 1 NaN, and 1 more entry holds some: c")]


def test_an_overflow_is_told_from_what_masks_are_made_of() -> None:
    assert told(of({"a": A}, {"a": odd(np.inf)})) == [("candidate: a", "holds 1 +inf")]
    assert of({"a": A}, {"a": odd(-np.inf)}) == []


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "complex64", "int8"])
@pytest.mark.parametrize("compiled", [False, True])
def test_zeros(dtype: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tensordiff.compare.comparer.measure_many", lambda sides, **_: measure_many(sides, compiled=compiled)
    )
    kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    full, zero = (3 * A).astype(kind), ZERO.astype(kind)
    assert told(of({"a": full}, {"a": zero})) == [("candidate: a", "1 output is all zero")]
    assert told(of({"a": zero}, {"a": full})) == [("reference: a", "1 output is all zero")]
    assert told(of({"a": zero}, {"a": zero})) == [("both sides: a", "1 output is all zero")]


def test_what_only_looks_like_zero() -> None:
    tiny = np.full((9, 4), 1e-300)
    assert of({"a": tiny}, {"a": tiny}) == []
    across = odd(1e-20, ZERO)
    assert of({"a": odd(0.0, A)}, {"a": across}) == []


def test_blocks_that_are_the_same() -> None:
    names = [f"layers.{i}.mlp-output" for i in range(3)]
    sound, same = dict(zip(names, (A, B, C), strict=True)), dict(zip(names, (A, B, A), strict=True))
    assert of(sound, sound) == []
    assert told(of(sound, same)) == [("candidate: layers.2.mlp-output", "is byte for byte layers.0.mlp-output")]
    assert told(of(same, sound)) == [("reference: layers.2.mlp-output", "is byte for byte layers.0.mlp-output")]


@pytest.mark.parametrize("second", [A[::-1], nudged(A, 1e-7), np.where(A > 0, A, -A)])
def test_blocks_of_one_rms_need_not_be_the_same(second: Array) -> None:
    tensors = {"layers.0.mlp-output": A, "layers.1.mlp-output": second}
    assert of(tensors, tensors) == []


def test_likeness_that_is_no_accident() -> None:
    tensors = {
        "layers.0.ones-output": np.ones((9, 4)), "layers.1.ones-output": np.ones((9, 4)),
        "layers.0.rotary_emb-output": A, "layers.1.rotary_emb-output": A,
        "layers.0.attn-output": B, "layers.1.mlp-output": B, "layers.2.mlp-input_0": B,
    }  # fmt: skip
    assert of(tensors, tensors) == []


def test_a_chain_that_is_broken() -> None:
    sound = {"layers.0-output": A, "layers.1-input_0": A, "layers.1-output": B, "layers.2-input_0": B}
    broken = {**sound, "layers.2-input_0": C}
    assert of(sound, sound) == []
    assert told(of(sound, broken)) == [("candidate: layers.2-input_0", "is not what layers.1-output gave")]
    residual = {**broken, "layers.2-input_1": B}
    assert of(residual, residual) == []


def test_a_chain_that_is_computed_between_the_blocks() -> None:
    outside = {"layers.0-input_0": A, "layers.0-output": B, "layers.1-input_0": A + B, "layers.1-output": C}
    assert of(outside, outside) == []
    norm = {"layers.0-output": A, "norms.1-output": B, "layers.1-input_0": B, "layers.1-output": C}
    assert of(norm, norm) == []
    after = {"layers.0-output": A, "layers.1-input_0": B, "layers.1-output": C, "norms.1-output": B}
    assert told(of(after, after)) == [("both sides: layers.1-input_0", "is not what layers.0-output gave")]


def test_what_is_seen_through_an_expression() -> None:
    names = [f"layers.{i}.self_attn.{part}_proj-output" for i in (0, 1) for part in "qkv"]
    split = {name: numbers(9, 4, seed=k) for k, name in enumerate(names)}
    fused = {
        f"layers.{i}.self_attn.qkv_proj-output": np.concatenate([split[name] for name in names[3 * i : 3 * i + 3]], 1)
        for i in (0, 1)
    }
    [finding] = of({**split, names[4]: odd(np.nan)}, fused)
    assert finding.where == f"reference: cat({', '.join(name.removesuffix('-output') for name in names[3:])})"
    same = {name: split[names[k % 3]] for k, name in enumerate(names)}
    assert of(same, fused) == []


def test_as_lint_finds_it_by_reading(tmp_path: Path) -> None:
    """Everything at once: the numbers show what reading every byte does, in the same words."""
    tensors = {
        "layers.0-output": A, "layers.1-input_0": B, "layers.1-output": A, "layers.2-output": ZERO,
        "layers.2-input_0": ZERO, "layers.3-output": odd(np.nan, C), "layers.4-output": odd(np.inf, B),
    }  # fmt: skip
    dump = open_dump(write(tmp_path, tensors))
    read = [item for item in read_facts(dump) if isinstance(item, EntryFacts)]
    by_reading = [(f"both sides: {finding.where}", finding.what) for finding in lint_values(read)]
    assert len(by_reading) >= 6
    assert told(list(lint_rows(rows(dump, dump)))) == by_reading


def test_a_sound_dump_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    dump = held(
        {f"layers.{i}.{port}": numbers(9, 4, seed=i) for i in range(4) for port in ("mlp-output", "mlp-input_0")}
    )
    measured = rows(dump, dump)

    def refuse(_: Entry) -> Iterator[None]:
        raise AssertionError("read again")

    monkeypatch.setattr(Entry, "read", refuse)
    assert list(lint_rows(measured)) == []
