"""The text that a name must contain for an expression to match it."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tensordiff.align.rules.rule import required_literal

PARTS = [
    "a",
    "b",
    ".",
    "|",
    "(",
    ")",
    "(?:",
    "(?=",
    "(?!",
    "[ab]",
    "[^|]",
    "[]",
    "]",
    "?",
    "*",
    "+",
    "{2}",
    "{,1}",
    "{",
    "}",
]
PARTS += ["^", "$", "\\.", "\\d", "\\b", "\\1", "\\x61", "(?i)", "(?#(", "\\|", "\\("]


@pytest.mark.parametrize(
    ("expression", "literal"),
    [
        (r"_shards\.0(?=\.|$)", "_shards.0"),
        (r"(^|\.)(layers?|blocks?|h)\.layers\.(?=\d)", ".layers."),
        (r"(?<=\.)LayerNorm(?=\.|$)", "LayerNorm"),
        (r"^(?:model\.)+(?=.)", ""),
        ("abc?d", "ab"),
        ("ab+cde", "cde"),
        ("ab|ab", ""),
        ("ab[|]cd", "ab"),
        ("(?i)ab", ""),
        (r"\x61b", ""),
        (r"\12b", ""),
        ("a{2}b", "b"),
        ("", ""),
    ],
)
def test_what_is_seen(expression: str, literal: str) -> None:
    assert required_literal(expression) == literal


@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=9).map("".join), st.text("abA.|({12", max_size=6))
def test_a_text_without_it_is_never_matched(expression: str, text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            pattern = re.compile(expression)
        except re.error:
            assume(False)
    if pattern.search(text):
        assert required_literal(expression) in text
