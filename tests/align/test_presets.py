"""Presets: chosen by the names of real models; what their files say."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tensordiff.align import align, presets
from tensordiff.align.expression import parse, placeholders
from tensordiff.align.presets import PRESETS, choose, fitting, preset
from tensordiff.align.rules.rule import RuleSet
from tests.align.model_names import (
    CONFIGS,
    FAIRSEQ_ROBERTA,
    MEGATRON_CORE,
    ORIGINAL_LLAMA,
    OTHERS,
    dump,
    layers_of,
    same,
    transformers_layers,
)
from tests.making import held, numbers

# --- choosing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("LlamaForCausalLM", "hf fused"),
        ("MixtralForCausalLM", "hf fused"),
        ("Phi3ForCausalLM", "hf fused"),
        ("GPT2LMHeadModel", "gpt2 fused"),
        ("GPTJForCausalLM", "gpt2 fused"),
        ("BloomForCausalLM", "megatron gpt2"),
        ("BertModel", "bert"),
        ("RobertaForMaskedLM", "bert"),
        ("OPTForCausalLM", "hf fairseq fused"),
        ("BartForConditionalGeneration", "hf fairseq fused"),
        ("T5ForConditionalGeneration", "hf"),
        ("vllm llama", "hf vllm fused"),
        ("max llama", "hf max fused"),
        ("max qwen3", "hf max fused"),
        ("max bert", "hf max bert"),
        ("verify_layers llama", "hf verify_layers fused"),
        ("original llama", "llama_original"),
        ("megatron core", "megatron"),
        ("megatron before core", "megatron max"),
        ("fairseq roberta", "hf fairseq fused"),
        ("fairseq decoder", "hf fairseq fused"),
    ],
)
def test_presets_are_chosen_by_the_names(model: str, names: str) -> None:
    assert fitting(dump(layers_of(model))) == tuple(names.split())


@pytest.mark.parametrize("is_gemma", [True, False])
def test_what_a_preset_needs_must_be_there_as_well(is_gemma: bool) -> None:
    """As many heads as tokens: only the architecture tells that transformers has heads first."""
    queries, x = numbers(1, 4, 4, 8), numbers(4, 8, seed=1)
    norms = {"model.layers.0.pre_feedforward_layernorm-output": x} if is_gemma else {}
    reference = held(norms | {"model.layers.0.self_attn.q_norm-output": queries, "lm_head-output": x[None]})
    by_token = queries[0].swapaxes(0, 1) if is_gemma else queries[0]
    candidate = held(norms | {"model.layers.0.self_attn.q_norm-output": by_token, "logits_processor-output": x[-1:]})
    pairs = align(reference, candidate).pairs
    (pair,) = (pair for pair in pairs if "q_norm" in pair.reference.name)
    assert np.array_equal(np.squeeze(pair.reference.read()), np.squeeze(pair.candidate.read()))
    assert ("vllm_gemma" in fitting(candidate)) is is_gemma


def test_each_side_is_looked_at_by_itself() -> None:
    chosen = choose(dump(transformers_layers("GPT2LMHeadModel")), dump(ORIGINAL_LLAMA))
    assert chosen.presets == {"reference": ("gpt2", "fused"), "candidate": ("llama_original",)}
    assert {(rule.source, rule.side) for rule in chosen.rules.rules} == {
        ("gpt2", "reference"),
        ("llama_original", "candidate"),
    }


def test_a_side_that_says_nothing_is_read_as_the_other() -> None:
    assert choose(dump(ORIGINAL_LLAMA), dump(["layers.0", "output"])).presets["candidate"] == ("llama_original",)
    assert same(ORIGINAL_LLAMA, ("layers.0", "output")) == {"layers.0": "layers.0", "output": "output"}
    assert same(("decoder.layers.0", "output_layer"), MEGATRON_CORE) == {
        "decoder.layers.0": "decoder.layers.0",
        "output_layer": "output_layer",
    }


def test_names_that_no_preset_knows() -> None:
    chosen = choose(dump(["tower.a"]), dump(["spire.b"]))
    assert chosen.rules == RuleSet(())
    assert chosen.maps == ()


def test_presets_may_be_asked_for() -> None:
    chosen = choose(dump(["tower.a"]), dump(["h.0"]), ("gpt2",))
    assert chosen.rules.canonical("h.0", "reference") == "layers.0"
    assert [rule.source for rule in choose(dump([]), dump([]), ()).rules.rules] == []


def test_rules_without_a_dump_to_look_at() -> None:
    assert {rule.source for rule in RuleSet().rules} == {"hf", "max", "bert"}


# One layer of vLLM's has a name that transformers has for another tensor: it is left as it is.
@pytest.mark.parametrize("model", [model for model in (*CONFIGS, *OTHERS) if model != "vllm llama"])
def test_one_layer_is_enough_to_be_read_like_the_rest(model: str) -> None:
    """A dump of a few layers must not be spelled otherwise than one of all: they would not pair."""
    layers = layers_of(model)
    whole = choose(dump(layers), dump(layers)).rules
    for layer in layers:
        few = choose(dump(layers), dump([layer])).rules
        assert few.canonical(layer, "candidate") == whole.canonical(layer, "candidate")


# --- the files -----------------------------------------------------------------------------------


def test_every_file_is_a_preset() -> None:
    folder = Path(presets.__file__).parent / "presets"
    assert {path.stem for path in folder.glob("*.toml")} == set(PRESETS)
    assert {path.suffix for path in folder.iterdir()} == {".toml"}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_says_what_it_is_for_and_has_both_ways_round(name: str) -> None:
    found = preset(name)
    assert found.about
    assert found.detect
    assert {rule.source for rule in found.rules} <= {name}
    assert {(m.reference, m.candidate) for m in found.maps} == {(m.candidate, m.reference) for m in found.maps}


def test_rules_of_presets_that_do_not_fit_are_not_read() -> None:
    """To check the expressions of all presets takes a third of the time of a small comparison."""
    preset.cache_clear()
    named = dump(["model.layers.0.self_attn.q_proj", "model.layers.0.mlp"])
    choice = choose(named, named)
    assert choice.rules
    read = {name for name in PRESETS if "rules" in vars(preset(name))}
    assert read == set(choice.presets["reference"]) < set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_maps_are_in_names_that_rules_leave_alone(name: str) -> None:
    for rule in preset(name).maps:
        sides = [parse(side) for side in (rule.reference, rule.candidate)]
        assert placeholders(sides[0]) == placeholders(sides[1])
        texts = re.findall(r"[a-z][\w.]*\{i\}[\w.]*", f"{rule.reference} {rule.candidate}")
        for text in texts:
            filled = text.replace("{i}", "3")
            assert RuleSet().canonical(filled, "reference") == filled


def test_roberta_by_maps_covers_every_linear_layer_and_norm() -> None:
    chosen = choose(dump(transformers_layers("RobertaForMaskedLM")), dump(FAIRSEQ_ROBERTA))
    mapped = {rule.candidate.replace("{i}", "0") for rule in chosen.maps if rule.reference.startswith("e")}
    spelled = {chosen.rules.canonical(name, "candidate") for name in FAIRSEQ_ROBERTA if ".1" not in name}
    alone = {"encoder.layers.0.self_attn", "lm_head", "lm_head.dense", "lm_head.layer_norm"}
    assert spelled - mapped == alone
