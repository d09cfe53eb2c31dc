"""Rows in another order: which row went where, and what that order is called."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from tensordiff.weights.hint.seen import Order, rows_alike
from tensordiff.weights.samples import Floats, are_alike
from tensordiff.weights.views import deinterleaved, interleaved

_PROJECTIONS = 12
_MOST_ROWS = 20_000
_AT_ONCE = 512
_SHOWN = 8


def match_rows(ref: Floats, cand: Floats, slack: float) -> Order | None:
    """For each row of the candidate, the reference's row that it is; None where they are no permutation."""
    rows, columns = ref.shape
    if rows < 2 or rows > _MOST_ROWS or ref.shape != cand.shape:
        return None
    order = _by_value(ref, cand) if columns < 4 else _by_projection(ref, cand, slack)
    if order is None or len(np.unique(order)) != rows or not are_alike(cand, ref[order], slack):
        return None
    return None if bool(np.all(order == np.arange(rows))) else order


def _by_value(ref: Floats, cand: Floats) -> Order:
    """Of vectors: the n-th largest is the n-th largest."""
    order = np.empty(len(ref), np.int64)
    order[np.argsort(cand[:, 0], kind="stable")] = np.argsort(ref[:, 0], kind="stable")
    return order


def _by_projection(ref: Floats, cand: Floats, slack: float) -> Order | None:
    """The nearest row, by a few random projections; a row that stayed where it was is taken first."""
    random = np.random.default_rng(0).standard_normal((ref.shape[1], _PROJECTIONS)).astype(np.float32)
    ours, theirs = ref @ random, cand @ random
    order = np.arange(len(ref))
    moved = np.flatnonzero(~rows_alike(cand, ref, slack))
    if not len(moved):
        return None
    pool = ours[moved]
    squares = np.sum(pool * pool, axis=1)
    for start in range(0, len(moved), _AT_ONCE):
        some = moved[start : start + _AT_ONCE]
        distance = squares[None, :] - 2 * theirs[some] @ pool.T
        order[some] = moved[np.argmin(distance, axis=1)]
    return order


def divisors(number: int) -> list[int]:
    """All divisors, small ones first."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def name_of_order(order: Order, what: str = "rows") -> tuple[str, str, int]:
    """What an order is called: a kind, a phrase, and the size of its blocks (0 where it has none)."""
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
    """What is said of parts that were fused in another order, or head by head; None where it is neither."""
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
