"""Rows in another order: which row went where, and what that order is called."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.dump.dtypes import DTYPES
from tensordiff.weights.hint.pair_tables import Order, rows_alike
from tensordiff.weights.samples import Floats, are_alike
from tensordiff.weights.views import deinterleaved, interleaved

_PROJECTIONS = 12
_MOST_BY_PAIRS = 20_000
"""With so many rows, each is compared with each; with more, only with those that one projection brings close."""
_NEIGHBOURS = 128
_AT_ONCE = 128
_MANY = 1024  # rows from which a sample is tried before all
_KNOWN_AT_ONCE = 1 << 14
_HASHED_AT_ONCE = 1 << 20
_TRIED = 32  # rows of a sample
_MOSTLY = 0.9  # the share of the sampled or moved rows that must match
_SHOWN = 8
_FEWEST_MOVED = 8
_EXACT = 1e-5  # slack up to which rows need not be rounded before their bits are compared


def match_rows(ref: Floats, cand: Floats, slack: float) -> Order | None:
    """For each row of the candidate, the reference's row that it equals; None if they are no permutation."""
    rows, columns = ref.shape
    if rows < 2 or ref.shape != cand.shape:
        return None
    if columns < 4:
        return _if_permutation(_by_value(ref, cand), ref, cand, slack)
    if rows > _MANY and not _are_rows_of(ref, cand, slack):
        return None
    for made in (_by_bits, _by_projection):
        if (order := _if_permutation(made(ref, cand, slack), ref, cand, slack)) is not None:
            return None if bool(np.all(order == np.arange(rows))) else order
    return None


def _if_permutation(order: Order | None, ref: Floats, cand: Floats, slack: float) -> Order | None:
    if order is None or len(np.unique(order)) != len(ref) or not are_alike(cand, ref[order], slack):
        return None
    return order


def _are_rows_of(ref: Floats, cand: Floats, slack: float) -> bool:
    """Whether a sample of the candidate's rows are rows of the reference; otherwise it is no permutation."""
    places = np.unique(np.linspace(0, len(cand) - 1, _TRIED).astype(np.int64))
    same = rows_alike(cand[places], ref[nearest_rows(ref, cand[places])], 4 * slack)
    return bool(np.mean(same) >= _MOSTLY)


def nearest_rows(ref: Floats, some: Floats) -> Order:
    """For each of a few rows, the nearest of all rows of the reference."""
    nearest, least = np.zeros(len(some), np.int64), np.full(len(some), np.inf, np.float32)
    for start in range(0, len(ref), _KNOWN_AT_ONCE):
        known = ref[start : start + _KNOWN_AT_ONCE]
        distance = np.einsum("ij,ij->i", known, known)[None, :] - 2 * some @ known.T
        at = np.argmin(distance, axis=1)
        distance_here = distance[np.arange(len(some)), at]
        is_nearer = distance_here < least
        nearest[is_nearer], least[is_nearer] = start + at[is_nearer], distance_here[is_nearer]
    return nearest


def _by_value(ref: Floats, cand: Floats) -> Order:
    """Match single-column tables: the n-th largest is the n-th largest."""
    order = np.empty(len(ref), np.int64)
    order[np.argsort(cand[:, 0], kind="stable")] = np.argsort(ref[:, 0], kind="stable")
    return order


def _by_bits(ref: Floats, cand: Floats, slack: float) -> Order | None:
    """Match rows with the same bits, as they are or rounded like the coarser side; repeated rows keep their order."""
    for dtype in ("float32", "bfloat16", "float16"):
        ours, theirs = _row_hashes(ref, dtype), _row_hashes(cand, dtype)
        ranks = np.argsort(ours, kind="stable"), np.argsort(theirs, kind="stable")
        if np.array_equal(ours[ranks[0]], theirs[ranks[1]]):
            order = np.empty(len(ref), np.int64)
            order[ranks[1]] = ranks[0]
            return order
        if slack <= _EXACT:
            break
    return None


def _row_hashes(values: Floats, dtype: str) -> NDArray[np.uint64]:
    odd = np.random.default_rng(0).integers(0, 1 << 63, values.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    hashes = []
    count = max(1, _HASHED_AT_ONCE // values.shape[1])
    for start in range(0, len(values), count):
        some = values[start : start + count]
        with np.errstate(all="ignore"):
            rounded = some.astype(DTYPES[dtype]).astype(np.float32) + np.float32(0)  # the addition turns -0 into 0
        hashes.append((rounded.view(np.uint32) * odd).sum(axis=1, dtype=np.uint64))
    return np.concatenate(hashes)


def _by_projection(ref: Floats, cand: Floats, slack: float) -> Order | None:
    """Match each row with the nearest, by a few random projections; rows that did not move are matched first."""
    random = np.random.default_rng(0).standard_normal((ref.shape[1], _PROJECTIONS)).astype(np.float32)
    moved = np.flatnonzero(~rows_alike(cand, ref, slack))
    if not len(moved):
        return None
    nearest = _nearest_of_all if len(moved) <= _MOST_BY_PAIRS else _nearest_of_neighbours
    order = np.arange(len(ref))
    order[moved] = moved[nearest(ref[moved] @ random, cand[moved] @ random)]
    return order


def _nearest_of_all(ours: Floats, theirs: Floats) -> Order:
    squares = np.sum(ours * ours, axis=1)
    nearest = np.empty(len(theirs), np.int64)
    for start in range(0, len(theirs), _AT_ONCE):
        distance = squares[None, :] - 2 * theirs[start : start + _AT_ONCE] @ ours.T
        nearest[start : start + _AT_ONCE] = np.argmin(distance, axis=1)
    return nearest


def _nearest_of_neighbours(ours: Floats, theirs: Floats) -> Order:
    """The nearest among the neighbours in the order of the first projection."""
    by_first = np.argsort(ours[:, 0])
    line = ours[by_first, 0]
    nearest = np.empty(len(theirs), np.int64)
    for start in range(0, len(theirs), _AT_ONCE):
        some = theirs[start : start + _AT_ONCE]
        places = np.searchsorted(line, some[:, 0])[:, None] + np.arange(-_NEIGHBOURS, _NEIGHBOURS)
        near = by_first[np.clip(places, 0, len(line) - 1)]
        apart = ours[near] - some[:, None, :]
        at = np.argmin(np.einsum("ijk,ijk->ij", apart, apart), axis=1)
        nearest[start : start + _AT_ONCE] = near[np.arange(len(some)), at]
    return nearest


class RowShift(NamedTuple):
    """Rows ``first`` to ``last`` of the candidate are those of the reference ``by`` further on."""

    by: int
    first: int
    last: int


def shift_of_rows(ref: Floats, cand: Floats, equal: NDArray[np.bool_], slack: float) -> RowShift | None:
    """By how much rows moved, if all that differ moved by the same; inserted or padded rows match nothing."""
    moved = np.flatnonzero(~equal & np.any(cand != 0, axis=1))
    if len(moved) < _FEWEST_MOVED:
        return None
    tried = moved[np.unique(np.linspace(0, len(moved) - 1, _TRIED).astype(np.int64))]
    gaps, counts = np.unique(nearest_rows(ref, cand[tried]) - tried, return_counts=True)
    by = int(gaps[np.argmax(counts)])
    inside = moved[(moved + by >= 0) & (moved + by < len(ref))]
    if not by or len(inside) < _MOSTLY * len(moved):
        return None
    same = inside[rows_alike(cand[inside], ref[inside + by], slack)]
    return RowShift(by, int(same[0]), int(same[-1])) if len(same) >= _MOSTLY * len(moved) else None


def divisors(number: int) -> list[int]:
    """All divisors, small ones first."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def name_of_order(order: Order, what: str = "rows") -> tuple[str, str, int]:
    """What an order is called: a kind, a phrase, and the size of its blocks (0 if it has none)."""
    for name in (_swapped, _shifted, _rope, _blocks, _within_blocks):
        if (found := name(order, what)) is not None:
            return found
    return "permuted", f"{what} in another order: the first are {_listed(order)}", 0


def _listed(order: Order) -> str:
    return ", ".join(map(str, order[:_SHOWN].tolist())) + (", …" if len(order) > _SHOWN else "")


def _swapped(order: Order, what: str) -> tuple[str, str, int] | None:
    places = np.flatnonzero(order != np.arange(len(order)))
    if len(places) != 2:
        return None
    return "permuted", f"{what} {places[0]} and {places[1]} are swapped", 0


def _shifted(order: Order, what: str) -> tuple[str, str, int] | None:
    count = len(order)
    shift = int(order[0])
    if shift and np.array_equal(order, (np.arange(count) + shift) % count) and 2 * shift != count:
        by = shift if shift <= count // 2 else shift - count
        return "shifted", f"{what} shifted by {by}", 0
    if np.array_equal(order, np.arange(count)[::-1]):
        return "permuted", f"{what} in reverse order", 0
    return None


def _rope(order: Order, what: str) -> tuple[str, str, int] | None:
    count = len(order)
    ways: tuple[tuple[str, Callable[[int, int], Order]], ...] = (
        ("halves interleaved", interleaved), ("pairs taken apart into halves", deinterleaved),
    )  # fmt: skip
    for head in (n for n in divisors(count) if n >= 4 and n % 2 == 0):
        for way, made in ways:
            if np.array_equal(order, made(count, head)):
                return "rope rows", f"{what} permuted in blocks of {head} (rope: {way})", head
    return None


def _blocks(order: Order, what: str) -> tuple[str, str, int] | None:
    """Whole blocks that moved: heads."""
    count = len(order)
    for size in (n for n in reversed(divisors(count)) if 2 <= n < count):
        blocks = order.reshape(-1, size)
        if np.all(blocks[:, 0] % size == 0) and np.all(np.diff(blocks, axis=1) == 1):
            moved = blocks[:, 0] // size
            return "heads permuted", f"blocks of {size} {what} {_moves(moved)}", size
    return None


def _moves(moved: Order) -> str:
    places = np.flatnonzero(moved != np.arange(len(moved)))
    if len(places) == 2:
        return f"are swapped: number {places[0]} and number {places[1]} of {len(moved)}"
    return f"in another order: {_listed(moved)}"


def _within_blocks(order: Order, what: str) -> tuple[str, str, int] | None:
    """One pattern, repeated in every block."""
    count = len(order)
    for size in (n for n in divisors(count) if 2 <= n < count):
        blocks = order.reshape(-1, size) - np.arange(0, count, size)[:, None]
        if np.all((blocks >= 0) & (blocks < size)) and np.all(blocks == blocks[0]):
            return "permuted", f"{what} permuted in blocks of {size}: {_listed(blocks[0])}", size
    return None


def fused_order(order: Order, rows: list[int], names: list[str]) -> str | None:
    """A phrase about parts that were fused in another order, or head by head; None if it is neither."""
    starts = np.concatenate(([0], np.cumsum(rows)))[:-1]
    pieces = [np.arange(start, start + count) for start, count in zip(starts, rows, strict=True)]
    for sequence, made in _fused(pieces):
        if np.array_equal(order, made):
            return sequence.format(", ".join(names)) if "{}" in sequence else ", ".join(
                names[int(k)] for k in sequence.split()
            )  # fmt: skip
    return None


def _fused(pieces: list[Order]) -> Iterator[tuple[str, Order]]:
    for turn in itertools.permutations(range(len(pieces))):
        if turn != tuple(range(len(pieces))):
            yield " ".join(map(str, turn)), np.concatenate([pieces[k] for k in turn])
    shortest = min(map(len, pieces))
    for groups in divisors(shortest):
        if groups > 1 and all(len(piece) % groups == 0 for piece in pieces):
            cut = [piece.reshape(groups, -1) for piece in pieces]
            yield f"{{}} in {groups} groups, group by group", np.concatenate(cut, axis=1).reshape(-1)
