"""What one map teaches: the renaming it implies, how many pairs that makes, and what the values say to it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensordiff.align.rules.implied import implied_rules
from tensordiff.align.rules.rule import Rule, RuleSet
from tensordiff.align.rules.tables import MapRule
from tensordiff.session.lesson import lesson
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.making import write

PARTS = ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj")
SPELLED = {"self_attn": "mixer", "q_proj": "query", "k_proj": "k_proj", "up_proj": "up_proj", "mlp": "mlp"}


def spelled(part: str) -> str:
    return ".".join(SPELLED[word] for word in part.split("."))


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """Three blocks, of which the candidate's last has an error, under other names."""
    rng = np.random.default_rng(0)
    ours = {f"layers.{i}.{part}-output": rng.standard_normal((4, 16)).astype("f4") for i in range(3) for part in PARTS}
    theirs = {
        f"gpt.cells.{i}.{spelled(part)}-output": ours[f"layers.{i}.{part}-output"] * np.float32(1 if i < 2 else 3)
        for i in range(3)
        for part in PARTS
    }
    return Session.open(Request(write(tmp_path / "r", ours), write(tmp_path / "c", theirs), learn=False))


def test_one_map_teaches_prefix_and_words_and_the_values_confirm_what_they_can(session: Session) -> None:
    assert not session.alignment.pairs
    taught = lesson(session, MapRule("layers.0.self_attn.q_proj", "gpt.cells.0.mixer.query", every=False))
    assert taught is not None
    assert [rule.replace for rule in taught.rules] == [r"layers.\1", r".self_attn\1", r".q_proj\1"]
    assert len(taught.pairs) == taught.measured == 8 and taught.confirmed == 5, "the third block's three are wrong"
    assert taught.sentence == "8 more pairs; the values confirm 5 of the 8 looked at"


def test_a_rule_that_would_break_a_pair_is_not_offered(tmp_path: Path) -> None:
    one, two = np.arange(16, dtype="f4").reshape(4, 4), np.ones((4, 4), "f4")
    ours = {"layers.0.norm-output": one, "layers.0.act-output": two}
    theirs = {"layers.0.act-output": two, "layers.0.act.norm-output": one, "layers.0.pre-output": one}
    session = Session.open(Request(write(tmp_path / "r", ours), write(tmp_path / "c", theirs), learn=False))
    assert [pair.name for pair in session.alignment.pairs] == ["layers.0.act"]
    assert lesson(session, MapRule("layers.0.norm", "layers.0.act", every=False)) is None


def test_an_expression_implies_nothing(session: Session) -> None:
    given = MapRule("cat(layers.0.self_attn.q_proj, layers.0.self_attn.k_proj)", "gpt.cells.0.mixer.query")
    assert lesson(session, given) is None


def test_numbers_that_differ_imply_nothing() -> None:
    assert implied_rules("layers.0.act", "cells.1.act") == []


@pytest.mark.parametrize(
    ("reference", "candidate", "other", "becomes"),
    [
        ("layers.0.mlp.act", "gpt.blocks.0.mlp.act", "gpt.blocks.7.attn.q", "layers.7.attn.q"),
        ("layers.0.mlp.act", "layers.0.ffn.gelu", "layers.3.ffn.up", "layers.3.mlp.up"),
        ("layers.0.self_attn.o_proj", "layers.0.merge", "layers.2.merge", "layers.2.self_attn.o_proj"),
        ("lm_head", "head", "head", "lm_head"),
        ("lm_head", "head", "head.bias", "lm_head.bias"),
        ("layers.0.a+b", "cells.0.a(b", "cells.1.a(b", "layers.1.a+b"),
    ],
)
def test_the_most_general_rules_rename_others_too(reference: str, candidate: str, other: str, becomes: str) -> None:
    rules: tuple[Rule, ...] = implied_rules(reference, candidate)[0]
    assert RuleSet(rules).canonical(candidate, "candidate") == reference
    assert RuleSet(rules).canonical(other, "candidate") == becomes
