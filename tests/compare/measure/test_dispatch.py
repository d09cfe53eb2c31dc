"""Every number of a diff against an independent computation, for both passes."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordiff.compare.measure import chunks as module
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.measure.dispatch import measure, measure_many, measure_stretches
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.dump.dtypes import DTYPES, Array
from tensordiff.dump.model import Spec
from tests.compare.measure.reference_diff import truth

PASSES = [pytest.param(False, id="plain"), pytest.param(True, id="compiled")]
FLOATS = ["float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]
INTEGERS = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]


def flat(index: tuple[int, ...] | None, shape: tuple[int, ...]) -> int:
    assert index is not None
    return int(np.ravel_multi_index(index, shape)) if shape else 0


def check(diff: Diff, ref: Array, cand: Array, how: Tolerance) -> None:
    expected = truth(ref, cand, how.atol, how.rtol)
    wide = "float64" in (ref.dtype.name, cand.dtype.name)
    digits = 1e-14 if wide else 2e-7
    assert diff.nan == expected.nan and diff.inf == expected.inf
    assert diff.outside == expected.outside
    assert flat(diff.max_abs_index, ref.shape) == expected.max_abs_at
    assert flat(diff.max_rel_index, ref.shape) == expected.max_rel_at
    assert diff.max_abs == pytest.approx(expected.max_abs, rel=digits, abs=0, nan_ok=True)
    assert diff.max_rel == pytest.approx(expected.max_rel, rel=digits, abs=0, nan_ok=True)
    for name in ("mean_abs", "mse", "rel_l2"):
        assert getattr(diff, name) == pytest.approx(getattr(expected, name), rel=1e-6, abs=0, nan_ok=True), name
    assert diff.cosine_distance == pytest.approx(expected.cosine_distance, rel=1e-3, abs=1e-12, nan_ok=True)


def rounded(values: Array, dtype: str) -> Array:
    with np.errstate(all="ignore"):
        return values.astype(DTYPES[dtype])


@st.composite
def pairs(draw: Callable[[Any], Any]) -> tuple[Array, Array]:
    """Pairs of one shape, of any two float types, of scales from 1e-30 to 1e30, often with odd values."""
    shape = tuple(draw(st.lists(st.integers(1, 40), max_size=3)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale = 10.0 ** draw(st.integers(-30, 30))
    error = 10.0 ** draw(st.integers(-12, 1))
    ref = rng.standard_normal(shape) * scale
    cand = ref * (1 + error * rng.standard_normal(shape)) if draw(st.booleans()) else ref * (1 + error)
    ref, cand = np.asarray(ref), np.asarray(cand)
    for side in (ref, cand):
        for value in draw(st.lists(st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1.0]), max_size=2)):
            side.reshape(-1)[rng.integers(side.size)] = value
    types = draw(st.tuples(st.sampled_from(FLOATS), st.sampled_from(FLOATS)))
    return rounded(ref, types[0]), rounded(cand, types[1])


@pytest.mark.parametrize("compiled", PASSES)
@settings(deadline=None, max_examples=150)
@given(pair=pairs(), atol=st.sampled_from([0.0, 1e-6, 0.1]), rtol=st.sampled_from([0.0, 1e-5, 0.5]))
def test_every_number_is_true(compiled: bool, pair: tuple[Array, Array], atol: float, rtol: float) -> None:
    how = Tolerance(atol, rtol)
    check(measure(*pair, how, compiled=compiled), *pair, how)


@pytest.mark.parametrize("compiled", PASSES)
@settings(deadline=None, max_examples=100)
@given(
    types=st.tuples(st.sampled_from(INTEGERS), st.sampled_from([*INTEGERS, "float32"])),
    seed=st.integers(0, 2**32),
    size=st.integers(1, 700),
)
def test_integers_are_exact(compiled: bool, types: tuple[str, str], seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    ref, cand = (_integers(rng, name, size) for name in types)
    how = Tolerance()
    check(measure(ref, cand, how, compiled=compiled), ref, cand, how)


def _integers(rng: np.random.Generator, name: str, size: int) -> Array:
    if name == "bool":
        return rng.integers(0, 2, size).astype(bool)
    if name == "float32":
        return rng.integers(-100, 100, size).astype(np.float32)
    bounds = np.iinfo(name)
    small = rng.integers(max(-5, bounds.min), 6, size, dtype=name)
    return np.where(rng.random(size) < 0.2, rng.integers(bounds.min, bounds.max, size, dtype=name), small)


@pytest.mark.parametrize("compiled", PASSES)
def test_neighbouring_large_integers_differ_by_one(compiled: bool) -> None:
    ref = np.array([2**62, 5], np.int64)
    diff = measure(ref, ref + np.array([1, 0]), compiled=compiled)
    assert (diff.max_abs, diff.max_abs_index, diff.outside) == (1.0, (0,), 1)


@pytest.mark.parametrize("compiled", PASSES)
@pytest.mark.parametrize("floats", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("integers", ["int64", "uint64"])
def test_large_integers_against_floats(integers: str, floats: str, compiled: bool) -> None:
    """float64 holds no odd number past 2**53: each difference against whole numbers of any length."""
    bounds = np.iinfo(integers)
    whole = np.array([2**53 + 1, 2**60 - 1, bounds.max, bounds.max - 511, bounds.min, bounds.min + 1, 1, 0], integers)
    near = whole.astype(np.float64).astype(DTYPES[floats])
    for k, (value, other) in enumerate(zip(whole.tolist(), near.tolist(), strict=True)):
        off = float(abs(Fraction(other) - value))
        for sides in ((whole, near), (near, whole)):
            one = measure(sides[0][k : k + 1], sides[1][k : k + 1], compiled=compiled)
            assert one.max_abs == off, value
    assert measure(whole[:1], whole[:1].astype(np.float64), compiled=compiled).max_abs == 1.0


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False))
def test_any_integer_against_any_float(whole: int, other: float) -> None:
    diff = measure(np.array([whole]), np.array([other]), compiled=False)
    assert diff.max_abs == pytest.approx(float(abs(Fraction(other) - whole)), rel=3e-16, abs=0)


@pytest.mark.parametrize("compiled", PASSES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_many_blocks(compiled: bool, dtype: str) -> None:
    """Enough elements for several blocks, buckets and both threads, with the maximum anywhere."""
    rng = np.random.default_rng(7)
    for size in (513, 70_001, 1_200_007):
        ref = rng.standard_normal(size)
        cand = ref + 1e-3 * rng.standard_normal(size)
        cand[rng.integers(size)] += 3
        pair = rounded(ref, dtype), rounded(cand, dtype)
        check(measure(*pair, Tolerance(1e-3, 1e-3), compiled=compiled), *pair, Tolerance(1e-3, 1e-3))


@pytest.mark.parametrize("compiled", PASSES)
@pytest.mark.parametrize("constant", [0.1, 1 / 3, 1.9999999, 1e-30, 3e25])
def test_sums_of_equal_terms_do_not_drift(compiled: bool, constant: float) -> None:
    """Equal terms round the same way every time: the worst case for a running sum."""
    ref = np.full(300_000, constant, np.float32)
    cand = np.full(300_000, constant * 1.7, np.float32)
    check(measure(ref, cand, compiled=compiled), ref, cand, Tolerance(1e-5, 1.3e-6))


@pytest.mark.parametrize("compiled", PASSES)
def test_one_odd_value_far_in(compiled: bool) -> None:
    rng = np.random.default_rng(0)
    ref = rng.standard_normal(200_000).astype(np.float32)
    for value, place in ((math.nan, 199_999), (math.inf, 100_003)):
        cand = ref.copy()
        cand[place] = value
        check(measure(ref, cand, compiled=compiled), ref, cand, Tolerance(1e-5, 1.3e-6))
        both = measure(cand, cand, compiled=compiled)
        assert both.max_abs == 0 and both.apart == 0 and both.outside == 0


@pytest.mark.parametrize("compiled", PASSES)
def test_a_pure_scale_has_no_angle(compiled: bool) -> None:
    """Twice the reference points the same way: the cosine must not show the rounding of block sums."""
    rng = np.random.default_rng(3)
    ref = rng.standard_normal(100_000).astype(np.float32)
    diff = measure(ref, 2 * ref, compiled=compiled)
    assert diff.cosine_distance < 1e-14 and diff.rel_l2 == pytest.approx(1, rel=1e-7) and diff.scale == pytest.approx(2)


@pytest.mark.parametrize("compiled", PASSES)
def test_opposite_and_vanished(compiled: bool) -> None:
    ref = np.linspace(1, 2, 1000, dtype=np.float32)
    assert measure(ref, -ref, compiled=compiled).cosine_distance == pytest.approx(2)
    gone = measure(ref, np.zeros_like(ref), compiled=compiled)
    assert gone.cosine_distance == 1.0 and gone.rel_l2 == pytest.approx(1, rel=1e-6)
    from_nothing = measure(np.zeros_like(ref), ref, compiled=compiled)
    assert (from_nothing.rel_l2, from_nothing.cosine_distance) == (math.inf, 1.0)
    nothing = measure(np.zeros(5), np.zeros(5), compiled=compiled)
    assert (nothing.rel_l2, nothing.cosine_distance, nothing.max_rel) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("compiled", PASSES)
@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_empty(compiled: bool, shape: tuple[int, ...]) -> None:
    diff = measure(np.empty(shape, np.float32), np.empty(shape, np.float16), compiled=compiled)
    assert (diff.elements, diff.max_abs, diff.max_abs_index, diff.profile) == (0, 0.0, None, ())


@pytest.mark.parametrize("compiled", PASSES)
def test_zero_dimensional(compiled: bool) -> None:
    diff = measure(np.array(2, np.float32), np.array(3, np.float32), compiled=compiled)
    assert (diff.max_abs, diff.max_abs_index, diff.rel_l2) == (1.0, (), 0.5)


@pytest.mark.parametrize("compiled", PASSES)
def test_memory_layout_does_not_matter(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transposed, strided, reversed, broadcast and unaligned tensors, in parts smaller than themselves."""
    monkeypatch.setattr(module, "CHUNK", 1000)
    rng = np.random.default_rng(1)
    ref = rng.standard_normal((30, 40, 50)).astype(np.float32)
    cand = ref + rng.standard_normal(ref.shape).astype(np.float32) * 1e-4
    plain = measure(ref, cand, compiled=compiled)
    layouts: list[Callable[[Array], Array]] = [
        np.asfortranarray,
        lambda a: np.ascontiguousarray(a[::-1])[::-1],
        lambda a: np.repeat(a, 2, axis=1)[:, ::2],
        lambda a: np.frombuffer(b"x" + a.tobytes(), np.float32, a.size, 1).reshape(a.shape),
        lambda a: a.astype(">f4"),
    ]
    for layout in layouts:
        again = measure(layout(ref), layout(cand), compiled=compiled)
        assert again.max_abs_index == plain.max_abs_index and again.max_rel_index == plain.max_rel_index
        assert again.mse == pytest.approx(plain.mse, rel=1e-6)
        assert again.profile == pytest.approx(plain.profile, rel=1e-5)
    row = np.broadcast_to(ref[0, 0], (60, 50))
    check(measure(row, row + np.float32(1e-3), compiled=compiled), row, row + np.float32(1e-3), Tolerance(1e-5, 1.3e-6))


@pytest.mark.parametrize("compiled", PASSES)
def test_complex_numbers_are_pairs_of_reals(compiled: bool) -> None:
    ref = np.array([1 + 2j, 3 - 1j], np.complex64)
    cand = np.array([1 + 2j, 3 + 1j], np.complex64)
    diff = measure(ref, cand, compiled=compiled)
    assert (diff.max_abs, diff.max_abs_index, diff.elements) == (2.0, (1,), 4)
    assert (diff.max_abs_place, diff.shape) == ((1, 1), (2, 2))


@pytest.mark.parametrize("compiled", PASSES)
def test_an_index_of_complex_numbers_is_one_of_the_tensor(compiled: bool) -> None:
    one = measure(np.array(1 + 2j), np.array(1 + 5j), compiled=compiled)
    assert (one.max_abs, one.max_abs_index, one.max_rel_index) == (3.0, (), ())
    ref = np.ones((2, 3), np.complex64)
    many = measure(ref, ref + np.array([[0, 0, 0], [0, 5j, 0]], np.complex64), compiled=compiled)
    assert (many.max_abs_index, many.max_rel_index) == ((1, 1), (1, 1))


@pytest.mark.parametrize("compiled", PASSES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_reals_against_complex_numbers(dtype: str, compiled: bool) -> None:
    ref = np.array([1, 0, 1]).astype(DTYPES[dtype])
    diff = measure(ref, np.array([1, 0, 1 + 2j]), compiled=compiled)
    assert (diff.max_abs, diff.max_abs_index, diff.elements) == (2.0, (2,), 6)


def test_large_integers_against_complex_numbers() -> None:
    assert measure(np.array([2**53 + 1]), np.array([2.0**53 + 0j])).max_abs == 1.0


@pytest.mark.parametrize("compiled", PASSES)
@pytest.mark.parametrize("scale", [1e300, 1e-300, 1e200, 1e-200])
def test_roots_of_squares_that_no_float_holds(scale: float, compiled: bool) -> None:
    ref = np.array([3.0, 4.0, 0.0, 0.0])
    diff = measure(ref * scale, (ref + np.array([0, 0, 0, 1e-3])) * scale, compiled=compiled)
    assert diff.rms == pytest.approx(5e-4 * scale, rel=1e-12, abs=0)
    assert diff.ref_rms == pytest.approx(2.5 * scale, rel=1e-12, abs=0)


@pytest.mark.parametrize("compiled", PASSES)
def test_the_profile_shows_where(compiled: bool) -> None:
    ref = np.ones(3200, np.float32)
    cand = ref.copy()
    cand[100:200] += 0.5
    profile = measure(ref, cand, compiled=compiled).profile
    assert len(profile) == 32 and profile[1] == pytest.approx(0.5) and sum(profile) == pytest.approx(0.5)


def test_the_two_passes_agree_on_adversarial_values() -> None:
    """Values that round alike in float32 but not in float64 must not move an index."""
    ref = np.array([0.0, -1e-9, 3e-9, 1.0, 1e-30, 3e38, -3e38], np.float32)
    for shift in range(len(ref)):
        r, c = ref, np.roll(np.array([1.0, 1.0, 1.0, 1.00001, 1.0, -3e38, 3e38], np.float32), shift)
        check(measure(r, c, Tolerance(0.5, 0), compiled=True), r, c, Tolerance(0.5, 0))
        check(measure(r, c, Tolerance(0.5, 0), compiled=False), r, c, Tolerance(0.5, 0))


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        measure(np.zeros(3), np.zeros((1, 3)))


@pytest.mark.parametrize("compiled", PASSES)
@pytest.mark.parametrize("size", [1e300, 1e-300, 3e-170])
def test_ratios_survive_squares_that_do_not(compiled: bool, size: float) -> None:
    """Masks hold the largest float there is: its square is infinite, the ratio is not."""
    ref = np.linspace(1, 2, 100) * size
    diff = measure(ref, ref * 1.5, compiled=compiled)
    assert diff.rel_l2 == pytest.approx(0.5) and diff.cosine_distance < 1e-14 and diff.scale == pytest.approx(1.5)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("types", [("f4", "f4"), ("f8", "f8"), ("f4", "f2"), ("c8", "c8"), ("i4", "f4")])
def test_stretches_make_the_numbers_of_the_whole(types: tuple[str, str], compiled: bool) -> None:
    rng = np.random.default_rng(7)
    ref = (rng.standard_normal((90, 700)) * 10).astype(types[0])
    cand = (ref + np.where(types[0] == "i4", 1, rng.standard_normal(ref.shape) * 1e-2)).astype(types[1])
    ref[5, 6] = cand[5, 6] = 0
    like = Spec(ref.shape, ref.dtype), Spec(cand.shape, cand.dtype)
    parts = measure_stretches(
        lambda: ((ref[at : at + 37], cand[at : at + 37]) for at in range(0, 90, 37)), like, compiled=compiled
    )
    whole = measure(ref, cand, compiled=compiled)
    for field in Diff._fields:
        ours, theirs = (np.asarray(getattr(diff, field), float) for diff in (parts, whole))
        np.testing.assert_allclose(ours, theirs, rtol=2e-7, atol=1e-12, err_msg=field)


def test_stretches_of_values_whose_squares_leave_the_range() -> None:
    ref = np.full((4, 3), 1e200)
    like = Spec(ref.shape, ref.dtype), Spec(ref.shape, ref.dtype)
    parts = measure_stretches(lambda: ((ref[at : at + 1], 2 * ref[at : at + 1]) for at in range(4)), like)
    assert parts.rel_l2 == pytest.approx(1.0) and parts.rel_l2 == measure(ref, 2 * ref).rel_l2


def test_stretches_of_nothing() -> None:
    like = Spec((0, 3), np.dtype("f4")), Spec((0, 3), np.dtype("f4"))
    assert measure_stretches(lambda: iter(()), like).elements == 0


def test_equal_pairs_share_what_they_have_in_common() -> None:
    """A million rows may be equal; boxed zeros and profiles of their own would take more than all else."""
    ref = np.arange(6, dtype=np.float32).reshape(2, 3)
    first, second, other = measure_many([(ref, ref.copy(), None), (ref + 1, ref + 1, None), (ref, ref + 1, None)])
    assert first.bucket_rms is second.bucket_rms
    assert first.shape is second.shape is other.shape
    assert first.nan is second.inf is other.nan
    assert first.rel_l2 is second.max_abs
    assert other.profile != first.profile == (0.0,) * 6
