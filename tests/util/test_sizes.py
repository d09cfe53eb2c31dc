from __future__ import annotations

import pytest

from tensordiff.util.sizes import format_bytes, format_percent_of


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2304, "2.3 kB"), (999_960, "1.0 MB"), (3 * 10**6, "3.0 MB"),
     (5 * 10**9, "5.0 GB"), (2 * 10**12, "2.0 TB"), (3 * 10**15, "3000.0 TB")],
)  # fmt: skip
def test_bytes_are_said_in_the_unit_that_suits_them(nbytes: int, said: str) -> None:
    assert format_bytes(nbytes) == said


@pytest.mark.parametrize(
    ("count", "total", "said"),
    [(0, 0, "0%"), (0, 9, "0%"), (1, 3, "33.3%"), (2, 3, "66.6%"), (9, 9, "100%"), (9999, 10_000, "99.9%"),
     (1, 10_000, "<0.1%"), (1, 1000, "0.1%")],
)  # fmt: skip
def test_percentages_are_rounded_down_and_some_is_never_none(count: int, total: int, said: str) -> None:
    assert format_percent_of(count, total) == said
