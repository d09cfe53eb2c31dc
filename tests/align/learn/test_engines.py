"""Dumps of other engines without rules: nobody is blamed, and what has a counterpart is paired."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensordiff.session.request import Request
from tensordiff.session.session import Session

SHARED = Path(__file__).resolve().parents[4] / "shared" / "engines" / "dumps"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the dumps of other engines are not beside this checkout")

CASES = {"vllm": 150, "vllm-gpt2": 160, "vllm-hooks-skipped": 50, "mlx": 174, "llamacpp": 86, "jax": 58,
         "export-unflatten": 73}  # fmt: skip
"""The pairs that there are: by names and presets, by the tables of names, and what values prove beyond them."""


def compared(case: str, *, learn: bool = True) -> Session:
    return Session.open(Request(SHARED / case / "hf", SHARED / case / "cand", learn=learn))


@pytest.mark.parametrize(("case", "pairs"), CASES.items())
def test_no_culprit_and_nearly_all_counterparts(case: str, pairs: int) -> None:
    session = compared(case)
    outcome = session.outcome(session.rows())
    assert outcome.culprit is None, outcome.culprit.pair
    assert len(session.alignment.pairs) >= 0.95 * pairs


@pytest.mark.parametrize("case", ["export-unflatten", "vllm-gpt2"])
def test_without_learning_somebody_is_blamed(case: str) -> None:
    session = compared(case, learn=False)
    assert session.outcome(session.rows()).culprit is not None


def test_llamacpp_is_paired_as_its_table_of_names_says() -> None:
    found = {rule.map.candidate: rule.map.reference for rule in compared("llamacpp").dumps.learned.rules}
    block = "model.model.layers.{i}"
    assert found["blk.{i}.Qcur"] == f"flatten(interleave(heads({block}.self_attn.q_proj, 4)), -2, -1)"
    assert found["blk.{i}.Vcur"] == f"{block}.self_attn.v_proj"
    assert found["blk.{i}.kqv_out"] == f"{block}.self_attn.o_proj-input_0"
    assert found["blk.{i}.ffn_inp"] == f"{block}.post_attention_layernorm-input_0"
    assert found["blk.{i}.l_out"] == block
    assert found["result_norm"] == "model.model.norm"
