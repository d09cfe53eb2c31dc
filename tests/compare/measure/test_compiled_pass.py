"""The compiled pass at its edges: lanes, blocks, memory, levels of the processor, and what it is loaded from."""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordiff.compare.measure import compiled_pass, kernel, metrics
from tensordiff.compare.measure.diff import SQUARES, TOTALS, Diff, empty_cells
from tensordiff.compare.measure.dispatch import measure, measure_many
from tensordiff.compare.measure.dtype_plan import PassOptions, Tolerance
from tensordiff.dump.dtypes import DTYPES, Array
from tests.compare.measure.test_dispatch import check
from tests.compare.measure.wide_truth import HAS_WIDE, check_wide
from tests.processes import run

pytestmark = pytest.mark.skipif(not compiled_pass.is_there(), reason=f"no compiled pass: {kernel.why_missing()}")
LEVELS = (1, 3, 4)
REAL_TYPES = [name for name, dtype in DTYPES.items() if dtype.kind != "c"]
# Around half the lanes (8), all, two vectors, a block (512), several, and where 32 buckets begin to hold blocks.
SIZES = (*range(1, 18), 31, 32, 33, 63, 64, 65, 511, 512, 513, 520, 527, 1023, 1024, 1025, 16_383, 16_385, 20_011)


def said(diff: Diff) -> str:
    return repr(diff.as_json()) + repr(diff.bucket_rms.tolist())


# --- every code of every small type -----------------------------------------------------------------


@pytest.mark.parametrize("name", REAL_TYPES)
def test_every_value_is_read_as_what_it_is(name: str) -> None:
    """One element after the other, against zero: what lanes make of it is what numpy makes of it."""
    dtype = DTYPES[name]
    if dtype.itemsize == 1:
        codes = 2 if name == "bool" else 16 if "float4" in name else 64 if "float6" in name else 256
        values: Array = np.arange(codes, dtype=np.uint8).view(dtype)
    elif dtype.itemsize == 2:
        values = np.arange(1 << 16, dtype=np.uint16)[:: 7 if os.environ.get("TENSORDIFF_KERNEL") else 1].view(dtype)
    else:
        values = np.random.default_rng(0).integers(0, 256, 4_000 * dtype.itemsize, np.uint8).view(dtype)
    zeros, how = np.zeros(1, np.float32), Tolerance(0.0, 0.0)
    with np.errstate(all="ignore"):
        wide = values.astype(np.float64)
    for value, diff in zip(wide, _measured([(zeros, values[k : k + 1], how) for k in range(len(values))]), strict=True):
        if math.isfinite(value):
            assert (diff.max_abs, diff.outside) == (abs(value), int(value != 0))
        else:
            assert (diff.nan, diff.inf, diff.apart) == ((0, int(math.isnan(value))), (0, int(math.isinf(value))), 1)


def _measured(sides: list[Any]) -> Iterator[Diff]:
    yield from measure_many(sides, compiled=True)


# --- sizes, places, memory --------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("names", [
    ("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float32"), ("float8_e4m3fn", "float8_e4m3fn"),
    ("float64", "float64"), ("int8", "int64"),
])  # fmt: skip
def test_sizes_around_lanes_and_blocks(names: tuple[str, str], level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number at sizes around every edge, the largest error at the very end, and nothing read beyond it."""
    monkeypatch.setattr(compiled_pass, "LEVEL", level)
    rng, how = np.random.default_rng(11), Tolerance(1e-3, 1e-3)
    for size in SIZES:
        values = np.abs(8 * rng.standard_normal(size)) + 1
        ref, cand = (_amid_nan(values * factor, name) for factor, name in zip((1, 1.01), names, strict=True))
        cand[-1] = 100
        check(measure(ref, cand, how, compiled=True), ref, cand, how)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("names", [("float32", "float32"), ("bfloat16", "bfloat16"), ("float32", "bfloat16")])
def test_a_tolerance_of_numbers_below_the_guard(
    names: tuple[str, str], level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """|ref| is at least 1e-10 in ``max_rel``, but not in the tolerance: who is outside is counted without that."""
    monkeypatch.setattr(compiled_pass, "LEVEL", level)
    rng = np.random.default_rng(5)
    values = 10.0 ** rng.uniform(-16, -7, 3000) * rng.choice([-1, 0, 1], 3000)
    ref = values.astype(DTYPES[names[0]])
    off = (values * (1 + rng.uniform(-1, 1, 3000)) + rng.choice([0, 1e-12, 1e-11], 3000)).astype(DTYPES[names[1]])
    for atol, rtol in itertools.product((0, 1e-20, 1e-12, 1e-11, 1e-6), (0, 1e-3, 0.1, 1, 10)):
        how = Tolerance(atol, rtol)
        check(measure(ref, off, how, compiled=True), ref, off, how)


def _amid_nan(values: Array, name: str) -> Array:
    """An array in the midst of memory that would be noticed if it were read: NaN, or the largest integer."""
    dtype = DTYPES[name]
    around = np.full(len(values) + 128, 0 if dtype.kind in "iu" else np.nan).astype(dtype)
    if dtype.kind in "iu":
        around[:] = np.iinfo(dtype).max
    around[64 : 64 + len(values)] = values.astype(dtype)
    return around[64 : 64 + len(values)]


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), a.dtype, a.size, 1),
    "every third": lambda a: np.repeat(a, 3)[::3],
    "backwards": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "one side apart": lambda a: np.stack([a, a], 1)[:, 1],
}


@settings(deadline=None, max_examples=120)
@given(
    names=st.tuples(st.sampled_from(REAL_TYPES), st.sampled_from(REAL_TYPES)),
    layouts=st.tuples(st.sampled_from([*LAYOUTS]), st.sampled_from([*LAYOUTS])),
    size=st.sampled_from(SIZES),
    seed=st.integers(0, 2**32),
)
def test_memory_makes_no_difference(names: tuple[str, str], layouts: tuple[str, str], size: int, seed: int) -> None:
    """Unaligned and odd-strided data have the very bits of data that lie plainly."""
    rng = np.random.default_rng(seed)
    plain = [_bytes_as(rng, name, size) for name in names]
    moved = [LAYOUTS[layout](side) for layout, side in zip(layouts, plain, strict=True)]
    assert said(measure(plain[0], plain[1], compiled=True)) == said(measure(moved[0], moved[1], compiled=True))


def _bytes_as(rng: np.random.Generator, name: str, size: int) -> Array:
    """Any bits at all: NaN of every payload, infinities, numbers that are not normal, the largest there are."""
    dtype = DTYPES[name]
    most = 2 if name == "bool" else 16 if "float4" in name else 64 if "float6" in name else 256
    return rng.integers(0, most, size * dtype.itemsize, np.uint8).view(dtype)


@pytest.mark.skipif(not HAS_WIDE, reason="long doubles are no wider than doubles here")
@pytest.mark.parametrize("level", LEVELS)
@settings(deadline=None, max_examples=150)
@given(
    names=st.tuples(st.sampled_from(REAL_TYPES), st.sampled_from(REAL_TYPES)),
    size=st.sampled_from([1, 7, 8, 9, 40, 511, 513, 1_030]),
    share=st.sampled_from([0.0, 0.1, 1.0]),
    tolerance=st.tuples(st.sampled_from([0.0, 1e-45, 1e-6, 1.0, 1e300]), st.sampled_from([0.0, 1e-5, 1.5, 1e39])),
    seed=st.integers(0, 2**32),
)
def test_any_bits_are_measured_right(
    level: int, names: tuple[str, str], size: int, share: float, tolerance: tuple[float, float], seed: int
) -> None:
    """Overflow, numbers that are not normal, NaN of any payload: against long doubles, on each level."""
    rng = np.random.default_rng(seed)
    ref, cand = (_bytes_as(rng, name, size) for name in names)
    with np.errstate(all="ignore"):
        cand = np.where(rng.random(size) < share, ref.astype(np.float64).astype(cand.dtype), cand)
        for side in (ref, cand):
            if side.dtype.kind not in "iub" and rng.random() < 0.7:  # else some NaN is apart nearly always
                odd = ~np.isfinite(side.astype(np.float64))
                side[odd] = np.float64(1.0).astype(side.dtype)
    how = Tolerance(*tolerance)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_pass, "LEVEL", level)
        check_wide(measure(ref, cand, how, compiled=True), ref, cand, how)


@pytest.mark.parametrize("level", LEVELS)
@settings(deadline=None, max_examples=120)
@given(
    name=st.sampled_from(["int8", "uint8", "bool", "int16", "int32", "uint32"]),
    # Around a vector of bytes (32), a stretch of them (2,048) and two.
    size=st.sampled_from([1, 31, 32, 33, 511, 513, 2_047, 2_048, 2_049, 4_100, 70_001]),
    numbers=st.sampled_from(["any", "none is zero", "few", "around 2**23", "largest"]),
    share=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_integers_that_must_be_equal(level: int, name: str, size: int, numbers: str, share: float, seed: int) -> None:
    """Numbers of a byte are summed in integers, those of 32 bits in float32 while it holds them: both exact."""
    rng, dtype = np.random.default_rng(seed), DTYPES[name]
    least, most = (0, 1) if name == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    low, high = {
        "any": (least, most), "none is zero": (1, min(9, most)), "few": (0, min(3, most)),
        "around 2**23": (max(least, min(2**23 - 300, most - 1)), min(2**23 + 3, most)), "largest": (most - 1, most),
    }[numbers]  # fmt: skip
    ref = rng.integers(low, high, size, dtype=np.int64, endpoint=True).astype(dtype)
    if rng.random() < 0.3 and least < 0:
        ref[rng.random(size) < 0.1] = -1
    cand = np.where(rng.random(size) < share, rng.permutation(ref), ref)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_pass, "LEVEL", level)
        found = measure(ref, cand, compiled=True)
    check(found, ref, cand, Tolerance())
    plain = measure(ref, cand, compiled=False)
    for field in ("max_abs_at", "max_rel_at", "max_rel", "outside"):
        assert getattr(found, field) == getattr(plain, field), field


@pytest.mark.skipif(not HAS_WIDE, reason="long doubles are no wider than doubles here")
@pytest.mark.parametrize("level", LEVELS)
@settings(deadline=None, max_examples=120)
@given(
    name=st.sampled_from(["int64", "uint64"]),
    size=st.sampled_from([1, 3, 4, 5, 511, 513, 1_030, 20_011]),
    numbers=st.sampled_from(["any", "ends", "around 2**53", "around 2**63"]),
    few=st.sampled_from([0.0, 0.01, 1.0]),
    off=st.sampled_from([0, 1, 2**40, 2**62]),
    tolerance=st.tuples(st.sampled_from([0.0, 1.0, 2.0**41]), st.sampled_from([0.0, 1e-16, 0.1])),
    seed=st.integers(0, 2**32),
)
def test_integers_that_float64_does_not_hold(
    level: int, name: str, size: int, numbers: str, few: float, off: int, tolerance: tuple[float, float], seed: int
) -> None:
    """Differences are rounded once, also those that 64 bits do not hold; so are blocks of which only some are large."""
    rng, (least, most) = np.random.default_rng(seed), (int(np.iinfo(name).min), int(np.iinfo(name).max))
    middle = {"around 2**53": 2**53, "around 2**63": min(2**63, most)}.get(numbers, 0)
    low, high = (least, most) if numbers in ("any", "ends") else (middle - 9, min(middle + 9, most))
    ref = rng.integers(low, high, size, dtype=name, endpoint=True)
    if numbers == "ends":
        ref = rng.choice(np.array([least, most], name), size)
    ref = np.where(rng.random(size) < 0.5, ref, rng.integers(0, 9, size).astype(name))
    cand = np.where(rng.random(size) < few, rng.permutation(ref), ref)
    cand = np.where((rng.random(size) < few) & (cand < most - off), cand + np.array(off, name), cand)
    how = Tolerance(*tolerance)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_pass, "LEVEL", level)
        found = measure(ref, cand, how, compiled=True)
    check_wide(found, ref, cand, how)
    plain = measure(ref, cand, how, compiled=False)
    for field in ("max_abs", "max_abs_at", "max_rel", "max_rel_at", "outside"):
        assert getattr(found, field) == getattr(plain, field), field


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
@settings(deadline=None, max_examples=100)
@given(
    # Around a group (8), four of them, a block (512); and so many that a bucket holds blocks one after the other.
    size=st.sampled_from([1, 7, 8, 9, 31, 32, 33, 40, 511, 513, 1_030, 16_400, 70_001]),
    share=st.sampled_from([0.0, 0.002, 0.05, 0.5, 1.0]),
    changing=st.booleans(),
    odd=st.sampled_from(["none", "on both sides", "in the reference", "in the candidate"]),
    atol=st.sampled_from([0.0, 1e-5, 0.1]),
    seed=st.integers(0, 2**32),
)
def test_float8_of_which_few_or_all_differ(
    level: int, name: str, size: int, share: float, changing: bool, odd: str, atol: float, seed: int
) -> None:
    """Equal groups are passed over but for their squares; blocks that differ throughout go another way."""
    rng, dtype = np.random.default_rng(seed), DTYPES[name]
    sizes = [1e-4, 0.05, 1.0] + [2.5e3] * (name == "float8_e5m2fnuz")  # the largest of which float16 does not hold
    ref = (8 * rng.standard_normal(size) * rng.choice(sizes, size)).astype(dtype)
    where = rng.random(size) < (share * (np.arange(size) // 2048 % 2) if changing else share)
    cand = np.where(where, (ref.astype(np.float64) * 1.2 + 0.01).astype(dtype), ref)
    at = rng.integers(0, size, 2)
    for side, is_hit in ((ref, odd.endswith(("sides", "reference"))), (cand, odd.endswith(("sides", "candidate")))):
        if is_hit:
            side[at] = np.float64(np.nan).astype(dtype)
            if name == "float8_e5m2":
                side[at[0]] = np.float64(-np.inf).astype(dtype)
    tolerance = Tolerance(atol, 0.125)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_pass, "LEVEL", level)
        found = measure(ref, cand, tolerance, compiled=True)
    check(found, ref, cand, tolerance)


# --- levels, threads, rounding ----------------------------------------------------------------------


@pytest.mark.parametrize("name", REAL_TYPES)
@pytest.mark.parametrize(("size", "few"), [(70_001, 1.0), (70_001, 0.02), *((k, 1.0) for k in (1, 8, 15, 17, 39, 543))])
def test_levels_agree_within_the_stated_accuracy(
    name: str, size: int, few: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions and counts are the same; sums differ by fused multiplications alone, and from v3 on not at all."""
    rng = np.random.default_rng(2)
    values = np.abs(8 * rng.standard_normal(size)) + 1
    moved = np.where(rng.random(size) < few, values * 1.01, values)
    ref, cand = values.astype(DTYPES[name]), moved.astype(DTYPES[name])
    found = []
    for level in LEVELS:
        monkeypatch.setattr(compiled_pass, "LEVEL", level)
        found.append(measure(ref, cand, compiled=True))
    oldest, usual, newest = found
    assert said(usual) == said(newest)
    for field in ("max_abs", "max_abs_at", "max_rel", "max_rel_at", "outside", "nan", "inf", "apart"):
        assert getattr(oldest, field) == getattr(usual, field), field
    for field in ("mean_abs", "mse", "rms", "rel_l2", "ref_rms", "scale"):
        assert getattr(oldest, field) == pytest.approx(getattr(usual, field), rel=1e-6, nan_ok=True), field


_FLUSHED = """
import sys
import numpy as np
import torch
from tensordiff.compare.measure.dispatch import measure
small, zero = np.full(600, 1e-40, np.float32), np.zeros(600, np.float32)
torch.set_flush_denormal(sys.argv[1] == "1")
is_flushed = not np.multiply(small, np.float32(0.5)).any()
diff = measure(zero, small, compiled=True)
print(is_flushed, repr(diff.as_json()))
"""


def test_a_library_that_flushes_small_numbers_to_zero_changes_nothing() -> None:
    pytest.importorskip("torch")
    told = [run([sys.executable, "-c", _FLUSHED, on]).stdout.split(" ", 1) for on in "01"]
    assert [flushed for flushed, _ in told] == ["False", "True"]
    assert told[0][1] == told[1][1] and "'max_abs': 9.99994610111476e-41" in told[0][1]


# --- the numbers made of cells ----------------------------------------------------------------------


def test_numbers_are_filled_in_as_metrics_says() -> None:
    """td_fill is metrics.fill: the same bits, for ordinary cells and for any others."""
    rng = np.random.default_rng(4)
    odd = [0.0, 1.0, math.nan, math.inf, 1e308, 1e-308]
    cells = empty_cells([7] * 4_000)
    cells[:, :2], cells[:, 2:4] = rng.random((4_000, 2)), rng.integers(0, 7, (4_000, 2))
    cells[:, 4:12] = rng.integers(0, 3, (4_000, 8)) * (rng.random((4_000, 1)) < 0.3)
    cells[:, TOTALS:SQUARES] = np.exp(8 * rng.standard_normal((4_000, 5)))
    for column in range(TOTALS, TOTALS + 4):
        few = rng.random(4_000) < 0.1
        cells[few, column] = rng.choice(odd, few.sum())
    cells[:, TOTALS + 3] *= rng.choice([-1, 1], 4_000)
    cells[:, TOTALS + 4] = rng.integers(0, 8, 4_000)
    elements = rng.integers(0, 9, 4_000)
    filled = []
    for fill in (compiled_pass.fill, metrics.fill_in_python):
        reals, counts = np.empty((4_000, metrics.REALS)), np.empty((4_000, metrics.COUNTS), np.int64)
        with np.errstate(all="ignore"):
            fill(cells, elements, reals, counts)
        filled.append((reals, counts))
    np.testing.assert_array_equal(filled[0][0], filled[1][0])
    np.testing.assert_array_equal(filled[0][1], filled[1][1])


# --- what it is loaded from -------------------------------------------------------------------------

_ASK = """
import numpy as np
from tensordiff.compare.measure import kernel
from tensordiff.compare.measure.dispatch import measure
print(kernel.why_missing(), measure(np.arange(6.0), np.arange(6.0) + 1).outside)
"""


def _ask(library: Path) -> str:
    done = run([sys.executable, "-W", "error", "-c", _ASK], env=os.environ | {"TENSORDIFF_KERNEL": str(library)})
    assert done.returncode == 0, done.stderr
    return str(done.stdout).strip()


def test_a_library_of_other_sources_is_not_used(tmp_path: Path) -> None:
    """As after a change of the C file: what was compiled before it must not measure silently."""
    content, ours = kernel.LIBRARY.read_bytes(), kernel.digest().encode()
    assert content.count(ours) == 1
    old = tmp_path / "kernel.so"
    old.write_bytes(content.replace(ours, b"0" * len(ours)))
    assert _ask(old) == "its library was compiled from other sources than these; install tensordiff again 6"


def test_a_library_that_does_not_load_or_is_not_there(tmp_path: Path) -> None:
    broken = tmp_path / "kernel.so"
    broken.write_bytes(b"not a library")
    assert _ask(broken).startswith("its library does not load: ")
    assert _ask(tmp_path / "none.so") == "it was never compiled; install tensordiff, or run build_kernel.py 6"


def test_kinds_are_in_the_order_of_the_c_enum() -> None:
    text = (kernel.FOLDER / "elements.h").read_text()
    names = text[text.index("enum kind {") :].split("{")[1].split("}")[0].replace("\n", " ").split(",")
    assert len([name for name in names if name.strip() != "COPIED"]) == len(compiled_pass.KINDS)


def test_a_plan_is_made_once() -> None:
    options = PassOptions(Tolerance(1e-3, 0.0), splits_ties=True)
    types = [DTYPES[name] for name in REAL_TYPES]
    for ref, cand in itertools.product(types, types):
        assert compiled_pass.how_for(ref, cand, options) is compiled_pass.how_for(ref, cand, options)
