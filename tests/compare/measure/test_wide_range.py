"""Numbers at the edges of float64, and every pair of types that dumps hold: both passes against long doubles."""

from __future__ import annotations

import itertools
import math
import warnings

import ml_dtypes
import numpy as np
import pytest

from tensordiff.align.match import Pair
from tensordiff.compare.comparer import Comparer
from tensordiff.compare.measure import chunks, numpy_pass, scheduler, wide_range
from tensordiff.compare.measure.dispatch import measure, measure_many
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.dump.dtypes import DTYPES, Array
from tests.compare.measure.wide_truth import HAS_WIDE, check_wide
from tests.making import pairs

PASSES = [pytest.param(False, id="plain"), pytest.param(True, id="compiled")]
wide_floats = pytest.mark.skipif(not HAS_WIDE, reason="long doubles are no wider than doubles here")
MOST = float(np.finfo(np.float64).max)


@pytest.fixture(params=["whole", "in small parts"])
def _chunking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts as they are, and so small that every pair has several."""
    if request.param == "in small parts":
        monkeypatch.setattr(chunks, "CHUNK", 100)
        monkeypatch.setattr(scheduler, "PIECE", 64)
        monkeypatch.setattr(numpy_pass, "STRETCH", 10)
        monkeypatch.setattr(wide_range, "STRETCH", 10)


# --- differences that overflow --------------------------------------------------------------------


@pytest.mark.parametrize("compiled", PASSES)
def test_two_finite_sides_whose_difference_no_float_holds(compiled: bool) -> None:
    diff = measure(np.array([1.7e308]), np.array([-1.7e308]), compiled=compiled)
    assert (diff.max_abs, diff.mean_abs, diff.mse, diff.rms) == (math.inf,) * 4
    assert (diff.rel_l2, diff.max_rel, diff.cosine_distance, diff.scale) == (2.0, 2.0, 2.0, -1.0)
    assert (diff.apart, diff.outside, diff.inf) == (0, 1, (0, 0))


@pytest.mark.parametrize("compiled", PASSES)
@pytest.mark.parametrize("place", [0, 511, 700, 4_999])
def test_one_overflow_among_equal_elements_is_not_lost(place: int, compiled: bool, _chunking: None) -> None:
    ref = np.random.default_rng(0).standard_normal(5_000)
    ref[place] = MOST
    cand = ref.copy()
    cand[place] = -MOST
    diff = measure(ref, cand, compiled=compiled)
    assert diff.rel_l2 == pytest.approx(2.0) and diff.max_rel == pytest.approx(2.0)
    assert (diff.max_abs, diff.max_abs_index, diff.max_rel_index, diff.outside) == (math.inf, (place,), (place,), 1)
    assert diff.rms == pytest.approx(2 * (MOST / math.sqrt(5_000)))
    assert max(diff.profile) == pytest.approx(2 * math.sqrt(32), rel=1e-2)


@pytest.mark.parametrize("compiled", PASSES)
@pytest.mark.parametrize(("rtol", "outside"), [(0.0, 3), (1.5, 3), (1.9, 3), (2.1, 0)])
def test_a_tolerance_on_differences_that_overflow(rtol: float, outside: int, compiled: bool) -> None:
    ref = np.full(3, MOST)
    assert measure(ref, -ref, Tolerance(0.0, rtol), compiled=compiled).outside == outside


@pytest.mark.parametrize("compiled", PASSES)
@pytest.mark.parametrize("factor", [-1.0, 1 + 1e-3, 0.5])
def test_squares_that_overflow_do_not_agree(factor: float, compiled: bool, _chunking: None) -> None:
    ref = np.random.default_rng(1).standard_normal(3_000) * 1e200
    diff = measure(ref, ref * factor, compiled=compiled)
    assert diff.rel_l2 == pytest.approx(abs(factor - 1))
    assert diff.mse == math.inf and diff.rms == pytest.approx(abs(factor - 1) * diff.ref_rms)


@pytest.mark.parametrize("compiled", PASSES)
def test_a_mean_that_fits_though_its_sum_does_not(compiled: bool) -> None:
    diff = measure(np.zeros(1_000), np.full(1_000, 1e306), compiled=compiled)
    assert diff.mean_abs == pytest.approx(1e306) and diff.rel_l2 == math.inf
    squared = measure(np.zeros(1_000), np.full(1_000, 1e153), compiled=compiled)
    assert squared.mse == pytest.approx(1e306)
    assert measure(np.zeros(40), np.full(40, 1e154), compiled=compiled).mse == pytest.approx(1e308)


@pytest.mark.parametrize("compiled", PASSES)
@pytest.mark.parametrize("size", [1e-170, 3e-162, 1e-155, 1e-308])
def test_squares_that_vanish(size: float, compiled: bool) -> None:
    ref = np.linspace(1, 2, 100) * size
    assert measure(ref, ref * 1.5, compiled=compiled).rel_l2 == pytest.approx(0.5)
    against_ones = measure(ref, np.ones(100), compiled=compiled)
    assert against_ones.rel_l2 == pytest.approx(1 / against_ones.ref_rms)
    parallel = measure(np.linspace(1, 2, 100), ref, compiled=compiled)
    assert parallel.cosine_distance < 1e-12 and parallel.scale == pytest.approx(size)


@pytest.mark.parametrize("compiled", PASSES)
def test_infinite_on_one_side_and_too_large_to_square_on_the_other(compiled: bool) -> None:
    diff = measure(np.array([1e300, 1.0]), np.array([1.0, math.inf]), compiled=compiled)
    assert (diff.rel_l2, diff.max_abs, diff.apart, diff.outside) == (math.inf, math.inf, 1, 2)
    assert diff.ref_rms == pytest.approx(1e300 / math.sqrt(2))


@pytest.mark.parametrize("compiled", PASSES)
def test_a_profile_that_float32_does_not_hold(compiled: bool) -> None:
    for size in (1e200, 1e60, 1e-60, 1e-200):
        ref = np.full(3_200, size)
        cand = ref.copy()
        cand[:100] *= 1.5
        profile = measure(ref, cand, compiled=compiled).profile
        assert profile[0] == pytest.approx(0.5) and not any(profile[1:])


@pytest.mark.parametrize("ref", [1.7e308, 1e200])
def test_no_such_pair_agrees(ref: float) -> None:
    wrong: tuple[Pair, ...] = pairs({"a": np.full(64, ref)}, {"a": np.full(64, -ref)})
    [row] = Comparer().rows(wrong)
    assert row.verdict.name == "diverges"


# --- relative errors beyond float32 ---------------------------------------------------------------


@pytest.mark.parametrize("compiled", PASSES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_largest_relative_error_of_those_that_float32_does_not_hold(dtype: str, compiled: bool) -> None:
    ref, cand = np.ones(4_000), np.ones(4_000)
    ref[10], cand[10] = 0.1, 2e38  # 2e39, beyond float32 ...
    ref[3_000], cand[3_000] = 1e-10, 1e38  # ... and 1e48, of a smaller error
    sides = ref.astype(DTYPES[dtype]), cand.astype(DTYPES[dtype])
    diff = measure(*sides, compiled=compiled)
    assert diff.max_rel_index == (3_000,) and diff.max_rel == pytest.approx(1e48, rel=1e-2)
    assert diff.max_abs_index == (10,)


@pytest.mark.parametrize("compiled", PASSES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_largest_error_of_those_that_float32_does_not_hold(dtype: str, compiled: bool) -> None:
    ref, cand = np.full(300_000, 1.0), np.full(300_000, 1.0)
    ref[10], cand[10] = 2e38, -2e38
    ref[200_000], cand[200_000] = 3e38, -3e38
    diff = measure(ref.astype(DTYPES[dtype]), cand.astype(DTYPES[dtype]), compiled=compiled)
    assert diff.max_abs_index == (200_000,) and diff.max_abs == pytest.approx(6e38, rel=1e-2)


@pytest.mark.parametrize("compiled", PASSES)
def test_a_tolerance_that_float32_does_not_hold(compiled: bool) -> None:
    ref, cand = np.zeros(2_000, np.float32), np.zeros(2_000, np.float32)
    cand[5], ref[6], cand[6], ref[7], cand[7] = 1.0, 1e-10, 2e29, 1e-10, 0.5e29
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert measure(ref, cand, Tolerance(0.0, 1e39), compiled=compiled).outside == 2
        assert measure(ref, cand, Tolerance(1e300, 0.0), compiled=compiled).outside == 0


# --- every pair of types --------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", PASSES)
@pytest.mark.parametrize("real", ["float8_e8m0fnu", "float4_e2m1fn", "bool"])
def test_complex_numbers_against_a_type_that_may_have_no_zero(real: str, compiled: bool) -> None:
    ref = np.ones(3, DTYPES[real])
    for sides in ((ref, ref.astype(np.float32) + 0j), (ref.astype(np.float32) + 0j, ref)):
        diff = measure(*sides, compiled=compiled)
        assert (diff.max_abs, diff.rel_l2, diff.nan, diff.elements) == (0.0, 0.0, (0, 0), 6)


def _values(name: str) -> Array:
    """Of a small type all values, of others those at the edges."""
    dtype = DTYPES[name]
    if name == "bool":
        return np.array([False, True])
    if dtype.itemsize == 1:
        return np.arange(16 if "float4" in name else 64 if "float6" in name else 256, dtype=np.uint8).view(dtype)
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return np.array([0, 1, 2, 3, bounds.max, bounds.min, bounds.max - 1, bounds.min + 1, bounds.max // 2], dtype)
    if dtype.kind == "c":
        parts = _values("float32" if name == "complex64" else "float64")
        real, imaginary = (part.reshape(-1) for part in np.meshgrid(parts, parts))
        return np.stack([real, imaginary], -1).view(dtype).reshape(-1)
    info = ml_dtypes.finfo(dtype)
    most, tiny, least = float(info.max), float(info.tiny), float(info.smallest_subnormal)
    edges = [0.0, -0.0, 1, -1, 1.5, 3, most, -most, most / 2, tiny, -tiny, least, math.nan, math.inf, -math.inf]
    powers = [value**power for value in (most, tiny) for power in (0.5, 0.75)]
    return np.array([*edges, *powers, 1e-10, 1e-11]).astype(dtype)


def _finite(values: Array) -> Array:
    return values[np.isfinite(values.astype(np.complex128))]


def _chosen(rng: np.random.Generator, names: tuple[str, str], size: int, kind: str) -> tuple[Array, Array]:
    """A pair of values at the edges: any, finite alone, nearly equal ones, or one value repeated."""
    of_ref, of_cand = (_values(name) if kind == "any" else _finite(_values(name)) for name in names)
    if kind == "one value":
        return np.full(size, rng.choice(of_ref)), np.full(size, rng.choice(of_cand))
    ref, cand = of_ref[rng.integers(len(of_ref), size=size)], of_cand[rng.integers(len(of_cand), size=size)]
    if kind == "nearly equal":
        through = np.complex128 if ref.dtype.kind == "c" else np.float64
        cand = np.where(rng.random(size) < 0.9, ref.astype(through).astype(cand.dtype), cand)
    return ref, cand


@pytest.mark.slow
@wide_floats
@pytest.mark.filterwarnings("error", "ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("ref", DTYPES)
def test_every_pair_of_types(ref: str, _chunking: None) -> None:
    """Each type against all others, at the edges of both, in both passes: right, or honestly infinite."""
    kinds, sizes = ("any", "finite", "nearly equal", "one value"), (1, 7, 40, 513, 1_500)
    for (number, cand), kind in itertools.product(enumerate(DTYPES), kinds):
        rng = np.random.default_rng([list(DTYPES).index(ref), number, kinds.index(kind)])
        with np.errstate(all="ignore"):
            sides = _chosen(rng, (ref, cand), int(rng.choice(sizes)), kind)
        atol, rtol = float(rng.choice([0, 1e-6, 1, 1e300])), float(rng.choice([0, 1e-5, 0.5, 1.5, 1e10]))
        for compiled in (False, True):
            check_wide(measure(*sides, Tolerance(atol, rtol), compiled=compiled), *sides, Tolerance(atol, rtol))


@wide_floats
def test_extreme_pairs_among_others_in_one_call() -> None:
    """Rows of one batch do not get each other's numbers."""
    rng = np.random.default_rng(3)
    sizes = (1e300, 1.0, 1e-300, 1e160, 1.0)
    sides = [(rng.standard_normal(600) * size, rng.standard_normal(600) * size) for size in sizes]
    single: list[tuple[Array, Array]] = [(one.astype(np.float32), two.astype(np.float32)) for one, two in sides[1:2]]
    batch: list[tuple[Array, Array]] = [*sides[:3], *single, *sides[3:]]
    for compiled in (False, True):
        diffs = measure_many([(*pair, Tolerance(0.1, 0.1)) for pair in batch], compiled=compiled)
        for diff, pair in zip(diffs, batch, strict=True):
            check_wide(diff, *pair, Tolerance(0.1, 0.1))


# --- and what is made of them ---------------------------------------------------------------------


def verdict_of(ref: Array, cand: Array, name: str = "layers.0.attn.scores") -> str:
    [row] = Comparer().rows(pairs({name: ref}, {name: cand}))
    return row.verdict.name


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("low", [-MOST, -1e308, -1e300, -math.inf])
def test_scores_masked_with_the_lowest_float_there_is(low: float) -> None:
    ref = np.random.default_rng(0).standard_normal((8, 64))
    ref[:, ::3] = low
    wrong = ref.copy()
    wrong[:, 1] += 1.0
    assert verdict_of(ref, ref.copy()) == "agrees"
    assert verdict_of(ref, wrong) == "diverges"
    assert verdict_of(ref, -ref) == "diverges"


@pytest.mark.filterwarnings("error")
def test_a_lost_imaginary_part_is_neither_a_cast_nor_a_mask() -> None:
    ref = np.random.default_rng(0).standard_normal((16, 64)).astype(np.complex64) * (1 + 1j)
    real = ref.real.astype(np.float16)
    assert verdict_of(ref, real) == "diverges"
    low = np.where(np.arange(64) % 2, 0, -1e30).astype(np.complex64)
    assert verdict_of(low, low + 5e29j * (low != 0), "attention_mask") == "diverges"
