"""A request refuses what cannot be meant, wherever it is made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tensordiff.errors import AlignError
from tensordiff.session.request import Request

REQUEST = Request(Path("a"), Path("b"))


def test_an_expression_that_is_none() -> None:
    with pytest.raises(AlignError, match=r"--only '\*' is not a regular expression"):
        replace(REQUEST, only="*")


def test_a_step_before_the_first() -> None:
    with pytest.raises(AlignError, match="step = -1: steps are counted from 0"):
        replace(REQUEST, step=-1)


def test_operations_are_compared_by_the_same_rules_and_limits() -> None:
    whole = replace(REQUEST, rules=Path("r.toml"), tolerances=Path("t.toml"), only="mlp", injected=Path("i"), step=1)
    inside = whole.of_operations(Path("c"), Path("d"))
    assert inside == Request(Path("c"), Path("d"), rules=Path("r.toml"), tolerances=Path("t.toml"), step=1)
