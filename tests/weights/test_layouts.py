"""One layout for all layers: a weight transposed where its kind is not, or the other way round, is a finding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tensordiff.dump import open_dump
from tensordiff.weights.comparison import WeightsOutcome, compare_weights
from tests.weights.making import Weights, llama, write_sharded

UP, OUT = "model.layers.1.mlp.up_proj.weight", "model.layers.1.self_attn.o_proj.weight"


def compared(tmp_path: Path, reference: Weights, candidate: Weights) -> WeightsOutcome:
    ref, cand = write_sharded(reference, tmp_path / "ref"), write_sharded(candidate, tmp_path / "cand")
    return compare_weights(open_dump(ref), open_dump(cand))


def transposed(weights: Weights, but: str = "") -> Weights:
    """As flax and Conv1D keep them; embedding and head stay."""
    return {
        name: np.ascontiguousarray(array.T) if array.ndim == 2 and "layers" in name and name != but else array
        for name, array in weights.items()
    }


@pytest.mark.parametrize("name", [UP, OUT])
def test_one_that_is_not_transposed_as_all_others_are(tmp_path: Path, name: str) -> None:
    weights = llama(41)
    found = compared(tmp_path, weights, transposed(weights, but=name))
    (row,) = found.findings
    assert found.exit_status == 1 and row.name == name.removeprefix("model.")
    assert row.hint is not None and row.hint.kind == "transposed"
    assert row.sentence == "laid out differently from the other layers: rows and columns are exchanged"


def test_an_oblong_one_that_is_transposed_and_no_other_is(tmp_path: Path) -> None:
    weights = llama(42)
    found = compared(tmp_path, weights, weights | {UP: np.ascontiguousarray(weights[UP].T)})
    assert found.exit_status == 1 and [row.name for row in found.findings] == [UP.removeprefix("model.")]


def test_another_bug_in_a_square_one_keeps_its_hint(tmp_path: Path) -> None:
    weights = llama(43)
    found = compared(tmp_path, weights, transposed(weights | {OUT: weights[OUT] * 2}))
    (row,) = found.findings
    assert row.sentence == "2 times the reference"


def test_all_linear_weights_transposed_are_a_convention_that_is_noted(tmp_path: Path) -> None:
    weights = llama(44)
    found = compared(tmp_path, weights, transposed(weights))
    assert found.verdict == "agrees"
    (note,) = found.notes
    assert note.startswith("taken as laid out [in, out] on one side and [out, in] on the other: layers.0.")
    assert note.endswith("and 20 more")


ODD = "transposed: rows and columns are exchanged, while most other weights have them in order"


def turned(weights: Weights, *parts: str) -> Weights:
    return {
        name: np.ascontiguousarray(array.swapaxes(-1, -2)) if any(part in name for part in parts) else array
        for name, array in weights.items()
    }


@pytest.mark.parametrize("part", ["gate_proj", "down_proj", "embed_tokens", "lm_head"])
def test_one_kind_transposed_in_all_layers_is_a_finding(tmp_path: Path, part: str) -> None:
    weights = llama(44)
    found = compared(tmp_path, weights, turned(weights, part))
    assert found.exit_status == 1 and {row.sentence for row in found.findings} == {ODD}
    assert all(part in row.name and row.hint and row.hint.kind == "transposed" for row in found.findings)


def test_a_transposed_head_does_not_excuse_square_weights(tmp_path: Path) -> None:
    weights = llama(44)
    found = compared(tmp_path, weights, turned(weights, "lm_head", "o_proj"))
    assert {row.name for row in found.findings} == {
        "lm_head.weight", *(f"layers.{k}.self_attn.o_proj.weight" for k in range(3))
    }  # fmt: skip


def with_stacks(weights: Weights) -> Weights:
    """Beside what a Llama has, a stack of experts in every layer."""
    made = np.random.default_rng(3).standard_t(6, (3, 4, 96, 64)).astype(np.float32)
    return weights | {f"model.layers.{k}.mlp.experts.w13_weight": made[k] for k in range(3)}


def test_stacks_have_a_layout_of_their_own_which_excuses_no_linear_weight(tmp_path: Path) -> None:
    weights = with_stacks(llama(44))
    assert compared(tmp_path / "stacks", weights, turned(weights, "experts")).verdict == "agrees"
    found = compared(tmp_path / "both", weights, turned(weights, "experts", "o_proj"))
    assert [row.name for row in found.findings] == [f"layers.{k}.self_attn.o_proj.weight" for k in range(3)]


def test_a_kernel_is_transposed_by_its_name(tmp_path: Path) -> None:
    weights = llama(44)
    made = {
        name.replace(".weight", ".kernel") if "o_proj" in name or "up_proj" in name else name: array
        for name, array in turned(weights, "o_proj", "up_proj").items()
    }
    assert compared(tmp_path, weights, made).verdict == "agrees"


def gpt2(seed: int, width: int = 64) -> Weights:
    """The matrices of a small GPT-2 in the layout of Linear; its table of positions is square, as GPT-2 Medium's is."""
    random = np.random.default_rng(seed)

    def matrix(*shape: int) -> NDArray[np.float32]:
        return (random.standard_t(6, shape) * 0.04).astype(np.float32)

    made: Weights = {"transformer.wte.weight": matrix(96, width), "transformer.wpe.weight": matrix(width, width)}
    for k in range(3):
        prefix = f"transformer.h.{k}."
        made |= {
            f"{prefix}ln_1.weight": matrix(width),
            f"{prefix}attn.c_attn.weight": matrix(3 * width, width),
            f"{prefix}attn.c_proj.weight": matrix(width, width),
            f"{prefix}mlp.c_fc.weight": matrix(4 * width, width),
            f"{prefix}mlp.c_proj.weight": matrix(width, 4 * width),
        }
    return made


CONV1D = ("c_attn", "c_fc", "attn.c_proj", "mlp.c_proj")


def test_a_conv1d_of_which_only_the_oblong_weights_are_transposed(tmp_path: Path) -> None:
    """The shapes of the square one fit without it, and most forget it there."""
    weights = gpt2(45)
    assert compared(tmp_path / "all", weights, turned(weights, *CONV1D)).verdict == "agrees"
    found = compared(tmp_path / "oblong", weights, turned(weights, "c_attn", "c_fc", "mlp.c_proj"))
    assert found.exit_status == 1
    assert [row.name for row in found.findings] == [f"layers.{k}.self_attn.o_proj.weight" for k in range(3)]
    assert {row.sentence for row in found.findings} == {
        "not transposed: rows and columns are in order, while most other weights have them exchanged"
    }
    assert all(row.hint is not None and row.hint.kind == "transposed" for row in found.findings)


def test_a_square_kernel_that_is_not_transposed(tmp_path: Path) -> None:
    weights = llama(46)
    made = {name.replace("o_proj.weight", "o_proj.kernel"): array for name, array in weights.items()}
    found = compared(tmp_path, weights, made)
    assert found.exit_status == 1
    assert [row.name for row in found.findings] == [f"layers.{k}.self_attn.o_proj.weight" for k in range(3)]


def test_a_symmetric_weight_is_laid_out_either_way(tmp_path: Path) -> None:
    weights = gpt2(47)
    weights |= {name: array + array.T for name, array in weights.items() if "attn.c_proj" in name}
    assert compared(tmp_path, weights, turned(weights, "c_attn", "c_fc", "mlp.c_proj")).verdict == "agrees"


@pytest.mark.parametrize("name", ["relative_attention_bias", "position_embeddings", "token_type_embeddings"])
def test_a_square_table_is_no_linear_weight(tmp_path: Path, name: str) -> None:
    weights = gpt2(48)
    weights |= {f"transformer.h.0.attn.{name}.weight": weights["transformer.wpe.weight"] * 2}
    assert compared(tmp_path, weights, turned(weights, *CONV1D)).verdict == "agrees"
