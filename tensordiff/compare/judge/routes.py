"""Experts: which of them each token was sent to is compared first, and what they gave only where that agrees.

Where two experts are all but equally good for a token, rounding decides between them. Such a flip is no error of the
router, whose logits agree, and no error of an expert, which was given another token. So a difference in routes is
explained if each side took the best by its own logits, and what is computed from routes is judged by the tokens that
took the same ones. That integers are routes is proven by the logits; a router's name is believed only where both sides
hold the same, in another order. In any other integers, ids or positions, the order counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.align.match import Pair
from tensordiff.compare.judge.upstream_error import parent_of
from tensordiff.compare.judge.verdict import Verdict
from tensordiff.compare.row import Row, values_of
from tensordiff.dump.dtypes import Array

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
_PROVEN = 0.98  # of the tokens whose routes are the best by logits, from which an integer tensor holds routes
_ROUTER = re.compile(r"(?:^|[._])(?:router|routing|gat(?:e|ing)|moe|experts?)(?:[._]|$)", re.IGNORECASE)
_ROUTER_CLASS = re.compile(r"(?:router|gat(?:e|ing)|moe|moeblock|experts)$", re.IGNORECASE)
_NUMBERED = re.compile(r"\.[0-9]+\.")


class Flips(NamedTuple):
    """Routes of which some differ, in one layer and step."""

    router: str
    step: int
    routes: tuple[Ints, Ints]
    """[tokens, experts a token], of the reference and the candidate; the best first."""
    flipped: Mask

    @property
    def tokens(self) -> int:
        """How many there are."""
        return len(self.flipped)

    @property
    def told(self) -> str:
        """How many tokens went elsewhere, for a sentence."""
        if not self.flipped.any():
            return "some tokens took the same experts in another order"
        return f"{int(self.flipped.sum())} of {self.tokens} tokens took other experts, at a near-tie"

    def concerns(self, pair: Pair) -> bool:
        """Whether a pair is of the router's own mixture, or of a module around it."""
        layer, mixture = pair.reference.layer, parent_of(self.router)
        inside = not mixture or layer == mixture or layer.startswith(f"{mixture}.")
        return pair.reference.step == self.step and (inside or mixture.startswith(f"{layer}."))

    def where_they_agree(self, pair: Pair) -> tuple[Array, Array] | None:
        """Both sides of a pair, of tokens that took the same experts; None if its rows are not the tokens'."""
        sides = values_of(pair)
        if sides is None or self.flipped.all():
            return None
        ref, cand = sides
        if self.tokens in ref.shape[:-1]:
            keep, axis = ~self.flipped, ref.shape.index(self.tokens)
            return np.compress(keep, ref, axis), np.compress(keep, cand, axis)
        return self._same_choices(ref, cand) if self.has_a_row_a_choice(ref.shape) else None

    def has_a_row_a_choice(self, shape: tuple[int, ...]) -> bool:
        """Whether the rows of a tensor are tokens and their experts, each with each."""
        return len(shape) >= 2 and shape[0] == self.routes[0].size and self.routes[0].shape[1] > 1

    def _same_choices(self, ref: Array, cand: Array) -> tuple[Array, Array]:
        """Rows, one a token and expert, that both sides have: as they stand by token, or sorted by expert."""
        tries = []
        for by_expert in (False, True):
            rows = [_rows(routes, by_expert=by_expert) for routes in self.routes]
            both = [key for key in rows[0] if key in rows[1]]
            tries.append((ref[[rows[0][key] for key in both]], cand[[rows[1][key] for key in both]]))
        return min(tries, key=lambda sides: float(np.abs(np.subtract(*(s.astype(np.float64) for s in sides))).sum()))


def _rows(routes: Ints, *, by_expert: bool) -> dict[tuple[int, int], int]:
    """The row of each token and expert."""
    flat, each = routes.reshape(-1), routes.shape[1]
    order = flat.argsort(kind="stable") if by_expert else np.arange(len(flat))
    return {(int(at) // each, int(flat[at])): row for row, at in enumerate(order)}


def judge_routes(row: Row, before: Iterable[Row]) -> tuple[Verdict, Flips | None] | None:
    """What differing integers mean if they are routes, by the logits among the rows before; None if they are not."""
    taken = values_of(row.pair)
    if taken is None or taken[0].ndim < 2 or any(side.dtype.kind not in "iu" for side in taken):
        return None
    ref, cand = (_by_token(side).astype(np.int64) for side in taken)
    flipped = np.asarray((np.sort(ref, 1) != np.sort(cand, 1)).any(1))
    flips = Flips(row.pair.reference.layer, row.pair.reference.step, (ref, cand), flipped)
    if not flipped.any():
        is_choice = _are_sets(ref) and (is_router(row.pair) or _logits(row, before, ref, cand) is not None)
        return (Verdict("agrees", "the same experts, in another order"), flips) if is_choice else None
    logits = _logits(row, before, ref, cand)
    return None if logits is None else _by_logits(flips, *logits)


def _by_logits(flips: Flips, of_ref: Array, of_cand: Array) -> tuple[Verdict, Flips | None]:
    """What routes that differ mean, by the logits of either side."""
    (ref, cand), flipped = flips.routes, flips.flipped
    told = f"{int(flipped.sum())} of {flips.tokens} tokens took other experts"
    if not np.isfinite(of_cand[flipped]).all():
        return Verdict("drifts", f"{told}, by odd logits"), flips
    if not _are_best(cand, of_cand)[flipped].all():
        return Verdict("diverges", f"{told}, and not those that the router's own logits call the best"), None
    gap = float(_gap(ref, cand, of_ref)[flipped].max())
    return Verdict("drifts", f"{flips.told}: {gap:.1e} of the router's logits decides"), flips


def is_router(pair: Pair) -> bool:
    """Whether a layer is called as those are that choose experts, by its own name within its block, or its class."""
    sides = pair.reference, pair.candidate
    names = (pair.name, *(side.layer for side in sides))
    classes = ((side.origin and side.origin.module_class) or "" for side in sides)
    return any(_ROUTER.search(_own_name(name)) for name in names) or any(map(_ROUTER_CLASS.search, classes))


def _own_name(layer: str) -> str:
    """A layer's name within its block, without its operation: a whole model may be called a mixture."""
    *around, own = _NUMBERED.split(layer.partition("/")[0])
    return own if around else own.rpartition(".")[2]


def _by_token(side: Array) -> Array:
    return side.reshape(-1, side.shape[-1])


def _are_sets(routes: Ints) -> bool:
    """Whether no token takes an expert twice, as ids and positions may."""
    ordered = np.sort(routes, 1)
    return bool(routes.shape[1] > 1 and (ordered[:, 1:] != ordered[:, :-1]).all())


def _logits(row: Row, before: Iterable[Row], routes: Ints, cand: Ints) -> tuple[Array, Array] | None:
    """Both sides of the nearest row before by which the reference's routes are the best, and the candidate's exist."""
    if min(routes.min(), cand.min()) < 0:
        return None
    for other in reversed(list(before)):
        shape = other.shape or ()
        if other.is_exact or other.pair.reference.step != row.pair.reference.step or len(shape) < 2:
            continue
        if shape[-1] <= max(routes.shape[1], int(routes.max()), int(cand.max())) or np.prod(shape[:-1]) != len(routes):
            continue
        sides = values_of(other.pair)
        if sides is not None and _are_best(routes, _by_token(sides[0])).mean() >= _PROVEN:
            return _by_token(sides[0]).astype(np.float64), _by_token(sides[1]).astype(np.float64)
    return None


def _are_best(routes: Ints, logits: Array) -> Mask:
    """For each token, whether no expert that it did not take is better than one it took."""
    values = logits.astype(np.float64)
    took = np.zeros(values.shape, bool)
    np.put_along_axis(took, routes, True, 1)
    least = np.where(took, values, np.inf).min(1)
    return np.asarray(least >= np.where(took, -np.inf, values).max(1))


def _gap(ref: Ints, cand: Ints, logits: Array) -> NDArray[np.float64]:
    """How much better, by the reference, what it took is than what the candidate took instead; over the spread."""
    best = [np.take_along_axis(logits, side, 1).min(1) for side in (ref, cand)]
    return np.asarray(np.abs(best[0] - best[1]) / np.maximum(np.ptp(logits, 1), np.finfo(np.float64).tiny))
