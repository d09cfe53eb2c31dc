"""Which parameter is which: fused, stacked, transposed, permuted, tied, padded, quantized, renamed."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tensordiff.align.rules.file import read_rules_file
from tensordiff.dump import open_dump
from tensordiff.weights.comparison import ParameterRow, WeightsOutcome, compare_weights
from tests.weights.making import (
    HEAD,
    HIDDEN,
    MIDDLE,
    VOCAB,
    Weights,
    llama,
    mlx_quantized,
    write_bin,
    write_gguf,
    write_npz,
    write_sharded,
)  # fmt: skip


def outcome(tmp_path: Path, reference: Weights, candidate: Weights) -> WeightsOutcome:
    sides = write_sharded(reference, tmp_path / "ref"), write_sharded(candidate, tmp_path / "cand")
    return compare_weights(open_dump(sides[0]), open_dump(sides[1]))


def row_of(found: WeightsOutcome, name: str) -> ParameterRow:
    return next(row for row in found.rows if row.name == name)


def fuse(weights: Weights, parts: tuple[str, ...], whole: str, order: tuple[int, ...] | None = None) -> Weights:
    """One parameter in the place of several, in every layer."""
    made = dict(weights)
    for name in [name for name in weights if name.endswith(f"{parts[0]}.weight")]:
        prefix = name.removesuffix(f"{parts[0]}.weight")
        arrays = [made.pop(f"{prefix}{part}.weight") for part in parts]
        made[f"{prefix}{whole}.weight"] = np.concatenate([arrays[k] for k in order or range(len(parts))])
    return made


QKV, GATE_UP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")


def fused_llama(seed: int) -> Weights:
    return fuse(fuse(llama(seed), QKV, "qkv_proj"), GATE_UP, "gate_up_proj")


@pytest.mark.parametrize("is_swapped", [False, True])
def test_fused_parameters_are_paired_with_their_parts(tmp_path: Path, is_swapped: bool) -> None:
    sides = llama(1), fused_llama(1)
    found = outcome(tmp_path, *(sides[::-1] if is_swapped else sides))
    assert found.exit_status == 0
    row = row_of(found, "layers.0.self_attn.qkv_proj.weight")
    assert row.by == "fused"
    assert "cat(" in str(row.candidate if is_swapped else row.reference)


def test_a_fused_parameter_in_another_order(tmp_path: Path) -> None:
    wrong = fuse(llama(1), QKV, "qkv_proj", (0, 2, 1))
    found = outcome(tmp_path, llama(1), wrong)
    row = row_of(found, "layers.0.self_attn.qkv_proj.weight")
    assert row.hint is not None
    assert (row.hint.kind, row.hint.sentence) == ("fused order", "fused in another order: q_proj, v_proj, k_proj")
    assert len(found.groups()) == 1
    assert found.groups()[0][0] == "layers.{0-2}.self_attn.qkv_proj.weight"


def test_a_fused_parameter_head_by_head(tmp_path: Path) -> None:
    weights = llama(1)
    made = fuse(weights, QKV, "qkv_proj")
    for k in range(3):
        prefix = f"model.layers.{k}.self_attn."
        parts = [weights[f"{prefix}{part}.weight"].reshape(2, -1, HIDDEN) for part in QKV]
        made[f"{prefix}qkv_proj.weight"] = np.concatenate(parts, 1).reshape(-1, HIDDEN)
    row = row_of(outcome(tmp_path, weights, made), "layers.0.self_attn.qkv_proj.weight")
    assert row.hint is not None
    assert "in 2 groups, group by group" in row.hint.sentence


def test_up_before_gate(tmp_path: Path) -> None:
    wrong = fuse(llama(1), GATE_UP, "gate_up_proj", (1, 0))
    row = row_of(outcome(tmp_path, llama(1), wrong), "layers.0.mlp.gate_up_proj.weight")
    assert row.hint is not None
    assert row.hint.sentence == "fused in another order: up_proj, gate_proj"


def test_a_checkpoint_of_conv1d_is_transposed_throughout(tmp_path: Path) -> None:
    weights = llama(2)
    turned = {n: np.ascontiguousarray(v.T) if "_proj" in n else v for n, v in weights.items()}
    found = outcome(tmp_path, weights, turned)
    assert found.exit_status == 0
    assert "candidate transposed" in row_of(found, "layers.0.self_attn.o_proj.weight").views


def test_one_square_parameter_that_is_not_transposed_where_all_others_are(tmp_path: Path) -> None:
    weights = llama(2)
    turned = {n: np.ascontiguousarray(v.T) if "_proj" in n else v for n, v in weights.items()}
    turned["model.layers.1.self_attn.o_proj.weight"] = weights["model.layers.1.self_attn.o_proj.weight"] * 2
    found = outcome(tmp_path, weights, turned)
    assert [row.name for row in found.findings] == ["layers.1.self_attn.o_proj.weight"]


def experts(seed: int) -> Weights:
    random = np.random.default_rng(seed)
    made = llama(seed)
    for k in range(3):
        for part in ("gate_proj", "up_proj", "down_proj"):
            made.pop(f"model.layers.{k}.mlp.{part}.weight")
        for e in range(4):
            for part, shape in (("gate_proj", (48, HIDDEN)), ("up_proj", (48, HIDDEN)), ("down_proj", (HIDDEN, 48))):
                made[f"model.layers.{k}.mlp.experts.{e}.{part}.weight"] = random.normal(0, 0.03, shape).astype(
                    np.float32
                )
    return made


def stacked(weights: Weights, order: tuple[int, ...] = (0, 1, 2, 3), *, is_transposed: bool = False) -> Weights:
    made = {name: array for name, array in weights.items() if ".experts." not in name}
    for k in range(3):
        prefix = f"model.layers.{k}.mlp.experts."
        both = [np.concatenate([weights[f"{prefix}{e}.{p}.weight"] for p in GATE_UP]) for e in order]
        down = [weights[f"{prefix}{e}.down_proj.weight"] for e in order]
        made[f"{prefix}gate_up_proj"] = np.stack([b.T for b in both] if is_transposed else both)
        made[f"{prefix}down_proj"] = np.stack([d.T for d in down] if is_transposed else down)
    return {name: np.ascontiguousarray(array) for name, array in made.items()}


@pytest.mark.parametrize("is_transposed", [False, True])
def test_experts_one_by_one_against_a_stack(tmp_path: Path, is_transposed: bool) -> None:
    found = outcome(tmp_path, experts(3), stacked(experts(3), is_transposed=is_transposed))
    assert found.exit_status == 0
    assert row_of(found, "layers.0.mlp.experts.gate_up_proj").by == "fused"


def test_experts_of_a_stack_that_are_swapped(tmp_path: Path) -> None:
    row = row_of(outcome(tmp_path, experts(3), stacked(experts(3), (0, 2, 1, 3))), "layers.0.mlp.experts.down_proj")
    assert row.hint is not None
    assert (row.hint.kind, row.hint.sentence) == ("expert", "experts 1 and 2 are swapped")


def test_experts_by_themselves_that_are_swapped(tmp_path: Path) -> None:
    wrong = experts(3)
    one, other = (f"model.layers.1.mlp.experts.{e}.up_proj.weight" for e in (0, 3))
    wrong[one], wrong[other] = wrong[other], wrong[one]
    found = outcome(tmp_path, experts(3), wrong)
    assert [row.sentence for row in found.findings] == [
        "swapped with layers.1.mlp.experts.3.up_proj.weight", "swapped with layers.1.mlp.experts.0.up_proj.weight",
    ]  # fmt: skip


def test_a_head_that_is_the_embedding(tmp_path: Path) -> None:
    tied = llama(4)
    tied["lm_head.weight"] = tied["model.embed_tokens.weight"].copy()
    without = {name: array for name, array in tied.items() if name != "lm_head.weight"}
    found = outcome(tmp_path, tied, without)
    assert found.exit_status == 0
    assert "tied" in row_of(found, "lm_head.weight").why


@pytest.mark.parametrize("is_wrong", [False, True])
@pytest.mark.parametrize("other", ["encoder.embed_tokens.weight", "cls.predictions.decoder.weight"])
def test_embeddings_that_a_file_keeps_once(tmp_path: Path, other: str, is_wrong: bool) -> None:
    """T5's and BERT's, of which safetensors keeps one and ``pytorch_model.bin`` all."""
    tied = {name.replace("model.embed_tokens", "shared"): array for name, array in llama(4).items()}
    once = dict(tied)
    tied[other] = tied["shared.weight"] * (2 if is_wrong else 1)
    for k, sides in enumerate(((tied, once), (once, tied))):
        assert outcome(tmp_path / str(k), *sides).exit_status == int(is_wrong)


def test_a_head_that_is_missing_and_is_not_the_embedding(tmp_path: Path) -> None:
    without = {name: array for name, array in llama(4).items() if name != "lm_head.weight"}
    found = outcome(tmp_path, llama(4), without)
    assert [(row.name, row.verdict) for row in found.findings] == [("lm_head.weight", "missing")]


def test_a_head_that_was_untied(tmp_path: Path) -> None:
    tied, wrong = llama(4), llama(4)
    tied["lm_head.weight"] = tied["model.embed_tokens.weight"].copy()
    row = row_of(outcome(tmp_path, tied, wrong), "lm_head.weight")
    assert row.hint is not None
    assert row.hint.kind == "untied"


@pytest.mark.parametrize("is_zero", [True, False])
def test_a_padded_vocabulary(tmp_path: Path, is_zero: bool) -> None:
    padded = llama(5)
    rows = np.zeros((32, HIDDEN)) if is_zero else np.random.default_rng(0).normal(0, 1, (32, HIDDEN))
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        padded[name] = np.concatenate((padded[name], rows.astype(np.float32)))
    found = outcome(tmp_path, llama(5), padded)
    row = row_of(found, "embed_tokens.weight")
    assert (row.verdict, found.exit_status) == (("agrees", 0) if is_zero else ("diverges", 1))
    assert "32 rows" in row.why


def test_missing_and_unexpected_are_findings(tmp_path: Path) -> None:
    changed = llama(6)
    moved = changed.pop("model.layers.1.mlp.up_proj.weight")
    changed["model.layers.1.mlp.extra.bias"] = np.random.default_rng(1).normal(0, 1, 7).astype(np.float32)
    found = outcome(tmp_path, llama(6), changed)
    assert {(row.name, row.verdict) for row in found.findings} == {
        ("layers.1.mlp.up_proj.weight", "missing"), ("layers.1.mlp.extra.bias", "unexpected"),
    }  # fmt: skip
    assert found.exit_status == 1
    assert moved.shape == (MIDDLE, HIDDEN)


def test_what_a_model_computes_for_itself_is_no_finding(tmp_path: Path) -> None:
    more = llama(6) | {"model.rotary_emb.inv_freq": np.linspace(0, 1, 8, dtype=np.float32)}
    found = outcome(tmp_path, llama(6), more)
    assert found.exit_status == 0
    assert any("inv_freq" in note for note in found.notes)


# --- quantization --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_a_quantized_file_is_judged_by_its_quantization(tmp_path: Path, kind: str) -> None:
    reference = write_sharded(llama(7), tmp_path / "ref")
    found = compare_weights(open_dump(reference), open_dump(write_gguf(llama(7), tmp_path / "cand.gguf", kind)))
    assert {row.verdict for row in found.rows} == {"agrees"}
    told = {"F16": "float16", "BF16": "bfloat16"}.get(kind, kind)
    assert told in row_of(found, "layers.0.mlp.up_proj.weight").why


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("change", ["scale", "swap", "rows"])
def test_a_bug_beneath_a_quantization(tmp_path: Path, kind: str, change: str) -> None:
    wrong = llama(7)
    name, other = "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.gate_proj.weight"
    if change == "scale":
        wrong[name] = wrong[name] * np.float32(1.1)
    elif change == "swap":
        wrong[name], wrong[other] = wrong[other], wrong[name]
    else:
        wrong[name] = np.roll(wrong[name], 3, axis=0)
    reference = write_sharded(llama(7), tmp_path / "ref")
    found = compare_weights(open_dump(reference), open_dump(write_gguf(wrong, tmp_path / "cand.gguf", kind)))
    row = row_of(found, "layers.1.mlp.up_proj.weight")
    assert row.hint is not None
    assert row.hint.kind == {"scale": "scale", "swap": "swapped", "rows": "shifted"}[change]


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
@pytest.mark.parametrize("change", ["none", "roll", "scale", "zero rows"])
def test_blocks_of_256(tmp_path: Path, kind: str, change: str) -> None:
    values = (np.random.default_rng(3).standard_t(5, (96, 512)) * 0.03).astype(np.float32)
    wrong = values.copy()
    if change == "roll":
        wrong = np.roll(values, 5, 0)
    elif change == "scale":
        wrong = values * np.float32(1.2)
    elif change == "zero rows":
        wrong[10:20] = 0
    name = "model.layers.0.mlp.down_proj.weight"
    reference = write_sharded({name: values}, tmp_path / "ref", shards=1)
    candidate = write_gguf({name: wrong}, tmp_path / "cand.gguf", kind)
    row = compare_weights(open_dump(reference), open_dump(candidate)).rows[0]
    if change == "none":
        assert (row.verdict, row.why) == ("agrees", f"equal up to quantization ({kind})")
    else:
        assert row.hint is not None, row.why
        assert row.hint.kind == {"roll": "shifted", "scale": "scale", "zero rows": "slice"}[change]


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (8, 64), (2, 32)])
def test_mlx_quantized(tmp_path: Path, bits: int, group: int) -> None:
    weights = {n: v for n, v in llama(8).items() if v.ndim < 2 or v.shape[1] % group == 0}
    reference = write_sharded(weights, tmp_path / "ref")
    folder = write_sharded(mlx_quantized(weights, bits, group), tmp_path / "mlx")
    (folder / "config.json").write_text(json.dumps({"quantization": {"bits": bits, "group_size": group}}))
    found = compare_weights(open_dump(reference), open_dump(folder))
    assert {row.verdict for row in found.rows} == {"agrees"}
    assert f"MLX {bits} bits" in row_of(found, "layers.0.mlp.up_proj.weight").why


def test_fp8_with_a_scale_for_each_block(tmp_path: Path) -> None:
    weights = {"model.layers.0.mlp.up_proj.weight": np.random.default_rng(0).normal(0, 0.02, (256, 256)).astype("f4")}
    blocks = weights["model.layers.0.mlp.up_proj.weight"].reshape(2, 128, 2, 128)
    scale = np.abs(blocks).max((1, 3)) / 448
    small = (blocks / scale[:, None, :, None]).reshape(256, 256).astype(ml_dtypes.float8_e4m3fn)
    reference = write_npz(weights, tmp_path / "ref.npz")
    import torch

    made = {
        "model.layers.0.mlp.up_proj.weight": torch.from_numpy(small.view(np.uint8)).view(torch.float8_e4m3fn),
        "model.layers.0.mlp.up_proj.weight_scale_inv": torch.from_numpy(scale.astype(np.float32)),
    }
    torch.save(made, tmp_path / "cand.bin")
    found = compare_weights(open_dump(reference), open_dump(tmp_path / "cand.bin"))
    assert [(row.verdict, row.why) for row in found.rows] == [("agrees", "equal up to rounding to float8_e4m3fn")]


def test_scales_that_were_left_out(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(0, 0.02, (256, 256)).astype(np.float32)
    factors = np.array([[0.5, 2.0], [3.0, 0.1]], np.float32).repeat(128, 0).repeat(128, 1)
    row = outcome(tmp_path, {"a.weight": values}, {"a.weight": values * factors}).rows[0]
    assert row.hint is not None
    assert "each block of 128 x 128" in row.hint.sentence


def test_a_quantization_that_is_not_read_is_not_passed_over(tmp_path: Path) -> None:
    packed = llama(9)
    values = packed.pop("model.layers.0.mlp.up_proj.weight")
    packed["model.layers.0.mlp.up_proj.qweight"] = np.zeros((values.shape[1] // 8, values.shape[0]), np.int32)
    without = {n: v for n, v in llama(9).items() if n != "model.layers.0.mlp.up_proj.weight"}
    found = outcome(tmp_path, without, packed)
    assert found.exit_status == 2
    assert "packed by a quantization" in found.doubts[0]


# --- types ---------------------------------------------------------------------------------------


def test_rounding_to_the_coarser_type_agrees(tmp_path: Path) -> None:
    halves: Weights = {n: v.astype(ml_dtypes.bfloat16) for n, v in llama(10).items()}
    found = compare_weights(
        open_dump(write_bin(llama(10), tmp_path / "ref")), open_dump(write_bin(halves, tmp_path / "cand"))
    )
    assert {row.why for row in found.rows} == {"equal up to rounding to bfloat16"}


def test_a_small_factor_is_not_rounding(tmp_path: Path) -> None:
    halves: Weights = {n: v.astype(ml_dtypes.bfloat16) for n, v in llama(10).items()}
    name = "model.layers.0.mlp.up_proj.weight"
    halves[name] = (llama(10)[name] * np.float32(1.002)).astype(ml_dtypes.bfloat16)
    found = compare_weights(
        open_dump(write_bin(llama(10), tmp_path / "ref")), open_dump(write_bin(halves, tmp_path / "cand"))
    )
    assert [row.name for row in found.findings] == ["layers.0.mlp.up_proj.weight"]
    assert found.findings[0].sentence.startswith("1.00")


def test_one_type_must_be_equal(tmp_path: Path) -> None:
    changed = llama(11)
    changed["model.norm.weight"] = changed["model.norm.weight"] * np.float32(1 + 1e-5)
    assert [row.name for row in outcome(tmp_path, llama(11), changed).findings] == ["norm.weight"]


def test_nan_on_one_side(tmp_path: Path) -> None:
    changed = llama(11)
    changed["model.norm.weight"][3] = np.nan
    found = outcome(tmp_path, llama(11), changed)
    assert [row.why for row in found.findings] == ["NaN or infinite on one side, in 1 of 64 elements"]


def test_nan_on_both_sides_in_one_place_agrees(tmp_path: Path) -> None:
    weights = llama(11)
    weights["model.norm.weight"][3] = np.nan
    assert outcome(tmp_path, weights, dict(weights)).exit_status == 0


# --- names ---------------------------------------------------------------------------------------

STRANGE = (("model.layers.", "net.step"), ("self_attn.q_proj", "look.ask"), ("mlp.up_proj", "think.wide"),
           ("mlp.gate_proj", "think.gated"), ("mlp.down_proj", "think.narrow"))  # fmt: skip


def strange(weights: Weights) -> Weights:
    made = {}
    for name, array in weights.items():
        new = name
        for ours, theirs in STRANGE:
            new = new.replace(ours, f"{theirs}." if ours.endswith(".") else theirs)
        made[new] = array
    return made


def test_names_are_learned_from_values_and_hold_where_values_differ(tmp_path: Path) -> None:
    wrong = llama(12)
    wrong["model.layers.1.mlp.up_proj.weight"] = wrong["model.layers.1.mlp.up_proj.weight"] * 2
    found = outcome(tmp_path, llama(12), strange(wrong))
    row = row_of(found, "layers.1.mlp.up_proj.weight")
    assert (row.by, row.sentence) == ("learned", "2 times the reference")
    assert len(found.findings) == len([r for r in found.findings if r.verdict != "missing"])


def test_a_map_of_the_user(tmp_path: Path) -> None:
    made = fuse(llama(13), QKV, "abc")
    rules = tmp_path / "rules.toml"
    parts = ", ".join(f"layers.{{i}}.self_attn.{part}.weight" for part in QKV)
    rules.write_text(f'[[map]]\nreference = "cat({parts}, axis=0)"\ncandidate = "layers.{{i}}.self_attn.abc.weight"\n')
    sides = write_sharded(llama(13), tmp_path / "ref"), write_sharded(made, tmp_path / "cand")
    found = compare_weights(open_dump(sides[0]), open_dump(sides[1]), read_rules_file(rules))
    assert row_of(found, "layers.0.self_attn.abc.weight").by == "map"
    assert found.exit_status == 0


def test_nothing_in_common_is_inconclusive(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    other: Weights = {f"a{k}.weight": random.normal(0, 1, (3, k + 2)).astype(np.float32) for k in range(4)}
    found = outcome(tmp_path, llama(14), other)
    assert found.exit_status == 2
    assert "could be paired" in found.doubts[-1]


def test_shards_of_devices_are_joined(tmp_path: Path) -> None:
    weights = llama(15)
    made: Weights = {}
    for name, array in weights.items():
        stem = name.removesuffix(".weight")
        axis = 1 if "o_proj" in name or "down_proj" in name else 0
        parts = np.split(array, 2, axis) if "_proj" in name else [array, array]
        made |= {f"{stem}._shards.{k}.weight": np.ascontiguousarray(part) for k, part in enumerate(parts)}
    found = outcome(tmp_path, weights, made)
    assert found.exit_status == 0
    assert "cat of 2 shards along 1" in " ".join(row_of(found, "layers.0.self_attn.o_proj.weight").views)
    changed = made | {"model.norm._shards.1.weight": made["model.norm._shards.1.weight"] + 1}
    found = compare_weights(open_dump(tmp_path / "ref"), open_dump(write_sharded(changed, tmp_path / "other")))
    assert [(row.name, row.why) for row in found.findings] == [
        ("norm.weight", "devices that should hold the same do not")
    ]


def test_rope_rows_of_gguf_in_one_layer_only(tmp_path: Path) -> None:
    wrong = llama(16)
    name = "model.layers.1.self_attn.q_proj.weight"
    values = wrong[name]
    wrong[name] = values.reshape(-1, HEAD // 2, 2, HIDDEN).swapaxes(1, 2).reshape(values.shape)  # undone by the writer
    reference = write_sharded(llama(16), tmp_path / "ref")
    found = compare_weights(open_dump(reference), open_dump(write_gguf(wrong, tmp_path / "cand.gguf")))
    assert [row.name for row in found.findings] == ["layers.1.self_attn.q_proj.weight"]
    assert f"blocks of {HEAD}" in found.findings[0].sentence
    assert len(found.rows) == len(wrong)
    assert wrong["lm_head.weight"].shape == (VOCAB, HIDDEN)


def test_norms_that_gguf_keeps_with_the_one_added(tmp_path: Path) -> None:
    less: Weights = {n: v - 1 if n.endswith("norm.weight") else v for n, v in llama(17).items()}
    reference = write_sharded(less, tmp_path / "ref")
    found = compare_weights(open_dump(reference), open_dump(write_gguf(llama(17), tmp_path / "cand.gguf")))
    assert found.exit_status == 0
    assert "less the 1 that GGUF adds" in " ".join(row_of(found, "norm.weight").views)
    wrong = llama(17)
    wrong["model.norm.weight"] = less["model.norm.weight"]
    found = compare_weights(open_dump(reference), open_dump(write_gguf(wrong, tmp_path / "wrong.gguf")))
    assert [row.name for row in found.findings] == ["norm.weight"]
    assert "- 1 everywhere" in found.findings[0].sentence


def test_mlx_keeps_experts_in_a_stack(tmp_path: Path) -> None:
    weights = experts(18)
    made = {name: array for name, array in weights.items() if ".experts." not in name}
    for k in range(3):
        for part in ("gate_proj", "up_proj", "down_proj"):
            all_of = [weights[f"model.layers.{k}.mlp.experts.{e}.{part}.weight"] for e in range(4)]
            made[f"model.layers.{k}.mlp.switch_mlp.{part}.weight"] = np.stack(all_of)
    assert outcome(tmp_path, weights, made).exit_status == 0


# --- nothing is left out silently ------------------------------------------------------------------

UP = "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize(
    ("kept", "beside"),
    [("model.norm.weight", "model.norm.gamma"), (f"{UP}.weight", f"{UP}._shards.0.weight")],
    ids=["gamma beside weight", "a part beside its whole"],
)
def test_two_that_would_be_the_same_parameter_are_both_compared(tmp_path: Path, kept: str, beside: str) -> None:
    values, other = (np.random.default_rng(seed).standard_normal((16, 8)).astype("f4") for seed in (0, 1))
    reference = open_dump(write_sharded({kept: values, beside: other}, tmp_path / "ref", shards=1))
    same = open_dump(write_sharded({kept: values, beside: other}, tmp_path / "same", shards=1))
    wrong = open_dump(write_sharded({kept: values, beside: -other}, tmp_path / "wrong", shards=1))
    assert compare_weights(reference, same).verdict == "agrees"
    found = compare_weights(reference, wrong)
    assert found.verdict == "diverges" and len(found.rows) == 2


@pytest.mark.parametrize(("theirs", "status"), [(1.0, 0), (2.0, 1), (None, 2)])
def test_scales_of_activations_are_compared_by_themselves(tmp_path: Path, theirs: float | None, status: int) -> None:
    sides = []
    for name, scale in (("ref", 1.0), ("cand", theirs)):
        tensors = {
            f"{UP}.weight": np.random.default_rng(0).standard_normal((16, 8)).astype(ml_dtypes.float8_e4m3fn),
            f"{UP}.weight_scale": np.ones((1, 1), np.float32),
        }
        if scale is not None:
            tensors[f"{UP}.input_scale"] = np.array([scale], np.float32)
        sides.append(open_dump(write_sharded(tensors, tmp_path / name, shards=1)))
    assert compare_weights(sides[0], sides[1]).exit_status == status


def test_the_state_of_training_is_left_aside_where_one_side_has_it(tmp_path: Path) -> None:
    import torch

    weights = llama(24)
    tensors = {name: torch.from_numpy(array.copy()) for name, array in weights.items()}
    state = {k: {"exp_avg": one * 0, "exp_avg_sq": one * 0} for k, one in enumerate(tensors.values())}
    torch.save({"model": tensors, "optimizer": {"state": state, "param_groups": [{"lr": 1e-3}]}}, tmp_path / "train.pt")
    reference = open_dump(write_sharded(weights, tmp_path / "ref"))
    found = compare_weights(reference, open_dump(tmp_path / "train.pt"))
    assert (found.verdict, found.counts["agrees"]) == ("agrees", 30)
    assert found.notes[0].startswith("training state on one side only, ignored: optimizer.")
    both = compare_weights(open_dump(tmp_path / "train.pt"), open_dump(tmp_path / "train.pt"))
    assert both.counts["agrees"] == 90
