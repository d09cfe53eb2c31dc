"""GPTQ, AWQ and compressed-tensors, packed here bit by bit as their own code says; and every type of GGUF."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from tensordiff.dump import open_dump
from tensordiff.dump.model import Entry, MemoryTensor
from tensordiff.weights.comparison import WeightsOutcome, compare_weights
from tensordiff.weights.measure import measure_pair
from tensordiff.weights.parameters import parameters_of

DATA = Path(__file__).parents[1] / "data"
INPUTS, OUTPUTS, GROUP = 64, 32, 16
Weights = dict[str, np.ndarray]


def integers(bits: int, shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << bits, shape)


def packed(values: list[int], bits: int) -> list[int]:
    """Integers in 32-bit words, one bit after the other, the lowest first."""
    stream = [(value >> bit) & 1 for value in values for bit in range(bits)]
    words = [sum(bit << k for k, bit in enumerate(stream[at : at + 32])) for at in range(0, len(stream), 32)]
    return [word - (1 << 32) if word >= 1 << 31 else word for word in words]


def gptq(bits: int, *, offset: int = 1, reordered: bool = False) -> tuple[Weights, np.ndarray]:
    """A layer as GPTQ keeps it, and its weight computed element by element."""
    q, zeros = integers(bits, (INPUTS, OUTPUTS), 1), integers(bits, (INPUTS // GROUP, OUTPUTS), 2)
    scales = np.random.default_rng(3).uniform(0.01, 0.1, zeros.shape).astype(np.float16)
    groups = np.arange(INPUTS) // GROUP
    if reordered:
        groups = np.random.default_rng(4).permutation(groups)
    columns = [packed([int(v) for v in q[:, o]], bits) for o in range(OUTPUTS)]
    stored_zeros = (zeros - offset) % (1 << bits)
    layer: Weights = {
        "up_proj.qweight": np.array(columns, np.int32).T,
        "up_proj.qzeros": np.array([packed([int(v) for v in row], bits) for row in stored_zeros], np.int32),
        "up_proj.scales": scales,
        "up_proj.g_idx": groups.astype(np.int32),
    }
    weight = np.zeros((OUTPUTS, INPUTS), np.float32)
    for o in range(OUTPUTS):
        for i in range(INPUTS):
            g = groups[i]
            weight[o, i] = np.float32(scales[g, o]) * np.float32(int(q[i, o]) - int(zeros[g, o]))
    return layer, weight


def awq() -> tuple[Weights, np.ndarray]:
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    q, zeros = integers(4, (INPUTS, OUTPUTS), 1), integers(4, (INPUTS // GROUP, OUTPUTS), 2)
    scales = np.random.default_rng(3).uniform(0.01, 0.1, zeros.shape).astype(np.float16)

    def words(matrix: np.ndarray) -> np.ndarray:
        found = np.zeros((len(matrix), OUTPUTS // 8), np.uint32)
        for row in range(len(matrix)):
            for column in range(OUTPUTS // 8):
                for k in range(8):
                    found[row, column] |= np.uint32(int(matrix[row, 8 * column + order[k]]) << (4 * k))
        return found.view(np.int32)

    layer = {"up_proj.qweight": words(q), "up_proj.qzeros": words(zeros), "up_proj.scales": scales}
    g = np.arange(INPUTS) // GROUP
    weight = (scales.astype(np.float32)[g] * (q - zeros[g]).astype(np.float32)).T
    return layer, np.ascontiguousarray(weight)


def compressed(bits: int = 4) -> tuple[Weights, np.ndarray]:
    q = integers(bits, (OUTPUTS, INPUTS), 1)
    scales = np.random.default_rng(3).uniform(0.01, 0.1, (OUTPUTS, INPUTS // GROUP)).astype(np.float16)
    layer: Weights = {
        "up_proj.weight_packed": np.array([packed([int(v) for v in row], bits) for row in q], np.int32),
        "up_proj.weight_scale": scales,
        "up_proj.weight_shape": np.array([OUTPUTS, INPUTS], np.int64),
    }
    signed = (q - (1 << (bits - 1))).astype(np.float32)
    return layer, signed * np.repeat(scales.astype(np.float32), GROUP, axis=1)


def folder(path: Path, tensors: Weights, config: dict[str, object] | None = None) -> Path:
    path.mkdir(parents=True)
    whole = {f"model.layers.0.mlp.{name}": np.ascontiguousarray(array) for name, array in tensors.items()}
    safetensors.numpy.save_file(whole, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config or {}))
    return path


def weight_of(path: Path) -> np.ndarray:
    (only,) = parameters_of(open_dump(path))
    assert only.kind == "weight"
    half = np.concatenate([only.stored.read_rows(0, 5), only.stored.read_rows(5, OUTPUTS)])  # type: ignore[attr-defined]
    np.testing.assert_array_equal(half, only.stored.read())
    return only.stored.read()


def against(tmp_path: Path, tensors: Weights, weight: np.ndarray) -> WeightsOutcome:
    one, other = folder(tmp_path / "float", {"up_proj.weight": weight}), folder(tmp_path / "packed", tensors)
    return compare_weights(open_dump(one), open_dump(other))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("reordered", [False, True])
def test_gptq(tmp_path: Path, bits: int, reordered: bool) -> None:
    layer, weight = gptq(bits, reordered=reordered)
    np.testing.assert_array_equal(weight_of(folder(tmp_path / "a", layer)), weight)


def test_the_second_version_of_gptq_keeps_zero_points_as_they_are(tmp_path: Path) -> None:
    layer, weight = gptq(4, offset=0)
    config: dict[str, object] = {"quantization_config": {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}}
    np.testing.assert_array_equal(weight_of(folder(tmp_path / "a", layer, config)), weight)


def test_awq(tmp_path: Path) -> None:
    layer, weight = awq()
    np.testing.assert_array_equal(weight_of(folder(tmp_path / "a", layer)), weight)


@pytest.mark.parametrize("bits", [4, 8])
def test_compressed_tensors(tmp_path: Path, bits: int) -> None:
    layer, weight = compressed(bits)
    np.testing.assert_array_equal(weight_of(folder(tmp_path / "a", layer)), weight)


@pytest.mark.parametrize("make", [lambda: gptq(4), awq, compressed])
def test_a_packed_checkpoint_and_its_numbers(tmp_path: Path, make: object) -> None:
    layer, weight = make()  # type: ignore[operator]
    found = against(tmp_path, layer, weight)
    assert [(row.verdict, row.why) for row in found.rows] == [("agrees", "equal")]
    assert found.exit_status == 0


def test_rows_of_a_packed_weight_in_another_order(tmp_path: Path) -> None:
    layer, weight = gptq(8)
    found = against(tmp_path, layer, weight[np.arange(OUTPUTS) ^ 8])
    assert found.exit_status == 1
    assert "blocks of 8 rows" in found.findings[0].sentence


def test_values_that_calibration_moved_are_no_finding(tmp_path: Path) -> None:
    """GPTQ makes up for the error of one column in the next ones: values are further off than the nearest would be."""
    layer, weight = gptq(8)
    step = np.abs(weight).max() * 2 / 255
    moved = weight + np.random.default_rng(5).normal(0, 0.5 * step, weight.shape).astype(np.float32)
    (row,) = against(tmp_path, layer, moved).rows
    assert (row.verdict, row.why.partition(" (")[0]) == ("agrees", "as close as calibration allows")


def test_two_rows_swapped_beneath_a_calibration_are_a_finding(tmp_path: Path) -> None:
    layer, weight = gptq(4)
    swapped = weight.copy()
    swapped[[3, 4]] = weight[[4, 3]]
    assert against(tmp_path, layer, swapped).exit_status == 1


def test_groups_that_are_not_there_are_not_read(tmp_path: Path) -> None:
    layer, weight = gptq(4)
    layer["up_proj.g_idx"][3] = 400
    found = against(tmp_path, layer, weight)
    assert found.exit_status == 2
    assert "packed by a quantization" in found.doubts[0]


# --- GGUF ----------------------------------------------------------------------------------------

DIGESTS: dict[str, str] = json.loads((DATA / "quantized.json").read_text())


def gguf_entries() -> dict[str, Entry]:
    return {entry.name: entry for entry in open_dump(DATA / "quantized.gguf").entries}


@pytest.mark.parametrize("name", DIGESTS)
def test_every_type_of_gguf_as_its_own_package_reads_it(name: str) -> None:
    values = gguf_entries()[name].read() + np.float32(0)
    assert hashlib.sha256(values.tobytes()).hexdigest() == DIGESTS[name]


@pytest.mark.parametrize("name", [name for name in DIGESTS if name.endswith(".weight")])
def test_what_llama_cpp_quantized_agrees_with_the_numbers(name: str) -> None:
    entries = gguf_entries()
    source = entries["ternary" if name.startswith("TQ") else "weights"]
    why = measure_pair(source.stored, entries[name].stored).explained
    assert why in ("equal", f"equal up to quantization ({name.partition('.')[0]})")
    shifted = MemoryTensor(np.ascontiguousarray(np.roll(source.read(), 1, axis=1)))
    assert measure_pair(shifted, entries[name].stored).explained is None


def test_autogptq_keeps_its_version_in_a_file_of_its_own(tmp_path: Path) -> None:
    layer, weight = gptq(4, offset=0)
    path = folder(tmp_path / "a", layer)
    (path / "quantize_config.json").write_text(json.dumps({"bits": 4, "checkpoint_format": "gptq_v2"}))
    np.testing.assert_array_equal(weight_of(path), weight)


def int8(rows_scale: bool = True, groups: int = 1) -> tuple[Weights, np.ndarray]:
    """A layer as compressed-tensors keeps w8a8: int8, with a scale for each row or for groups of it."""
    weight = np.random.default_rng(5).standard_t(5, (OUTPUTS, INPUTS)).astype(np.float32) * 0.05
    parts = weight.reshape(OUTPUTS, groups, -1)
    scale = np.abs(parts).max(2) / 127.5 if rows_scale else np.full((1,), np.abs(weight).max() / 127.5)
    q = np.clip(np.round(parts / scale.reshape(-1, groups if rows_scale else 1, 1)), -128, 127)
    tensors = {"up_proj.weight": q.reshape(weight.shape).astype(np.int8), "up_proj.weight_scale": scale}
    return {
        name: array if array.dtype == np.int8 else array.astype(np.float32) for name, array in tensors.items()
    }, weight


@pytest.mark.parametrize("groups", [1, 4])
def test_int8_with_scales(tmp_path: Path, groups: int) -> None:
    layer, weight = int8(groups=groups)
    assert against(tmp_path, layer, weight).verdict == "agrees"
    wrong = weight.copy()
    wrong[[3, 4]] = wrong[[4, 3]]
    found = against(tmp_path / "wrong", layer, wrong)
    assert found.verdict == "diverges"


def test_int8_with_one_scale_or_zero_points_is_not_read(tmp_path: Path) -> None:
    layer, weight = int8(rows_scale=False)
    assert against(tmp_path / "one", layer, weight).verdict == "unknown"
    layer, weight = int8()
    layer["up_proj.weight_zero_point"] = np.ones((OUTPUTS, 1), np.int8)
    assert against(tmp_path / "zero", layer, weight).verdict == "unknown"
