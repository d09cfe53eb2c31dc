"""The same tiny checkpoint on both engines: all that MAX computes is paired, agrees, and stands up to injection."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tensordiff.align.index import parts_of
from tensordiff.dump import Entry
from tests.capture_max.running import Sides, capture, compare

MODELS = [("llama", "float32"), ("llama", "bfloat16"), ("qwen3", "float32"), ("phi3", "float32"), ("bert", "float32")]
_ALONE = (
    "model-output_2",  # offsets of rows
    "model-output",  # BERT: pooled, which Hugging Face's model does not
)
_ROUNDING = {"float32": 2e-6, "bfloat16": 2e-2}

Both = Callable[[str, str], Sides]
each_model = pytest.mark.parametrize(("name", "dtype"), MODELS)


def _has_counterpart(entry: Entry) -> bool:
    inside = ("distributed_linear_layers", "embed_tokens.allreduce")
    return entry.name not in _ALONE and not any(part in entry.layer for part in inside)


@each_model
def test_every_output_is_paired_and_agrees(sides: Both, name: str, dtype: str) -> None:
    both = sides(name, dtype)
    compared = compare(both.reference, both.candidate)
    paired = {id(part) for pair in compared.session.alignment.pairs for part in parts_of(pair.candidate)}
    outputs = [entry for entry in compared.session.candidate.entries if not entry.is_input]
    assert [entry.name for entry in outputs if id(entry) not in paired and _has_counterpart(entry)] == []
    assert compared.outcome.verdict == "agrees"
    assert compared.culprit is None


@each_model
def test_right_inputs_change_nothing_beyond_rounding(sides: Both, name: str, dtype: str) -> None:
    both = sides(name, dtype)
    compared = compare(both.reference, both.candidate, both.injected)
    given = [row for row in compared.outcome.rows if row.injected is not None]
    assert len(given) > len(compared.outcome.rows) // 2
    assert compared.injected(above=_ROUNDING[dtype]) == set()
    assert compared.outcome.verdict == "agrees"


@each_model
def test_what_was_put_in_is_the_reference_bit_for_bit(sides: Both, name: str, dtype: str) -> None:
    both = sides(name, dtype)
    session = compare(both.reference, both.injected).session
    inputs = [p for p in session.pairs if p.candidate.is_input and p.candidate.origin and p.candidate.origin.injected]
    assert inputs
    for pair in inputs:
        assert np.array_equal(pair.reference.read().reshape(pair.candidate.spec.shape), pair.candidate.read())


def test_both_engines_are_as_far_from_double_precision(sides: Both) -> None:
    both = sides("llama", "float32")
    golden = capture(f"hf:{both.model}", both.folder / "golden", dtype="float64", attn_implementation="eager").path
    rows = compare(both.reference, both.candidate, golden=golden).outcome.rows
    ratios = [row.golden_ratio for row in rows if row.golden_ratio is not None and not row.pair.reference.is_input]
    assert len(ratios) > 15
    assert 0.5 < float(np.median(ratios)) < 2


def test_dump_says_how_it_was_made(sides: Both) -> None:
    both = sides("llama", "float32")
    dump = compare(both.reference, both.candidate).session.candidate
    assert dump.ordered
    assert dump.facts["framework"] == "max"
    assert "force" not in dump.facts["settings"]  # type: ignore[operator]
    assert list(dump.facts["token_ids"]) == both.token_ids  # type: ignore[call-overload]
    entry = next(entry for entry in dump.entries if entry.layer == "model.layers.layers.0.mlp")
    assert entry.origin is not None
    assert (entry.origin.module_class, entry.origin.source_file) == ("MLP", "max/nn/linear.py")


def test_what_cannot_be_put_in_is_listed(sides: Both) -> None:
    both = sides("llama", "float32")
    injection = compare(both.reference, both.injected).session.candidate.facts["injection"]
    assert isinstance(injection, dict)
    kept = injection["layers"]["model.layers.layers.0.self_attn"]["kept"]
    assert {"input_0", "input_2", "input_3", "input_4"} <= set(kept)
    assert "no tensor" in kept["input_2"]  # the cache
    assert "frequencies" in kept["input_3"]
    assert "offsets" in kept["input_4"]
