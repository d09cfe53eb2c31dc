"""Text by the columns it takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensordiff.util.text_width import columns, cut_end, cut_middle, pad, wrap

TEXT = st.text(st.sampled_from("ab .語é\u0301—"), max_size=60)


@pytest.mark.parametrize(("text", "wide"), [("abc", 3), ("語", 2), ("e\u0301", 1), ("é", 1), ("", 0), ("▁·✗", 3)])
def test_columns(text: str, wide: int) -> None:
    assert columns(text) == wide


def test_a_name_is_cut_in_the_middle() -> None:
    assert cut_middle("model.layers.17.mlp.down_proj", 20) == "…17.mlp.down_proj"
    assert cut_middle("model.layers.17.mlp.down_proj", 16) == "17…mlp.down_proj"
    assert cut_middle("short", 20) == "short"
    assert cut_middle("語語語語", 5) == "…語語"


@given(TEXT, st.integers(2, 30))
def test_what_is_fitted_fits(text: str, width: int) -> None:
    assert columns(cut_middle(text, width)) <= width


@given(TEXT, st.integers(2, 30))
def test_what_is_cut_fits_and_keeps_its_beginning(text: str, width: int) -> None:
    shown = cut_end(text, width)
    assert columns(shown) <= width
    assert shown == text or (shown.endswith("…") and text.startswith(shown[:-1]))


@pytest.mark.parametrize(("cut", "text"), [(cut_middle, "語…語語語"), (cut_end, "語語語語…")])
def test_a_width_may_be_counted_in_characters(cut: Callable[..., str], text: str) -> None:
    assert cut("語" * 6, 5, len) == text
    assert cut("語" * 5, 5, len) == "語" * 5


def test_nothing_is_cut_where_there_is_no_width() -> None:
    assert cut_middle("a" * 500, None) == "a" * 500


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
