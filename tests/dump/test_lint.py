"""What is wrong with one dump: each finding with a dump that has it and a twin that has not."""

from __future__ import annotations

import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tensordiff.dump import Dump, open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.dump.lint import EntryFacts, Finding, lint_headers, lint_values, read_facts
from tensordiff.dump.native.writer import DumpWriter
from tests.making import SAMPLES, Tensors, numbers, save, save_npy, truncate, write

A, B, C = (numbers(9, 4, seed=seed) for seed in range(3))


def values(dump: Dump) -> list[Finding]:
    read = list(read_facts(dump))
    broken = [item for item in read if isinstance(item, Finding)]
    return broken + list(lint_values(item for item in read if isinstance(item, EntryFacts)))


def of(tmp_path: Path, tensors: Tensors) -> list[Finding]:
    return values(open_dump(write(tmp_path / "d", tensors)))


@pytest.mark.parametrize("name", ["reference", "candidate", "golden", "max"])
def test_the_samples_are_sound(name: str) -> None:
    dump = open_dump(SAMPLES / name)
    assert values(dump) == []
    assert [finding.level for finding in lint_headers(dump)] == (["note"] if name == "max" else [])


# --- headers ------------------------------------------------------------------------------------


def test_an_interrupted_capture(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), DumpWriter(tmp_path) as writer:
        writer.add("a", A)
        writer.add("b", B)
        raise KeyboardInterrupt
    [finding] = lint_headers(open_dump(tmp_path))
    assert (finding.level, finding.what) == ("warning", "the capture was interrupted after 2 entries")


def test_a_capture_that_finished(tmp_path: Path) -> None:
    assert list(lint_headers(open_dump(write(tmp_path, {"a": A})))) == []


def test_a_dump_of_nothing(tmp_path: Path) -> None:
    [finding] = lint_headers(open_dump(write(tmp_path, {})))
    assert (finding.level, finding.what) == ("error", "the dump holds no tensors")


def test_no_order(tmp_path: Path) -> None:
    [finding] = lint_headers(open_dump(save(tmp_path / "d.safetensors", {"a": A}, ordered=False)))
    assert finding.level == "note"
    assert "does not say in which order" in finding.what
    assert list(lint_headers(open_dump(save(tmp_path / "e.safetensors", {"a": A})))) == []


def test_files_left_out_are_listed_up_to_a_few(tmp_path: Path) -> None:
    save(tmp_path / "a.safetensors", {"a": A})
    for i in range(8):
        truncate(save(tmp_path / f"b{i}.safetensors", {f"b{i}": B}))
    found = list(lint_headers(open_dump(tmp_path)))
    assert [finding.where for finding in found] == [*(f"b{i}.safetensors" for i in range(5)), ""]
    assert found[-1].what == "3 more files were left out"
    assert {finding.level for finding in found} == {"error"}  # as compare, which cannot say that they agree


def test_what_is_ignored_without_loss_is_a_warning(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=A)
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("README", "hello")
    found = [finding for finding in lint_headers(open_dump(tmp_path)) if finding.level != "note"]
    assert [(finding.level, finding.where) for finding in found] == [("warning", "a.npz/README")]


# --- values -------------------------------------------------------------------------------------


def test_an_entry_that_cannot_be_read(tmp_path: Path) -> None:
    folder = save_npy(tmp_path, {"a": A, "b": B})
    assert values(open_dump(folder)) == []
    truncate(folder / "a.npy")
    [finding] = values(open_dump(folder))
    assert (finding.level, finding.where) == ("error", "a")
    assert str(folder / "a.npy") in finding.what


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "float8_e5m2", "complex64"])
def test_nan(tmp_path: Path, dtype: str) -> None:
    kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    odd = A.copy()
    odd[1, 1] = odd[2, 2] = np.nan
    [finding] = of(tmp_path, {"a": A.astype(kind), "b": odd.astype(kind), "c": odd.astype(kind)})
    assert (finding.level, finding.where, finding.what) == (
        "warning",
        "b",
        "holds 2 NaN, and 1 more entry holds some: c",
    )


def test_one_nan(tmp_path: Path) -> None:
    [finding] = of(tmp_path, {"a": A, "b": np.array([np.nan, 1.0])})
    assert (finding.where, finding.what) == ("b", "holds 1 NaN")


def test_of_many_a_few_are_named(tmp_path: Path) -> None:
    [finding] = of(tmp_path, {f"a{i}": np.array([np.nan, i]) for i in range(9)})
    assert finding.what == "holds 1 NaN, and 8 more entries hold some: a1, a2, a3, a4, a5 and 3 more"


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "float8_e5m2", "complex64"])
def test_an_overflow(tmp_path: Path, dtype: str) -> None:
    kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    odd = A.copy()
    odd[1, 1], odd[2, 2] = np.inf, -1
    [finding] = of(tmp_path, {"a": A.astype(kind), "b": odd.astype(kind), "c": odd.astype(kind)})
    assert (finding.level, finding.where) == ("warning", "b")
    assert finding.what == "holds 1 +inf, and 1 more entry holds some: c"


def test_minus_infinities_are_what_masks_are_made_of(tmp_path: Path) -> None:
    odd = A.copy()
    odd[1, 1] = -np.inf
    assert of(tmp_path, {"a": odd}) == []


def test_all_zero(tmp_path: Path) -> None:
    nothing, nearly = np.zeros((9, 4), np.float32), np.zeros((9, 4), np.float32)
    nearly[8, 3] = 1e-30
    [finding] = of(tmp_path, {"a": A, "b": nothing, "c": nothing, "d": nearly})
    assert (finding.level, finding.where, finding.what) == ("warning", "b, c", "2 outputs are all zero")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integers_that_are_all_zero(tmp_path: Path, dtype: str) -> None:
    [finding] = of(tmp_path, {"layers.0.quantized": np.zeros((9, 4), dtype)})
    assert (finding.level, finding.where, finding.what) == ("warning", "layers.0.quantized", "1 output is all zero")


@pytest.mark.parametrize("name", ["layers.0-input_0", "layers.0-input_hidden_states"])
def test_inputs_that_are_all_zero(tmp_path: Path, name: str) -> None:
    [finding] = of(tmp_path, {name: np.zeros((9, 4), np.float32), "layers.0-output": A})
    assert (finding.level, finding.where, finding.what) == ("note", name, "1 input is all zero")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("attn-input_attention_mask", "float32"), ("attn-input_past_key_values", "float32"), ("ids", "int64"),
        ("mask", "bool"), ("a-input_token_type_ids", "int64"), ("router.indices", "int64"),
    ],
)  # fmt: skip
def test_zeros_that_mean_nothing(tmp_path: Path, name: str, dtype: str) -> None:
    assert of(tmp_path, {name: np.zeros((9, 4), dtype)}) == []


def test_an_empty_tensor_is_not_zero(tmp_path: Path) -> None:
    assert of(tmp_path, {"a": np.empty((0, 4), np.float32)}) == []


def test_a_zero_past_the_first_part_is_seen(tmp_path: Path) -> None:
    long = np.zeros(1 << 19, np.float32)
    assert len(of(tmp_path / "zero", {"a": long})) == 1
    long[-1] = 1
    assert of(tmp_path / "not", {"a": long}) == []


def test_blocks_that_are_byte_for_byte_the_same(tmp_path: Path) -> None:
    [finding] = of(tmp_path, {"layers.0.mlp-output": A, "layers.1.mlp-output": B, "layers.2.mlp-output": A})
    assert (finding.level, finding.where) == ("warning", "layers.2.mlp-output")
    assert finding.what == "is byte for byte layers.0.mlp-output"


def test_every_part_that_is_the_same_is_told(tmp_path: Path) -> None:
    names = [f"layers.{i}.{part}-output" for i in range(4) for part in ("attn", "mlp")]
    found = of(tmp_path, {name: A if "attn" in name else B for name in names})
    others = ", ".join(f"layers.{i}.attn-output" for i in (1, 2, 3))
    assert [finding.where for finding in found] == [others, others.replace("attn", "mlp")]
    assert found[0].what == "are byte for byte layers.0.attn-output"


def test_of_many_parts_a_few_are_told_and_the_rest_counted(tmp_path: Path) -> None:
    parts = {f"part{k}": numbers(9, 4, seed=k) for k in range(8)}
    found = of(tmp_path, {f"layers.{i}.{part}-output": values for i in (0, 1) for part, values in parts.items()})
    assert [finding.what for finding in found][4:] == ["is byte for byte layers.0.part4-output", "3 more like these"]


@pytest.mark.parametrize(
    "tensors",
    [
        {"layers.0.mlp-output": A, "layers.1.mlp-output": B},
        {"layers.0.mlp-output": A, "layers.1.attn-output": A},  # another part of the block
        {"layers.0.mlp-output": A, "layers.1.mlp-input_0": A},
        {"layers.0.mlp-output": A, "layers.0.mlp(2)-output": A},  # called again with the same
        {"a-output": A, "b-output": A},
        {"layers.0.mask-output": np.arange(4), "layers.1.mask-output": np.arange(4)},
        {"layers.0.drop-output": np.ones((9, 4)), "layers.1.drop-output": np.ones((9, 4))},
        {"layers.0.attn.rotary_emb-output": A, "layers.1.attn.rotary_emb-output": A},
        {"layers.0.mlp-output": A, "layers.1.mlp-output": A.reshape(4, 9)[:, ::-1]},
    ],
)
def test_likeness_that_is_no_accident(tmp_path: Path, tensors: Tensors) -> None:
    assert of(tmp_path, tensors) == []


def test_a_step_may_repeat_another(tmp_path: Path) -> None:
    for step in (0, 1):
        write(tmp_path / str(step), {"layers.0.mlp-output": A}, step=step)
    assert values(open_dump(tmp_path)) == []


@pytest.mark.parametrize(
    "blocks", ["layers.{}", "model.layers.{}", "encoder.layer.{}", "transformer.h.{}", "blocks.{}"]
)
def test_a_chain_that_is_broken(tmp_path: Path, blocks: str) -> None:
    one, two = blocks.format(0), blocks.format(1)
    [finding] = of(tmp_path / "broken", {f"{one}-output": A, f"{two}-input_0": B, f"{two}-output": C})
    assert (finding.level, finding.where) == ("warning", f"{two}-input_0")
    assert finding.what == f"is not what {one}-output gave"
    assert of(tmp_path / "whole", {f"{one}-output": A, f"{two}-input_0": A, f"{two}-output": C}) == []


def test_every_break_is_told(tmp_path: Path) -> None:
    tensors = {"layers.0-output": A, "layers.1-input_0": B, "layers.1-output": C, "layers.2-input_0": B}
    assert [finding.where for finding in of(tmp_path, tensors)] == ["layers.1-input_0", "layers.2-input_0"]


@pytest.mark.parametrize(
    "tensors",
    [
        {"layers.0-output": A, "layers.1-input_0": B[:5]},  # another shape: the last token, perhaps
        {"layers.0-output": A, "layers.1-input_0": A, "layers.1-input_1": B},  # the residual goes along
        {"layers.0-output": A, "layers.1-input_residual": B, "layers.1-input_0": A},
        {"layers.0-output_0": A, "layers.1-input_hidden_states": A},
        {"layers.0-output": A, "layers.2-input_0": B},
        {"mlp.experts.0-output": A, "mlp.experts.1-input_0": B},  # side by side, not one after the other
        {"layers.0-output": A, "layers.0(2)-output": B, "layers.1-input_0": A, "layers.1(2)-input_0": B},
        {"layers.9-output": A, "layers.10-input_0": A},
    ],
)
def test_chains_that_hold(tmp_path: Path, tensors: Tensors) -> None:
    assert of(tmp_path, tensors) == []


@pytest.mark.parametrize(
    "between",
    [
        A + B,  # x = x + layer(x)
        (A + B).astype(ml_dtypes.bfloat16).astype(np.float32),
        A + np.float32(0.5) * B,
        np.maximum(B, 0),  # x = relu(layer(x))
        B / (1 + np.exp(-B)),
    ],
)
def test_a_chain_that_is_computed_between_the_blocks(tmp_path: Path, between: Array) -> None:
    tensors = {"layers.0-input_0": A, "layers.0-output": B, "layers.1-input_0": between, "layers.1-output": C}
    assert of(tmp_path / "d", tensors) == []
    broken = {**tensors, "layers.1-input_0": numbers(9, 4, seed=7)}
    assert [finding.where for finding in of(tmp_path / "broken", broken)] == ["layers.1-input_0"]


def test_a_norm_between_the_blocks(tmp_path: Path) -> None:
    norm, later = {"norms.1-output": C}, {"layers.1-input_0": C, "layers.1-output": A}
    assert of(tmp_path / "between", {"layers.0-input_0": A, "layers.0-output": B, **norm, **later}) == []
    [finding] = of(tmp_path / "after", {"layers.0-input_0": A, "layers.0-output": B, **later, **norm})
    assert finding.where == "layers.1-input_0"  # a buffer that was overwritten by what ran later


def test_a_chain_of_calls_is_broken_in_the_second(tmp_path: Path) -> None:
    tensors = {"layers.0-output": A, "layers.0(2)-output": B, "layers.1-input_0": A, "layers.1(2)-input_0": A}
    [finding] = of(tmp_path, tensors)
    assert finding.where == "layers.1(2)-input_0"


def test_numbers_too_long_to_count(tmp_path: Path) -> None:
    assert of(tmp_path, {f"layers.{'9' * 5000}-input_0": A, f"layers.{'9' * 5000}-output": B}) == []
