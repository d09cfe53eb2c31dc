"""Finding tensors that one side computes fused and the other apart, by their values.

``cat`` of neighbours, ``act(gate) * up``, a sum with the residual, one token of all, a slice of a wider tensor.
Only neighbours in execution order are tried, and only where the numbers of their fingerprints add up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

from tensordiff.align.by_value import Fingerprint
from tensordiff.align.expression import parse
from tensordiff.align.expression.activations import gelu, gelu_tanh, relu, silu

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
    """Where a row contains another, at multiples that both widths allow."""
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
