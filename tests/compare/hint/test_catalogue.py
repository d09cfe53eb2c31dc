"""Hints one by one: what they say, what they hold as evidence, and when they are silent."""

from __future__ import annotations

import json
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as from_numpy

from tensordiff.compare.hint import Hint
from tensordiff.compare.hint import sample as sample_module
from tensordiff.compare.hint.catalogue import find_hint
from tensordiff.compare.hint.context import HintContext
from tensordiff.compare.hint.sample import SAMPLE_SIZE, SampledPair, evenly_spaced
from tensordiff.dump.dtypes import DTYPES, Array
from tensordiff.report.comparison_json import dumps
from tests.making import nudged, numbers


def told(ref: Array, cand: Array, near: dict[str, Array] | None = None) -> Hint:
    found = find_hint(ref, cand, HintContext(near or {}))
    assert found is not None
    return found


# --- before the happy case -------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (1, 1), (5,), (1, 1, 1, 1, 1)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "complex64", "float8_e4m3fn"])
def test_what_is_too_small_has_no_kind(shape: tuple[int, ...], dtype: str) -> None:
    ref, cand = np.ones(shape).astype(DTYPES[dtype]), np.zeros(shape).astype(DTYPES[dtype])
    assert find_hint(ref, cand) is None


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="reconcile"):
        find_hint(numbers(2, 3), numbers(3, 2))


def test_a_zero_reference() -> None:
    assert find_hint(np.zeros((9, 64)), numbers(9, 64)) is None


@pytest.mark.parametrize("both", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_on_both_sides_is_no_error(both: float) -> None:
    ref = numbers(16, 16)
    ref[np.triu_indices(16, 1)] = both
    assert find_hint(ref, ref.copy()) is None
    assert told(ref, 2 * ref).kind == "scale"


@pytest.mark.parametrize("exponent", [-300, -160, 0, 160, 300])
def test_size_does_not_matter(exponent: int) -> None:
    usual, factor = numbers(9, 64, dtype="float64"), 10.0**exponent
    ref = usual * factor
    assert told(ref, 3 * ref).evidence["factor"] == pytest.approx(3)
    assert told(ref, np.roll(ref, 1, axis=0)).kind == "shifted"
    assert find_hint(ref, nudged(usual, 0.1) * factor) is None


def test_integers_that_floats_cannot_hold_are_not_guessed_at() -> None:
    ref = np.arange(64, dtype=np.int64) + (1 << 60)
    assert find_hint(ref, ref + 1) is None
    assert told(ref - (1 << 60), ref - (1 << 60) + 1).evidence["bias"] == 1


def test_complex_numbers_are_pairs_of_reals() -> None:
    ref = numbers(9, 32, dtype="float64").view(np.complex128)
    assert told(ref, ref * 0.5).kind == "scale"
    assert find_hint(ref, ref * 1j) is None


ARRAYS = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda name: from_numpy.arrays(
        np.float64,
        from_numpy.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=9),
        elements=st.floats(-1e3, 1e3) | st.sampled_from([math.nan, math.inf, -math.inf]),
    ).map(lambda array: (name, array))
)


@settings(max_examples=150, deadline=None)
@given(ARRAYS, st.integers(0, 2**32 - 1))
def test_anything_may_be_asked(named: tuple[str, Array], seed: int) -> None:
    name, array = named
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        ref, cand = array.astype(DTYPES[name]), (array * rng.choice([0.5, 1, 2], array.shape)).astype(DTYPES[name])
    found = find_hint(ref, cand, HintContext({"input_0": ref[..., ::-1] if ref.ndim else ref}))
    if found is not None:
        assert found.sentence
        assert json.loads(dumps(found._asdict()))["kind"] == found.kind


# --- a factor, a constant, another tensor ------------------------------------------------------------


@given(
    st.floats(1e-3, 1e3).filter(lambda f: abs(f - 1) > 0.01 and abs(abs(f - 1) - 0.02) > 1e-6), st.sampled_from([-1, 1])
)
@settings(max_examples=30, deadline=None)
def test_a_factor_is_told(factor: float, sign: int) -> None:
    ref = numbers(9, 64)
    found = told(ref, ref * np.float32(sign * factor))
    if sign * factor == pytest.approx(-1, abs=0.02):
        assert found.kind == "sign"
    else:
        assert found.kind == "scale"
        assert found.evidence["factor"] == pytest.approx(sign * factor, rel=1e-5)


def test_factors_of_attention_have_a_name() -> None:
    ref = numbers(9, 200)
    assert "0.125 = 1/sqrt(64)" in told(ref, ref / 8).sentence
    assert told(ref, ref * np.float32(math.sqrt(200))).evidence["named"] == "sqrt(200)"
    assert "named" not in told(ref, ref * 1.7).evidence


def test_a_candidate_of_next_to_nothing_is_not_scaled() -> None:
    assert find_hint(numbers(9, 64), 1e-3 * numbers(9, 64, seed=1)) is None


def test_an_activation_of_small_numbers_is_not_scaled() -> None:
    x = 0.2 * numbers(9, 128, dtype="float64")
    assert find_hint(x, x / (1 + np.exp(-x))) is None


def test_tokens_scaled_by_factors_that_hardly_differ_are_told_from_one_factor() -> None:
    ref = numbers(9, 64, dtype="float64")
    found = told(ref, ref * (0.5 + 1e-3 * np.arange(9)[:, None]))
    assert found.kind == "scale_per_token"
    assert found.evidence["lowest"] == pytest.approx(0.5)


def test_a_bias_is_told() -> None:
    ref = numbers(9, 64)
    assert told(ref, ref + 1).evidence["bias"] == pytest.approx(1)
    some = np.zeros(64, np.float32)
    some[8:24] = numbers(16)
    assert told(ref, ref + some).evidence["channels"] == 16


def test_wrong_weights_on_tokens_that_are_all_alike_are_no_bias() -> None:
    x = numbers(1, 64) + 0.05 * numbers(9, 64, seed=1)
    right, wrong = numbers(64, 64, seed=2), numbers(64, 64, seed=3)
    assert find_hint(x @ right, x @ wrong) is None


def test_a_lost_residual_is_named_among_others() -> None:
    x, f = numbers(1, 9, 64), numbers(1, 9, 64, seed=1)
    found = told(x + f, f, {"other": numbers(9, 64, seed=2), "layers.0-input_0": x[0]})
    assert (found.kind, found.evidence["tensor"]) == ("residual_lost", "layers.0-input_0")


def test_a_tensor_that_does_not_fit_is_left_alone() -> None:
    x, f = numbers(9, 64), numbers(9, 64, seed=1)
    odd = x.copy()
    odd[0, 0] = math.nan
    near = {"small": x[:3], "odd": odd, "complex": x.astype(complex), "zero": 0 * x}
    assert find_hint(x + f, f, HintContext(near)) is None


def test_a_residual_that_is_the_reference_itself_is_a_factor() -> None:
    x = numbers(9, 64)
    assert told(x, 2 * x, {"input_0": x}).kind == "scale"


# --- other places -------------------------------------------------------------------------------------


def test_heads_with_an_axis_of_their_own() -> None:
    ref = numbers(1, 8, 9, 16)
    found = told(ref, ref[:, [0, 1, 5, 3, 4, 2, 6, 7]])
    assert (found.kind, found.evidence["moved"], found.evidence["axis"]) == ("heads_permuted", 2, 1)
    kv = numbers(1, 4, 9, 16)
    assert told(np.repeat(kv, 2, axis=1), np.concatenate([kv, kv], axis=1)).kind == "kv_repeat"
    cand = ref.copy()
    cand[:, 3] = numbers(9, 16, seed=3)
    found = told(ref, cand)
    assert (found.kind, found.evidence["head"]) == ("one_head", 3)


def test_fused_blocks() -> None:
    ref = numbers(9, 3 * 64)
    q, k, v = np.split(ref, 3, axis=1)
    found = told(ref, np.concatenate([k, q, v], axis=1))
    assert (found.kind, found.evidence["order"], found.evidence["width"]) == ("blocks_swapped", [1, 0, 2], 64)


def test_rope_says_which_side_is_interleaved() -> None:
    ref = numbers(9, 4 * 16)
    cand = ref.reshape(9, 4, 2, 8).swapaxes(2, 3).reshape(9, 64)
    assert told(ref, cand).evidence["candidate"] == "interleaved"
    assert told(cand, ref).evidence["candidate"] == "halves"
    assert told(ref, cand).evidence["width"] == 16


def test_one_head_in_anothers_place() -> None:
    ref = numbers(9, 4 * 16)
    cand = ref.copy()
    cand[:, 16:32] = ref[:, 48:]
    found = told(ref, cand)
    assert (found.kind, found.evidence["order"]) == ("heads_permuted", [0, 3, 2, 3])


def test_one_huge_channel_does_not_make_a_permutation() -> None:
    ref, cand = numbers(9, 64), numbers(9, 64, seed=1)
    ref[:, 3] = cand[:, 40] = 1e4
    assert find_hint(ref, cand) is None


# --- large tensors ------------------------------------------------------------------------------------


SHAPES = [(1, 700, 700), (5000, 96), (1, 3, 200_000), (2, 8, 600, 64), (40, 40, 400), (1 << 40,), (9, 9, 1 << 30)]


@pytest.mark.parametrize("number", [np.float32(1), np.complex64(1j)])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_more_is_looked_at_than_needed(shape: tuple[int, ...], number: np.generic) -> None:
    ref = np.broadcast_to(number, shape)
    seen = SampledPair.of(ref, ref)
    for look in (seen.rows, seen.across, seen.corner):
        assert 0 < look.ref.size <= SAMPLE_SIZE
    assert seen.across.tokens[[0, -1]].tolist() == [0, (1, *shape)[-2] - 1]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("shape", [(1 << 23,), (4, 1 << 21), (1 << 12, 1 << 11)])
def test_a_hint_takes_no_more_memory_of_a_large_tensor(shape: tuple[int, ...], dtype: str) -> None:
    ref = numbers(*shape)
    cand, near = nudged(ref, 0.1), numbers(*shape, seed=2)
    tracemalloc.start()
    try:
        assert find_hint(ref.view(dtype), cand.view(dtype), HintContext({"near": near})) is None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < ref.nbytes


def test_a_row_that_is_too_long_is_told_by_its_beginning() -> None:
    ref, added = numbers(1 << 20), numbers(1 << 20, seed=1)
    assert told(ref, 2 * ref).kind == "scale"
    assert told(ref, 0 * ref).kind == "zero"
    assert told(ref + added, ref, {"added": added}).kind == "residual_lost"
    assert told(ref, np.where(np.arange(1 << 20) < 9, np.nan, ref)).evidence["where"] == "scattered"
    assert find_hint(ref, np.roll(ref, 1 << 19)) is None
    beyond = ref.copy()
    beyond[-1] = 7
    assert find_hint(ref, beyond) is None


def test_what_comes_in_by_another_stride_is_seen_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_module, "SAMPLE_SIZE", 1 << 10)
    ref, added = numbers(64, 64), numbers(64, 64, seed=1).T
    assert told(ref + added, ref, {"added": added}).kind == "residual_lost"
    assert SampledPair.of(ref, ref).rows_of(numbers(64, 4, 16).swapaxes(0, 1)) is None


def test_a_large_tensor_that_is_not_contiguous_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_module, "SAMPLE_SIZE", 1 << 10)
    ref = numbers(2, 16, 4, 32).swapaxes(1, 2)
    assert all(np.shares_memory(ref, side) for side in SampledPair.of(ref, ref).raw)
    assert told(ref, 2 * ref).kind == "scale"


def test_the_last_of_many_tokens() -> None:
    ref = numbers(5000, 96)
    cand = ref.copy()
    cand[-1] = 0
    found = told(ref, cand)
    assert found.kind == "last_token"
    assert "1024 of 5000" in found.sentence
    assert told(ref[::-1], cand[::-1]).kind == "first_token"


def test_a_large_transposition() -> None:
    ref = numbers(700, 700)
    assert told(ref, ref.T).kind == "transposed"


@given(st.integers(1, 10_000), st.integers(2, 500))
@settings(max_examples=50)
def test_places_are_spread_from_the_first_to_the_last(count: int, most: int) -> None:
    places = evenly_spaced(count, most)
    assert len(places) == len(set(places.tolist())) <= most
    assert (places[0], places[-1]) == (0, count - 1)
    assert len(places) == min(count, most)
