"""Hints told by where the error stands, and by how small it is."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from tensordiff.compare.hint import Hint
from tensordiff.compare.hint.catalogue import find_hint
from tensordiff.compare.hint.context import HintContext
from tensordiff.dump.dtypes import DTYPES, Array
from tests.compare.hint.test_catalogue import told
from tests.making import nudged, numbers


@pytest.mark.parametrize(
    ("tokens", "kind"),
    [
        ([0], "first_token"), ([5], "one_token"), ([8], "last_token"), (range(1, 9), "all_but_first"),
        (range(4, 9), "from_token"), (range(4), "up_to_token"),
        ([2, 6], "scattered_tokens"),
    ],
)  # fmt: skip
def test_tokens(tokens: list[int], kind: str | None) -> None:
    ref = numbers(1, 9, 64)
    cand = ref.copy()
    cand[:, list(tokens)] += numbers(1, len(tokens), 64, seed=1)
    found = find_hint(ref, cand)
    assert (found and found.kind) == kind
    if found:
        assert found.evidence["tokens"] == list(tokens)


def test_every_token_but_the_last_is_said_only_of_errors_that_fall() -> None:
    """Without a causal mask the first tokens see most that they should not; a router gets the last right by chance."""
    ref = numbers(1, 9, 64)
    falling = np.array([2, 1.2, 1.9, 1.3, 1.6, 1.7, 1.0, 1.4, 0])
    found = find_hint(ref, np.asarray(ref + falling[:, None] * numbers(1, 9, 64, seed=1)))
    assert found is not None
    assert (found.kind, found.evidence["tokens"]) == ("all_but_last", list(range(8)))
    falling[:8] = 1, 0.4, 0.9, 0.6, 0.7, 1, 0.8, 0.9
    assert find_hint(ref, np.asarray(ref + falling[:, None] * numbers(1, 9, 64, seed=1))) is None


def test_a_stray_element_is_not_a_wrong_token() -> None:
    ref = numbers(9, 64)
    cand = ref.copy()
    cand[4, 7] += 100
    assert find_hint(ref, cand) is None


def test_other_tokens_must_be_right_not_only_less_wrong() -> None:
    ref = numbers(9, 64)
    cand = nudged(ref, 0.05)
    cand[4] = 100 * numbers(64, seed=2)
    assert find_hint(ref, cand) is None


def test_a_head_and_a_block() -> None:
    ref = numbers(9, 128)
    cand = ref.copy()
    cand[:, 32:64] = numbers(9, 32, seed=1)
    found = told(ref, cand)
    assert (found.kind, found.evidence["head"], found.evidence["heads"]) == ("one_head", 1, 4)
    cand = ref.copy()
    cand[:, 30:37] = numbers(9, 7, seed=1)
    found = told(ref, cand)
    assert (found.kind, found.evidence["channels"]) == ("channel_block", [30, 37])


@pytest.mark.parametrize("side", ["candidate", "reference"])
def test_where_nan_stands(side: str) -> None:
    ref = numbers(2, 9, 64)
    for part, where in (((slice(None), 3), "tokens"), ((..., slice(16, 32)), "channels"), ((1,), "groups")):
        cand = ref.copy()
        cand[part] = math.nan
        found = told(ref, cand) if side == "candidate" else told(cand, ref)
        assert (found.kind, found.evidence["side"], found.evidence["where"]) == ("nan", side, where)
    cand = np.full_like(ref, math.nan)
    assert told(ref, cand).evidence["where"] == "everywhere"
    cand = ref.copy()
    cand[0, 1, 2] = cand[1, 3, 4] = math.nan
    assert (told(ref, cand).evidence["where"], told(ref, cand).evidence["elements"]) == ("scattered", 2)


def test_an_overflow_is_told_from_an_infinity() -> None:
    ref = numbers(9, 64) * 4e4
    with np.errstate(over="ignore"):
        small = ref.astype(np.float16)
    assert np.isinf(small).any()
    found = told(ref, small.astype(np.float32))
    assert (found.kind, found.evidence["overflow"]) == ("inf", "float16")
    cand = ref.copy()
    cand[0, 0] = math.inf
    assert "overflow" not in told(ref, cand).evidence


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_a_cast_is_told_whichever_side_has_it(name: str) -> None:
    ref = numbers(32, 64)
    cast = ref.astype(DTYPES[name]).astype(np.float32)
    for side, pair in (
        ("candidate", (ref, cast)),
        ("reference", (cast, ref)),
        ("candidate", (ref, ref.astype(DTYPES[name]))),
    ):
        found = told(*pair)
        assert (found.kind, found.evidence["side"]) == ("rounded", side)
        assert name.removesuffix("fn") in str(found.evidence["type"])


def test_a_smaller_type_that_does_not_explain_the_error_is_not_blamed() -> None:
    ref = numbers(32, 64)
    assert find_hint(ref, nudged(ref, 0.2).astype(DTYPES["bfloat16"])) is None
    assert find_hint(ref, nudged(ref, 0.2).astype(DTYPES["bfloat16"]).astype(np.float32)) is None


def test_a_product_and_a_sum_rounded_once_or_twice() -> None:
    a, b, c = (np.abs(numbers(32, 64, seed=seed)) for seed in range(3))
    once = (a.astype(np.float64) * b + c).astype(np.float32)
    found = told(a * b + c, once)
    assert (found.kind, found.evidence["type"]) == ("last_bits", "float32")


def short(x: Array) -> Array:
    return np.asarray(x.astype(ml_dtypes.bfloat16))


def off_by(sizes: Array) -> Array:
    """Tokens, or rows of a batch, each off by its own share."""
    return np.asarray(GROUND + sizes * numbers(*GROUND.shape, seed=5))


GROUND = numbers(3, 24, 64, seed=8)


def test_where_wrong_tokens_begin_is_told_in_few_bits_if_there_is_a_step() -> None:
    errors = np.where(np.arange(24) < 10, 0.004, np.where(np.arange(24) % 3 == 0, 0.05, 0.4))
    found = find_hint(short(GROUND), short(off_by(errors[:, None])))
    assert found is not None
    assert (found.kind, found.evidence["tokens"]) == ("from_token", list(range(10, 24)))
    errors[9] = 0.015  # begins small
    errors[10] = 0.03
    found = find_hint(short(GROUND), short(off_by(errors[:, None])))
    assert found is None or found.kind != "from_token"


def test_scattered_tokens_are_told_in_few_bits_only_if_there_is_a_step() -> None:
    """As tokens are that were sent to other experts, in a block of which nothing else was dumped."""
    errors = np.full(24, 0.004)
    errors[[2, 3, 11, 20]] = 0.4, 0.1, 0.6, 0.2
    one = GROUND[:1]

    def found(sizes: Array) -> Hint | None:
        return find_hint(short(one), short(np.asarray(one + sizes[:, None] * numbers(*one.shape, seed=5))))

    hint = found(errors)
    assert hint is not None
    assert (hint.kind, hint.evidence["tokens"]) == ("scattered_tokens", [2, 3, 11, 20])
    errors[[7, 15]] = 0.02  # neither right nor wrong
    assert found(errors) is None
    weights = numbers(1, 24, 4)
    other = weights.copy()
    other[:, [2, 11, 20]] = weights[:, [2, 11, 20], ::-1]  # of experts in another order
    assert find_hint(weights, other) is None


def test_that_the_first_token_is_right_is_said_in_few_bits_where_the_beginning_is_below_rounding() -> None:
    wave = 1 + 0.8 * np.sin(7 * np.arange(24))
    growing = 0.004 + 0.25 * wave * np.clip((np.arange(24) - 1) / 8, 0, 1)  # token 1 is below rounding
    hint = find_hint(short(GROUND), short(off_by(growing[:, None])))
    assert hint is not None
    assert (hint.kind, hint.evidence["right"]) == ("later_tokens", [0])
    growing[0] = 0.05
    assert find_hint(short(GROUND), short(off_by(growing[:, None]))) is None
    even = np.where(np.arange(24) == 0, 0.004, 0.3 * wave[::-1])  # wrong as much from the beginning on
    found = find_hint(short(GROUND), short(off_by(even[:, None])))
    assert found is None or found.kind == "all_but_first"


def test_rows_of_a_batch_are_told_in_few_bits_by_those_that_are_right() -> None:
    context = HintContext(batch=3)
    found = find_hint(short(GROUND), short(off_by(np.array([0.004, 0.05, 0.004])[:, None, None])), context)
    assert found is not None
    assert (found.kind, found.evidence["rows"]) == ("batch_rows", [1])
    uneven = off_by(np.array([0.004, 0.05, 0.015])[:, None, None])
    assert find_hint(short(GROUND), short(uneven), context) is None


def test_rounding_is_that_of_the_coarsest_type_on_the_way() -> None:
    """A residual stream may be kept in float32 and hold what bfloat16 parts added."""
    wrong = off_by(np.array([0.004, 0.6, 0.004])[:, None, None])
    assert find_hint(GROUND, wrong, HintContext(batch=3)) is None
    context = HintContext(batch=3, computed_in=("bfloat16", "bfloat16"))
    found = find_hint(GROUND, wrong, context)
    assert found is not None
    assert found.kind == "batch_rows"
