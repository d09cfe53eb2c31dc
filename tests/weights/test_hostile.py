"""Checkpoints that lie or are cut up oddly: a sentence or a verdict, and never agreement by mistake."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tensordiff.compare.limits import Limits
from tensordiff.dump import open_dump
from tensordiff.dump.native.writer import DumpWriter
from tensordiff.weights import measure, pairing
from tensordiff.weights.comparison import WeightsComparison, WeightsOutcome, compare_weights
from tests.cli.command import caller

Arrays = dict[str, NDArray[Any]]
BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
UP = "model.layers.0.mlp.up_proj"


def some(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def saved(path: Path, tensors: Arrays) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, path)
    return path


def outcome(tmp_path: Path, ours: Arrays, theirs: Arrays) -> WeightsOutcome:
    return compare_weights(
        open_dump(saved(tmp_path / "a.safetensors", ours)), open_dump(saved(tmp_path / "b.safetensors", theirs))
    )


def test_parts_of_several_types_are_compared_as_one(tmp_path: Path) -> None:
    attention = "model.layers.0.self_attn"
    types = {"q_proj": BF16, "k_proj": np.float16, "v_proj": np.float32}
    parts = {f"{attention}.{name}.weight": some(8, 8, seed=k).astype(t) for k, (name, t) in enumerate(types.items())}
    whole = np.concatenate([part.astype(np.float32) for part in parts.values()])
    assert outcome(tmp_path, parts, {f"{attention}.qkv_proj.weight": whole}).verdict == "agrees"
    assert outcome(tmp_path, parts, {f"{attention}.qkv_proj.weight": whole * 1.5}).verdict == "diverges"


def test_experts_of_several_types(tmp_path: Path) -> None:
    stem = "model.layers.0.mlp.experts"
    single = {f"{stem}.{k}.gate_proj.weight": some(4, 4, seed=k).astype((BF16, np.float16)[k % 2]) for k in range(4)}
    stack = np.stack([part.astype(np.float32) for part in single.values()])
    assert outcome(tmp_path, single, {f"{stem}.gate_proj.weight": stack}).verdict == "agrees"


WORDS = np.random.default_rng(1).integers(0, 1 << 32, (4, 16), np.uint32)


@pytest.mark.parametrize(
    ("bits", "group", "words", "scales", "biases"),
    [
        (-4, -64, WORDS, some(4, 2), None), (0, 0, WORDS, some(4, 2), None),
        (64, 4, WORDS, some(4, 2), None), (4, 64, WORDS[0, 0], some(4, 2), None),
        (4, 64, WORDS, some(1)[0], None), (4, 64, WORDS, some(3, 2), None), (4, 64, WORDS, some(1, 2), None),
        (4, 64, WORDS, some(4, 2), some(3, 2)), (4, 64, WORDS, some(4, 2), some(4, 3)),
        (4, 64, WORDS[:0], some(0, 2), None),
    ],
)  # fmt: skip
def test_an_mlx_config_that_lies_is_not_believed(
    tmp_path: Path, bits: int, group: int, words: Any, scales: Any, biases: Any
) -> None:
    tensors = {f"{UP}.weight": np.asarray(words), f"{UP}.scales": np.asarray(scales)}
    saved(tmp_path / "mlx" / "model.safetensors", tensors | ({} if biases is None else {f"{UP}.biases": biases}))
    (tmp_path / "mlx" / "config.json").write_text(json.dumps({"quantization": {"bits": bits, "group_size": group}}))
    plain = saved(tmp_path / "plain.safetensors", {f"{UP}.weight": some(4, 128)})
    assert compare_weights(open_dump(tmp_path / "mlx"), open_dump(plain)).verdict == "unknown"


def test_a_pipe_in_the_place_of_a_config_is_not_waited_for(tmp_path: Path) -> None:
    path = saved(tmp_path / "mlx" / "model.safetensors", {f"{UP}.weight": some(4, 4)})
    os.mkfifo(path.with_name("config.json"))
    assert compare_weights(open_dump(path), open_dump(path)).verdict == "agrees"


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), (3,), (2, 2, 2), (16, 1)])
def test_scales_that_fit_no_weight(tmp_path: Path, shape: tuple[int, ...]) -> None:
    scaled = {f"{UP}.weight": some(8, 16).astype(FP8), f"{UP}.weight_scale": np.abs(some(*shape))}
    assert outcome(tmp_path, scaled, {f"{UP}.weight": some(8, 16).astype(BF16)}).verdict == "unknown"


def test_the_last_block_of_an_fp8_weight_is_smaller(tmp_path: Path) -> None:
    """As DeepSeek's kv_a_proj_with_mqa: 576 rows in blocks of 128 have five scales."""
    raw, scale = some(576, 256).astype(FP8), np.abs(some(5, 2)) + 0.5
    rows, columns = np.arange(576) // 128, np.arange(256) // 128
    plain = raw.astype(np.float32) * scale[rows][:, columns]
    scaled = {f"{UP}.weight": raw, f"{UP}.weight_scale_inv": scale}
    assert outcome(tmp_path, {f"{UP}.weight": plain.astype(BF16)}, scaled).verdict == "agrees"


def test_a_large_scale_of_one_block_excuses_no_other(tmp_path: Path) -> None:
    values = some(256, 256)
    values[:128, :128] = 0
    raw = values.astype(FP8)
    wrong = raw.astype(np.float32) + np.where(values == 0, 0, 0.3 * some(256, 256, seed=1)).astype(np.float32)
    scale = np.array([[1e4, 1], [1, 1]], np.float32)
    scaled = {f"{UP}.weight": raw, f"{UP}.weight_scale_inv": scale}
    assert outcome(tmp_path, scaled, {f"{UP}.weight": wrong.astype(BF16)}).verdict == "diverges"


def test_no_element_is_many_steps_of_a_quantization_off(tmp_path: Path) -> None:
    from tests.weights.making import llama, write_gguf

    weights = llama(7, layers=1)
    wrong = {name: array.copy() for name, array in weights.items()}
    name = "model.layers.0.mlp.up_proj.weight"
    wrong[name][3, 5] += 0.4 * np.abs(wrong[name]).max()
    files = [write_gguf(one, tmp_path / f"{k}.gguf", "Q8_0") for k, one in enumerate((weights, wrong))]
    plain = saved(tmp_path / "plain.safetensors", weights)
    assert compare_weights(open_dump(plain), open_dump(files[0])).verdict == "agrees"
    assert compare_weights(open_dump(plain), open_dump(files[1])).verdict == "diverges"


@pytest.mark.parametrize(
    "name",
    [f"model.layers.0.mlp.experts.{'9' * 5000}.gate_proj.weight", f"model._shards.{'9' * 5000}.up.weight",
     f"model.{'9' * 5000}.up.weight"],
)  # fmt: skip
def test_a_number_of_thousands_of_digits(tmp_path: Path, name: str) -> None:
    ours = {name: some(4, 4), name.replace("99", "98", 1): some(4, 4, seed=1), "model.x.weight": some(3, 3)}
    found = outcome(tmp_path, ours, {key: 1.5 * array for key, array in ours.items()})
    assert found.verdict == "diverges"
    assert found.groups()


def test_squares_that_overflow_in_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "BLOCK_ELEMENTS", 16)
    monkeypatch.setattr(measure, "row_ranges", lambda shape: ((k, k + 4) for k in range(0, shape[0], 4)))
    ours = open_dump(saved(tmp_path / "a.safetensors", {f"{UP}.weight": np.full((16, 4), 1e200)}))
    theirs = open_dump(saved(tmp_path / "b.safetensors", {f"{UP}.weight": np.full((16, 4), 1.5e200)}))
    comparison = WeightsComparison(ours, theirs, limits=Limits(threshold=0.4))
    (row,) = comparison.rows()
    assert row.diff is not None
    assert row.verdict == "diverges"
    assert row.diff.rel_l2 == pytest.approx(0.5)


def test_nothing_is_said_of_what_has_no_elements(tmp_path: Path) -> None:
    assert outcome(tmp_path, {f"{UP}.weight": some(0, 8)}, {f"{UP}.weight": some(0, 8)}).verdict == "unknown"


def test_an_interrupted_capture_agrees_with_nothing(tmp_path: Path) -> None:
    def capture(path: Path) -> None:
        with DumpWriter(path, {}, durable=False) as writer:
            writer.add(f"{UP}.weight-parameter", some(4, 4))
            raise InterruptedError

    with pytest.raises(InterruptedError):
        capture(tmp_path / "d")
    dump = open_dump(tmp_path / "d")
    found = compare_weights(dump, dump)
    assert (dump.interrupted, found.verdict) == (True, "unknown")


def test_names_that_a_terminal_would_obey_are_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = {f"{UP}.weight": some(4, 4), "model.a\u202eb.weight": some(4, 4, seed=3)}
    one, other = (
        saved(tmp_path / "a.safetensors", ours),
        saved(tmp_path / "b.safetensors", {f"{UP}.weight": some(4, 4)}),
    )
    said = caller(capsys, monkeypatch)("weights", one, other)
    assert all(line.isprintable() for line in said.out.split("\n"))


def test_each_is_not_tried_with_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of parameters of one shape whose names say nothing: values are looked up."""
    tries = 0
    original = pairing.hold_the_same

    def counted(*pair: Any) -> bool:
        nonlocal tries
        tries += 1
        return original(*pair)

    monkeypatch.setattr(pairing, "hold_the_same", counted)
    ours = {f"a{k}x.weight": some(8, 8, seed=k) for k in range(200)}
    theirs = {f"z{k * 7 % 200}y{k}.weight": some(8, 8, seed=k + (1000 if k % 2 else 0)) for k in range(200)}
    found = outcome(tmp_path, ours, theirs)
    assert sum(row.by == "value" for row in found.rows) == 100
    assert tries < 400
