"""Finding equal tensors by their values, whatever their names: whole ones, or fused from others.

A ``Fingerprint`` is a few numbers by which a tensor is recognized without reading it again. Its size, mean, RMS and
largest value do not change when it is transposed or its heads are permuted; a short sample of its first values rules
out sums and products of tensors before any is computed whole. Constant, tiny and non-finite tensors would match
anything and have no fingerprint. Fingerprints leave few candidates, which are then compared in every layout that their
shapes allow: equal tensors differ by rounding, others by about 1.

``Fusions`` are tensors that one side computes together and the other apart: ``cat`` of neighbours, ``act(gate) * up``,
a sum with the residual, one token of all, a slice of a wider tensor. Only neighbours in execution order are tried, and
only if the numbers of their fingerprints add up.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.align.expression import parse
from tensordiff.align.expression.activations import gelu, gelu_tanh, relu, silu
from tensordiff.align.views import reconcile
from tensordiff.dump.dtypes import Array, name_of
from tensordiff.dump.model import CallKey, Entry
from tensordiff.errors import AlignError, DumpError

SAMPLE = 64
MIN_ELEMENTS = 16
_PART = 1 << 20
# The rel_l2 up to which two runs of one layer may differ and still be distinguished from other layers.
TOLERANCE = {"float64": 1e-7, "float32": 1e-5, "float16": 5e-3, "bfloat16": 3e-2}


class Fingerprint(NamedTuple):
    """A few numbers by which a tensor is recognized."""

    entry: Entry
    core: tuple[int, ...]
    """The shape without dimensions of size 1."""
    size: int
    mean: float
    rms: float
    largest: float
    sample: NDArray[np.float64]
    tolerance: float
    """The rel_l2 up to which another tensor may be the same as this one."""

    @property
    def width(self) -> int:
        """The last dimension."""
        return self.core[-1] if self.core else 1


def fingerprint(entry: Entry) -> Fingerprint | None:
    """Read a tensor once; None if its values are too common to recognize it."""
    try:
        array = entry.read()
    except (DumpError, AlignError):
        return None  # measuring reports it
    is_whole = array.dtype.kind in "iu" and entry.is_input  # token ids distinguish layers
    if array.size < (2 if is_whole else MIN_ELEMENTS) or not (is_whole or name_of(array.dtype) in TOLERANCE):
        return None
    return _of_values(entry, array)


def _of_values(entry: Entry, array: Array) -> Fingerprint | None:
    flat, total, squares, largest = array.reshape(-1), 0.0, 0.0, 0.0
    with np.errstate(all="ignore"):
        for begin in range(0, flat.size, _PART):
            part = flat[begin : begin + _PART].astype(np.float64)
            total += float(part.sum())
            squares += float(np.dot(part, part))
            largest = max(largest, float(np.abs(part).max()))
    mean, rms = total / flat.size, math.sqrt(squares / flat.size) if squares < math.inf else math.inf
    if not 0 < rms < math.inf or not math.isfinite(mean) or rms * rms - mean * mean < 1e-12 * rms * rms:
        return None
    core = tuple(size for size in array.shape if size != 1)
    sample = flat[:SAMPLE].astype(np.float64)
    return Fingerprint(entry, core, flat.size, mean, rms, largest, sample, TOLERANCE.get(name_of(array.dtype), 0.0))


HEAD_SIZES = (8, 16, 32, 64, 80, 96, 112, 128, 192, 256, 512)
"""Usual head sizes of attention; the hints of ``compare`` use them, too."""


@dataclass(frozen=True, eq=False)  # hashed by identity: hashing its entries would hash what they store
class Match:
    """Two entries that hold the same values, and the view of the reference under which they do."""

    reference: Entry
    candidate: Entry
    view: str
    """Empty if shapes agree without one."""
    rel_l2: float


def rel_l2(ref: Array, cand: Array) -> float:
    """Relative L2 distance, in float64."""
    r, c = ref.reshape(-1).astype(np.float64), cand.reshape(-1).astype(np.float64)
    size = float(np.dot(r, r))
    return math.sqrt(float(np.dot(c - r, c - r)) / size) if size else math.inf


def common_tolerance(a: Fingerprint, b: Fingerprint) -> float:
    """The distance up to which two tensors may be the same: that of the coarser dtype."""
    return max(a.tolerance, b.tolerance)


class FingerprintIndex:
    """The fingerprints of one side, searchable by the numbers that do not depend on layout."""

    def __init__(self, fingerprints: Sequence[Fingerprint]) -> None:
        self.fingerprints = fingerprints
        self.numbers = np.array([(s.size, s.mean, s.rms, s.largest, s.tolerance) for s in fingerprints]).reshape(-1, 5)

    def alike(self, other: Fingerprint) -> Iterator[Fingerprint]:
        """Tensors of the same size, and about the same mean, RMS and largest value."""
        if not self.fingerprints:
            return
        size, mean, rms, largest, tolerance = self.numbers.T
        slack = 3 * np.maximum(tolerance, other.tolerance) * other.rms
        is_alike = (size == other.size) & (abs(rms - other.rms) <= slack) & (abs(mean - other.mean) <= slack)
        # Rounding may change the largest element by more than it changes the tensor as a whole.
        is_alike &= abs(largest - other.largest) <= 0.05 * other.largest
        yield from (self.fingerprints[int(k)] for k in np.flatnonzero(is_alike))


def layouts(reference: tuple[int, ...], candidate: tuple[int, ...]) -> Iterator[str]:
    """Views of the reference that could give the candidate's shape, most likely first."""
    if reconcile(reference, candidate) is not None:
        yield ""
    core_r, core_c = ([n for n in shape if n != 1] for shape in (reference, candidate))
    if _is_regrouped(core_r, core_c):
        yield "reshape " + " ".join(map(str, candidate))
    yield from permuted_axes(reference, candidate)
    yield from rope_orders(reference, candidate)


def _is_regrouped(a: list[int], b: list[int]) -> bool:
    """Whether one shape splits or merges dimensions of the other, so that row-major order is kept."""
    return a != b and math.prod(a) == math.prod(b) and (a[:1] == b[:1] or a[-1:] == b[-1:])


def permuted_axes(reference: tuple[int, ...], candidate: tuple[int, ...]) -> Iterator[str]:
    """Permutations of the reference's axes that give the candidate's shape."""
    axes = [axis for axis, size in enumerate(reference) if size != 1]
    wanted = [size for size in candidate if size != 1]
    if len(axes) != len(wanted) or not 2 <= len(axes) <= 4:
        return
    ones = [axis for axis in range(len(reference)) if axis not in axes]
    for order in permutations(axes):
        if list(order) != axes and [reference[axis] for axis in order] == wanted:
            yield "permute " + " ".join(map(str, (*ones, *order)))


def rope_orders(reference: tuple[int, ...], candidate: tuple[int, ...]) -> Iterator[str]:
    """Rope in halves against rope in interleaved pairs, over the whole last axis or in each head."""
    if reconcile(reference, candidate) is None or not reference or reference[-1] % 2:
        return
    yield from ("interleave", "deinterleave")
    for size in HEAD_SIZES:
        if size < reference[-1] and reference[-1] % size == 0:
            for turn in ("interleave", "deinterleave"):
                yield f"heads {reference[-1] // size} | {turn} | flatten -2 -1"


def by_layer(fingerprints: Iterable[Fingerprint]) -> dict[CallKey, list[Fingerprint]]:
    """Fingerprints grouped by the call of their layer."""
    groups: dict[CallKey, list[Fingerprint]] = defaultdict(list)
    for item in fingerprints:
        groups[item.entry.call_key].append(item)
    return groups


WINDOW = 6
"""How far apart in execution order the parts of a fused tensor may be."""
ACTIVATIONS = {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh, "relu": relu}
_SAMPLE_SLACK = 20.0  # the error of a sample may be this much larger than the tensor's

Parts = tuple[Fingerprint, ...]


class Fusions:
    """The fusions that neighbours of one side could form, to be compared with tensors of the other."""

    def __init__(self, fingerprints: Sequence[Fingerprint], orphans: Sequence[Fingerprint] = ()) -> None:
        self.singles, self.orphans = fingerprints, orphans
        pairs = [
            (a, b) for k, a in enumerate(fingerprints) for b in fingerprints[k + 1 : k + WINDOW] if a.core == b.core
        ]
        self.pairs: list[Parts] = [both for both in pairs if len(both[0].sample) == len(both[1].sample)]
        self.cats = list(_cats(fingerprints))
        self.cat_numbers = np.array([_cat_numbers(parts) for parts in self.cats]).reshape(-1, 3)

    def of(self, target: Fingerprint) -> Iterator[tuple[str, Parts]]:
        """Templates over ``{0}``, ``{1}``, … that may give the target, each with its parts."""
        yield from self._one_token(target)
        yield from self._cats_of(target)
        yield from self._products_and_sums(target)

    def _one_token(self, target: Fingerprint) -> Iterator[tuple[str, Parts]]:
        for item in self.singles:
            if len(item.core) >= 2 and item.core[-1:] == target.core[-1:] and item.size > target.size == item.width:
                yield "last_token({0})", (item,)

    def _cats_of(self, target: Fingerprint) -> Iterator[tuple[str, Parts]]:
        if not self.cats or len(target.core) < 2:
            return
        rows, width, squares = self.cat_numbers.T
        fits = (rows == target.size // target.width) & (width == target.width)
        fits &= abs(squares - target.size * target.rms**2) <= 3 * target.tolerance * target.size * target.rms**2
        for k in np.flatnonzero(fits):
            for parts in permutations(self.cats[k]):
                names = ", ".join(f"{{{n}}}" for n in range(len(parts)))
                yield f"cat({names})", parts

    def slices_of(self, target: Fingerprint) -> Iterator[tuple[str, Parts]]:
        """Slices of wider orphans that may give the target."""
        for item in self.orphans:
            if item.core[:-1] == target.core[:-1] and item.width > target.width:
                for start in _offsets(_first_row(item), _first_row(target), _SAMPLE_SLACK * target.tolerance):
                    yield f"slice({{0}}, -1, {start}, {start + target.width})", (item,)

    def _products_and_sums(self, target: Fingerprint) -> Iterator[tuple[str, Parts]]:
        near = _SAMPLE_SLACK * target.tolerance
        for parts in self.pairs:
            a, b = parts
            if a.core != target.core or len(a.sample) != len(target.sample):
                continue
            if _is_sum(a.sample, b.sample, target.sample, near):
                yield "sum({0}, {1})", parts
            for name, act in ACTIVATIONS.items():
                if _is_near(act(a.sample) * b.sample, target.sample, near):
                    yield f"mul({name}({{0}}), {{1}})", parts
                if _is_near(act(b.sample) * a.sample, target.sample, near):
                    yield f"mul({name}({{1}}), {{0}})", parts


def _first_row(item: Fingerprint) -> NDArray[np.float64]:
    return np.asarray(item.entry.read().reshape(-1, item.width)[0], np.float64)


def _offsets(row: NDArray[np.float64], part: NDArray[np.float64], near: float) -> list[int]:
    """The offsets at which a row contains another, at multiples that both widths allow."""
    step = math.gcd(len(row), len(part))
    starts = range(0, len(row) - len(part) + 1, step)
    return [start for start in starts if _is_near(row[start : start + len(part)], part, near)]


def _is_sum(a: NDArray[np.float64], b: NDArray[np.float64], target: NDArray[np.float64], near: float) -> bool:
    """Whether two add up to a third, and neither alone is so close to it that the other does not matter."""
    error = np.linalg.norm(a + b - target)
    alone = min(np.linalg.norm(a - target), np.linalg.norm(b - target))
    return bool(error <= near * np.linalg.norm(target) and error <= 0.1 * alone)


def _is_near(values: NDArray[np.float64], target: NDArray[np.float64], near: float) -> bool:
    return bool(np.linalg.norm(values - target) <= near * np.linalg.norm(target))


def _cats(fingerprints: Sequence[Fingerprint]) -> Iterator[Parts]:
    """Two or three neighbours that differ at most in their last dimension."""
    for k, first in enumerate(fingerprints):
        window = [s for s in fingerprints[k + 1 : k + WINDOW] if s.core[:-1] == first.core[:-1] and len(s.core) > 1]
        for count in (1, 2):
            yield from ((first, *rest) for rest in combinations(window, count))


def _cat_numbers(parts: Parts) -> tuple[float, float, float]:
    rows = parts[0].size // parts[0].width
    return rows, sum(part.width for part in parts), sum(part.size * part.rms**2 for part in parts)


def fill(template: str, names: Sequence[str]) -> str:
    """A template filled with names, as canonical text."""
    return str(parse(template.format(*names)))
