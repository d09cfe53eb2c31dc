"""Random small models with a bug: learning makes no wrong pair, names the same culprit, leaves equal names alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.random_models import random_pair
from studies.scrambled import planted, run_trial_of, wrong_pairs
from tensordiff.align import Pair
from tensordiff.align.index import parts_of
from tensordiff.session.request import Request
from tensordiff.session.session import Session

SEEDS = range(16)


@pytest.mark.parametrize("seed", SEEDS)
def test_renamed_no_pair_is_wrong_and_the_culprit_is_the_same(seed: int) -> None:
    trial = run_trial_of("random", *random_pair(seed), seed)
    assert not trial.wrong and trial.is_same
    assert trial.paired >= 0.7 * trial.counterparts


@pytest.mark.parametrize("seed", SEEDS)
def test_what_equal_names_pair_is_never_overruled_by_likeness(seed: int) -> None:
    reference, candidate = random_pair(seed)
    buggy = planted("random", reference, candidate, seed).buggy
    by_names, learned = (
        Session.of_dumps(Request(Path("a"), Path("b"), learn=learn), reference, buggy) for learn in (False, True)
    )
    assert set(map(names_of, by_names.alignment.pairs)) <= set(map(names_of, learned.alignment.pairs))
    assert not learned.dumps.learned.namesakes
    original = {id(new): old for new, old in zip(buggy.entries, candidate.entries, strict=True)}
    assert not wrong_pairs(learned, original)


def names_of(pair: Pair) -> tuple[tuple[str, ...], tuple[str, ...]]:
    ours, theirs = (tuple(part.name for part in parts_of(side)) for side in (pair.reference, pair.candidate))
    return ours, theirs
