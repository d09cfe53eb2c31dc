"""Text by the columns it takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensordiff.report.labels import number
from tensordiff.util.text_width import columns, fit, pad, wrap

TEXT = st.text(st.sampled_from("ab .語é\u0301—"), max_size=60)


@pytest.mark.parametrize(("text", "wide"), [("abc", 3), ("語", 2), ("e\u0301", 1), ("é", 1), ("", 0), ("▁·✗", 3)])
def test_columns(text: str, wide: int) -> None:
    assert columns(text) == wide


def test_a_name_is_cut_in_the_middle() -> None:
    assert fit("model.layers.17.mlp.down_proj", 20) == "model.…mlp.down_proj"
    assert fit("short", 20) == "short"
    assert fit("語語語語", 5) == "…語語"


@given(TEXT, st.integers(2, 30))
def test_what_is_fitted_fits(text: str, width: int) -> None:
    assert columns(fit(text, width)) <= width


def test_nothing_is_cut_where_there_is_no_width() -> None:
    assert fit("a" * 500, None) == "a" * 500


@given(TEXT)
def test_padded_text_is_as_wide_as_asked(text: str) -> None:
    assert columns(pad(text, 150)) == 150


@given(TEXT, st.integers(8, 40))
def test_wrapped_lines_fit_and_lose_nothing(text: str, width: int) -> None:
    lines = list(wrap(text, width, "* ", "   "))
    assert all(columns(line) <= width for line in lines)
    assert lines[0].startswith("* ")
    assert all(line.startswith("   ") for line in lines[1:])
    kept = "".join([lines[0][2:], *(line[3:] for line in lines[1:])])
    assert kept.replace(" ", "") == text.replace(" ", "")


def test_lines_break_at_spaces() -> None:
    assert list(wrap("one two three", 9)) == ["one two", "three"]


def test_a_word_too_long_for_a_line_is_broken() -> None:
    assert list(wrap("abcdefgh", 5, "", "  ")) == ["abc", "  def", "  gh"]


def test_a_very_long_word_takes_few_steps() -> None:
    assert sum(1 for _ in wrap("a" * 1_000_000, 100)) == 10_000


def test_without_a_width_there_is_one_line() -> None:
    assert list(wrap("one  two " * 100, None, "* ", "  ")) == ["* " + "one  two " * 100]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.234e-7, "1.23e-07"),
        (1e-300, "1.0e-300"),
        (-1e300, "-1.0e+300"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text
