"""Every kind planted many times: the right hint nearly always, a wrong one hardly ever, none where there is no kind."""

from __future__ import annotations

from collections import Counter

import pytest

from tensordiff.compare.hint import Hint
from tensordiff.compare.hint.catalogue import find_hint
from tests.compare.hint.errors_without_kind import NO_KIND
from tests.compare.hint.healthy_pairs import ground
from tests.compare.hint.planted_errors import KINDS

SEEDS = range(1000, 1050)
NOISES = 300


def kind_of(found: Hint | None) -> str:
    return found.kind if found else "no idea"


@pytest.mark.slow
@pytest.mark.parametrize("planted", KINDS)
def test_what_is_planted_is_told(planted: str) -> None:
    make, right = KINDS[planted]
    told = Counter(kind_of(find_hint(*make(ground(seed)))) for seed in SEEDS)
    wrong = {kind: count for kind, count in told.items() if kind not in right | {"no idea"}}
    assert sum(told[kind] for kind in right) >= 0.9 * len(SEEDS), told
    assert sum(wrong.values()) <= 0.02 * len(SEEDS), wrong


@pytest.mark.slow
def test_what_has_no_kind_gets_no_hint() -> None:
    told = {}
    for seed in range(NOISES):
        make = NO_KIND[seed % len(NO_KIND)]
        if found := find_hint(*make(ground(seed))):
            told[make.__name__, seed] = found.sentence
    assert len(told) <= 0.02 * NOISES, told


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_the_same_pair_twice_has_no_error_to_speak_of(dtype: str) -> None:
    pair = ground(5, dtype)
    assert find_hint(pair.ref, pair.ref.copy()) is None
