"""Scrambled names: the machinery of the study, and one trial of each kind of dump."""

from __future__ import annotations

import random

import pytest

from studies.scrambled import SHARED, Scheme, pairings, renamed, run_trial
from tensordiff.dump import open_dump

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared dumps are not beside this checkout")


def test_a_scheme_renames_consistently() -> None:
    spell = Scheme("net", {"self_attn": "mixing_part", "layers": "unit"}, 1, 2, "/", camel=True)
    assert spell("model.layers.3.self_attn.q_proj") == "net/unit/04/mixingPart/qProj"
    assert spell("model") == "model"


def test_renaming_keeps_all_but_names() -> None:
    dump = open_dump(next(iter(pairings())).reference)
    other = renamed(dump, str.upper)
    assert [entry.port for entry in other.entries] == [entry.port for entry in dump.entries]
    assert other.entries[0].layer == dump.entries[0].layer.upper()


@pytest.mark.parametrize("name", ["bert", "jax"])
def test_a_trial(name: str) -> None:
    pairing = next(one for one in pairings() if one.name == name)
    trial = run_trial(pairing, random.Random(name).randrange(10))
    assert trial.is_same and not trial.wrong and trial.paired >= 0.95 * trial.counterparts


@pytest.mark.parametrize("name", ["llama", "llama_bf16", "phi3"])
def test_what_a_model_gives_on_is_paired_beyond_the_bug_like_what_it_copies(name: str) -> None:
    """MAX's model gives the last token's logits, as its head does when called again; the other side's gives all."""
    trial = run_trial(next(one for one in pairings() if one.name == name), 1)
    assert trial.is_same and not trial.wrong and trial.missed == ()


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        pytest.param("vllm-gpt2", 168, id="dropout gives what the projection before it gives"),
        pytest.param("llamacpp", 175, id="a norm and the model around it give one tensor"),
        pytest.param("bert", 166, id="a module and the one in it give one tensor"),
        pytest.param("vllm", 155, id="the first norm is given no residual"),
        pytest.param("vllm", 218, id="rope is given what projections give, which is fused there"),
    ],
)
def test_which_of_several_layers_that_give_one_tensor_is_meant(name: str, seed: int) -> None:
    trial = run_trial(next(one for one in pairings() if one.name == name), seed)
    assert trial.is_same and not trial.wrong


@pytest.mark.parametrize(
    ("seed", "culprit"),
    [
        pytest.param(
            236, "blk.0.Kcur-output", id="keys whose halves rope has side by side are wrong in the first block"
        ),
        pytest.param(
            248, "blk.0.attn_norm-output", id="the first norm is wrong, and the norm before its weight is not"
        ),
        pytest.param(247, "blk.0.Kcur-output", id="little is left of what the next layers get"),
    ],
)
def test_llama_cpp_shows_norms_before_their_weight_and_rope_in_pairs(seed: int, culprit: str) -> None:
    trial = run_trial(next(one for one in pairings() if one.name == "llamacpp"), seed)
    assert not trial.wrong and trial.named == trial.culprit == culprit
    assert trial.paired >= 0.9 * trial.counterparts
