from __future__ import annotations

import numpy as np
import pytest

from tensordiff.align.expression import names, parse
from tensordiff.align.index import ComputedTensor, computed
from tensordiff.dump.model import entry
from tensordiff.errors import CaptureError
from tests.making import MemoryTensor

pytest.importorskip("torch")
from tensordiff.capture.injection.sources import split_computed

R = 100 * np.arange(6.0).reshape(1, 3, 2)
Q, K = np.arange(6.0).reshape(1, 3, 2), 10 + np.arange(3.0).reshape(1, 3, 1)


def stored(text: str) -> ComputedTensor:
    expression = parse(text)
    entries = {name: entry(name, MemoryTensor({"q": Q, "k": K, "r": R}[name])) for name in names(expression)}
    found = computed(expression, entries).stored
    assert isinstance(found, ComputedTensor)
    return found


@pytest.mark.parametrize(
    "text", ["cat(q, k)", "permute(q, 2, 0, 1)", "squeeze(q, 0)", "reshape(transpose(q, 1, 2), 6)", "unsqueeze(k, 0)"]
)
def test_a_view_is_gone_backwards(text: str) -> None:
    found = stored(text)
    back = split_computed(found, found.read())
    for name, one in found.entries.items():
        assert np.array_equal(back[one.key], {"q": Q, "k": K}[name])


@pytest.mark.parametrize("text", ["scale(q, 2)", "last_token(q)", "sum(q, q)", "slice(q, 1, 0, 2)"])
def test_what_loses_something_cannot_be(text: str) -> None:
    found = stored(text)
    with pytest.raises(CaptureError, match="cannot be inverted"):
        split_computed(found, found.read())


def test_a_sum_is_given_whole_to_its_first_part() -> None:
    found = stored("sum(q, r)")
    back = split_computed(found, found.read())
    assert np.array_equal(back[found.entries["q"].key], Q + R)
    assert np.array_equal(back[found.entries["r"].key], np.zeros_like(R))
