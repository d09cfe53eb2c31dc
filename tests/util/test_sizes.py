from __future__ import annotations

import pytest

from tensordiff.util.sizes import format_bytes


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2304, "2.3 kB"), (999_960, "1.0 MB"), (3 * 10**6, "3.0 MB"),
     (5 * 10**9, "5.0 GB"), (2 * 10**12, "2.0 TB"), (3 * 10**15, "3000.0 TB")],
)  # fmt: skip
def test_bytes_are_said_in_the_unit_that_suits_them(nbytes: int, said: str) -> None:
    assert format_bytes(nbytes) == said
