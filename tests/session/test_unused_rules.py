"""Rules that matched nothing are told, with the nearest real name."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensordiff
from tests.making import numbers, write

A = {f"model.layers.{k}.{part}": numbers(4, 8, seed=k) for k in range(3) for part in ("self_attn", "mlp")}


def told(tmp_path: Path, rules: str) -> list[str]:
    path = tmp_path / "rules.toml"
    path.write_text(rules)
    findings = tensordiff.compare(A, A, rules=path).findings
    return [f"{one.where}: {one.what}" for one in findings if one.why == "it changed nothing here"]


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ("[[rule]]\nside = 'both'\nmatch = '^modl\\.layers\\.'\nreplace = ''",
         r"rule ^modl\.layers\.: matches nothing; the nearest name is model.layers."),
        ("[[map]]\nreference = 'layers.{i}.self_atn'\ncandidate = 'layers.{i}.mlp'",
         "map layers.{i}.self_atn = layers.{i}.mlp: matches nothing: the reference has no layers.{i}.self_atn; "
         "the nearest name is layers."),
        ("[[map]]\nreference = 'layers.{i}.mlp'\ncandidate = 'zzz'",
         "map layers.{i}.mlp = zzz: matches nothing: the candidate has no zzz"),
        ("[[view]]\nmatch = '\\.mpl$'\ncandidate = 'last_token'", r"view \.mpl$: matches nothing"),
        ("[[tolerance]]\nmatch = 'self_atn$'\nrel_l2 = 1e-3",
         "tolerance self_atn$: matches nothing; the nearest name is layers."),
    ],
)  # fmt: skip
def test_what_matched_nothing(tmp_path: Path, rules: str, says: str) -> None:
    (found,) = told(tmp_path, rules)
    assert found.startswith(says)


@pytest.mark.parametrize(
    "rules",
    [
        "",
        "[[rule]]\nside = 'both'\nmatch = '^model\\.'\nreplace = ''",
        "[[rule]]\nside = 'both'\nmatch = 'nothing'\nreplace = ''\non = false",
        "[[map]]\nreference = 'layers.{i}.mlp'\ncandidate = 'layers.{i}.mlp'",
        "[[map]]\nreference = 'layers.7.mlp'\ncandidate = 'layers.7.mlp'\non = false",
        "[[tolerance]]\nmatch = 'mlp-output$'\nrel_l2 = 1e-3",
    ],
)
def test_what_did_something_or_is_off(tmp_path: Path, rules: str) -> None:
    assert told(tmp_path, rules) == []


def test_rules_of_a_session_are_not_told_within_one_layer(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\nside = 'both'\nmatch = 'query$'\nreplace = 'q_proj'")
    ops = {"layers.0.mlp/op_00_aten.mm-output": numbers(4, 8)}
    sides = [write(tmp_path / name, ops, settings={"ops": "layers.0.mlp"}) for name in ("a", "b")]
    assert not any(one.why == "it changed nothing here" for one in tensordiff.compare(*sides, rules=rules).findings)
