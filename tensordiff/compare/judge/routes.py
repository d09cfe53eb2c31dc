"""Mixtures of experts: compare routes first, and outputs of experts only for tokens with equal routes.

If two experts score nearly the same for a token, rounding decides between them. Such a flip is an error neither of the
router, whose logits agree, nor of an expert, which got another token. So different routes are excused if each side took
the best experts by its own logits, and outputs of experts are judged by the tokens that took the same experts. The
logits prove that integers are routes; a router's name is believed only if both sides hold the same integers in another
order. For all other integers, such as ids or positions, the order matters.

Some routers add a bias to their scores, or first choose among groups, and pass on only logits. Then a side's logits do
not show which experts are the best. But the distance between both sides' logits, and the gaps between experts' scores,
tell how many tokens rounding may route differently.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.align.match import Pair
from tensordiff.compare.judge.parents import parent_of
from tensordiff.compare.judge.upstream_error import mixture_of
from tensordiff.compare.judge.verdict import Verdict
from tensordiff.compare.row import Row, values_of
from tensordiff.dump.dtypes import Array

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
_PROVEN = 0.98  # share of tokens whose integers are the best experts by the logits, from which they are routes
_ROUTER = re.compile(r"(?:^|[._])(?:router|routing|gat(?:e|ing)|moe|experts?)(?:[._]|$)", re.IGNORECASE)
_ROUTER_CLASS = re.compile(r"(?:router|gat(?:e|ing)|moe|moeblock|experts)$", re.IGNORECASE)
_EXPERTS = re.compile(r"(?:^|\.)experts(?=\.|$)")
_HARDLY = 0.02  # expected number of flips below which none should occur
_OF_RANDOM_GAPS = 1 / math.sqrt(2 * math.pi)  # share of random gaps that an error of their mean size exceeds
FEW_DECODED = 8  # tokens of a decoding step that count as few
_OF_FEW_BITS = 1e-3  # least distance of logits in 16-bit types
_MOST_REORDERED = 0.5  # share of the tokens; beyond it the two sides use different conventions
_NUMBERED = re.compile(r"\.[0-9]+\.")


class RouteFlips(NamedTuple):
    """The routes of one layer and step, some of which differ."""

    router: str
    step: int
    routes: tuple[Ints, Ints]
    """[tokens, experts per token] of the reference and of the candidate, the best expert first."""
    flipped: Mask
    is_proven: bool = True
    """Whether each side's logits show that it took its best experts; if not, the flips are only plausible by their
    number."""

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return len(self.flipped)

    @property
    def summary(self) -> str:
        """The number of tokens that took other experts, as a clause."""
        if not self.flipped.any():
            return "some tokens took the same experts in another order"
        at = "at a near-tie" if self.is_proven else "no more than rounding explains"
        return f"{int(self.flipped.sum())} of {self.tokens} tokens took other experts, {at}"

    def concerns(self, pair: Pair) -> bool:
        """Whether a pair belongs to the router's mixture, or to a module around it."""
        layer, mixture = pair.reference.layer, parent_of(self.router)
        inside = not mixture or layer == mixture or layer.startswith(f"{mixture}.")
        return pair.reference.step == self.step and (inside or mixture.startswith(f"{layer}."))

    def values_where_equal(self, pair: Pair) -> tuple[Array, Array] | None:
        """Both sides of a pair for the tokens that took the same experts; None if its rows are not tokens."""
        sides = values_of(pair)
        if sides is None or self.flipped.all():
            return None
        ref, cand = sides
        if ref.shape == self.routes[0].shape and ref.dtype.kind not in "iu":
            # Weights of the chosen experts are in the order of choice, which may differ between the sides.
            ref, cand = (
                np.take_along_axis(side, routes.argsort(1, kind="stable"), 1)
                for side, routes in zip((ref, cand), self.routes, strict=True)
            )
        if ref.ndim > 2 and math.prod(ref.shape[:-1]) == self.tokens:
            ref, cand = (side.reshape(-1, side.shape[-1]) for side in (ref, cand))
        if self.tokens in ref.shape[:-1]:
            keep, axis = ~(self.flipped | self._reordered), ref.shape.index(self.tokens)
            return np.compress(keep, ref, axis), np.compress(keep, cand, axis)
        return self._same_choices(ref, cand) if self.has_row_per_choice(ref.shape) else None

    @property
    def _reordered(self) -> Mask:
        """Tokens that took the same experts in another order, if there are few: the best expert may get a special
        weight."""
        apart = np.asarray((self.routes[0] != self.routes[1]).any(1))
        return apart if apart.mean() <= _MOST_REORDERED else np.zeros_like(apart)

    def has_row_per_choice(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor has one row per token and expert."""
        return len(shape) >= 2 and shape[0] == self.routes[0].size and self.routes[0].shape[1] > 1

    def _same_choices(self, ref: Array, cand: Array) -> tuple[Array, Array]:
        """The rows of the tokens and experts that both sides have; rows may be sorted by token or by expert."""
        tries = []
        for by_expert in (False, True):
            rows = [_rows(routes, by_expert=by_expert) for routes in self.routes]
            both = [key for key in rows[0] if key in rows[1]]
            tries.append((ref[[rows[0][key] for key in both]], cand[[rows[1][key] for key in both]]))
        return min(tries, key=lambda sides: float(np.abs(np.subtract(*(s.astype(np.float64) for s in sides))).sum()))


def _rows(routes: Ints, *, by_expert: bool) -> dict[tuple[int, int], int]:
    """The row number of each token and expert."""
    flat, each = routes.reshape(-1), routes.shape[1]
    order = flat.argsort(kind="stable") if by_expert else np.arange(len(flat))
    return {(int(at) // each, int(flat[at])): row for row, at in enumerate(order)}


def judge_routes(
    row: Row, before: Iterable[Row], hidden: Mask | None = None, *, was_right: bool = False
) -> tuple[Verdict, RouteFlips | None] | None:
    """The verdict on integers that differ, if the logits of an earlier row prove that they are routes; else None.

    ``hidden`` marks padding tokens, whose routes do not count. ``was_right`` says that the router was right for the
    many tokens of an earlier step.
    """
    taken = values_of(row.pair)
    if taken is None or taken[0].ndim < 2 or any(side.dtype.kind not in "iu" for side in taken):
        return None
    ref, cand = (_by_token(side).astype(np.int64) for side in taken)
    flipped = np.asarray((np.sort(ref, 1) != np.sort(cand, 1)).any(1))
    if hidden is not None and hidden.shape == flipped.shape:
        flipped |= hidden
    flips = RouteFlips(row.pair.reference.layer, row.pair.reference.step, (ref, cand), flipped)
    if not flipped.any():
        is_choice = _are_sets(ref) and (is_router(row.pair) or _logits(row, before, ref, cand) is not None)
        return (Verdict("agrees", "the same experts, in another order"), flips) if is_choice else None
    logits = _logits(row, before, ref, cand)
    if logits is not None:
        return _by_logits(flips, *logits, was_right=was_right)
    return _by_chance(flips, row, before, hidden, was_right=was_right)


def judge_sorted(row: Row, before: Iterable[Row], *, is_padded: bool) -> tuple[Verdict, RouteFlips] | None:
    """The verdict on a router's output per token and expert that is sorted by expert, if tokens took other experts.

    The logits tell which experts were taken, since integers in one row do not. None if no token took other experts.
    """
    size = (row.shape or (0,))[0]
    if len(row.shape or ()) != 1 or not size or not is_router(row.pair):
        return None
    router = row.pair.reference.layer
    for other in reversed(list(before)):
        entry = other.pair.reference
        shape: tuple[int, ...] = other.shape or ()
        if (
            other.is_exact
            or entry.step != row.pair.reference.step
            or len(shape) < 2
            or not _is_near_router(entry.layer, router)
        ):
            continue
        tokens, sides = math.prod(shape[:-1]), values_of(other.pair)
        if sides is None or size % tokens or not 1 <= size // tokens < shape[-1] or other.verdict.name == "diverges":
            continue
        each = size // tokens
        scores = [_by_token(side).astype(np.float64) for side in sides]
        ref, cand = (np.argsort(-side, 1, kind="stable")[:, :each] for side in scores)
        flipped = np.asarray((np.sort(ref, 1) != np.sort(cand, 1)).any(1))
        ties = _ties(scores[0], each) | _ties(scores[1], each)
        flipped |= ties[:, -1]
        flips = RouteFlips(router, row.pair.reference.step, (ref, cand), flipped)
        if flipped.any():
            return Verdict("drifts", f"{flips.summary}, so what is sorted by expert is in another order"), flips
        if is_padded or ties.any() or (ref != cand).any():
            return Verdict("drifts", f"{flips.summary}, so what is sorted by expert may be in another order"), flips
    return None


def _ties(scores: Array, each: int) -> Mask:
    """For each token, whether two neighbours in the order of the ``each + 1`` best scores are equal.

    Which of two equal experts is taken, or comes first, depends on how the engine sorts them.
    """
    best = -np.sort(-scores, 1)[:, : each + 1]
    return np.asarray(best[:, 1:] == best[:, :-1])


def _is_near_router(layer: str, router: str) -> bool:
    """Whether a layer is a router, a part of it, or next to it in its mixture."""
    return layer == router or layer.startswith(f"{router}.") or (mixture_of(layer) == mixture_of(router))


def _by_chance(
    flips: RouteFlips, row: Row, before: Iterable[Row], hidden: Mask | None, *, was_right: bool
) -> tuple[Verdict, RouteFlips | None] | None:
    """The verdict on routes that no logits prove: whether no more of them differ than rounding may cause."""
    logits = router_logits(row, before, len(flips.flipped)) if is_router(row.pair) else None
    seen = flips.flipped if hidden is None or hidden.shape != flips.flipped.shape else flips.flipped & ~hidden
    if logits is None or int(seen.sum()) > max(most_flips(*logits), _flips_of_few(*logits, was_right=was_right)):
        return None
    told = f"{int(seen.sum())} of {flips.tokens} tokens took other experts, no more than rounding explains"
    return Verdict("drifts", told), flips._replace(is_proven=not seen.any())


def _flips_of_few(ref: Array, cand: Array, *, was_right: bool) -> int:
    """How many of the few tokens of a decoding batch may flip if the logits are as far apart as few bits make them."""
    apart = float(np.linalg.norm(cand - ref)) / max(float(np.linalg.norm(ref)), np.finfo(np.float64).tiny)
    if not _are_few(len(ref), was_right=was_right) or apart <= _OF_FEW_BITS:
        return 0
    return 2 if was_right else 1


def _are_few(tokens: int, *, was_right: bool) -> bool:
    """Whether tokens are too few to tell by what rule their experts are chosen; one alone, if it was right before."""
    return (1 if was_right else 2) <= tokens <= FEW_DECODED


def router_logits(row: Row, before: Iterable[Row], tokens: int) -> tuple[Array, Array] | None:
    """Both sides of the last logits that a router of the same mixture computed for this number of tokens."""
    mixture = mixture_of(row.pair.reference.layer)
    for other in reversed(list(before)):
        entry = other.pair.reference
        shape: tuple[int, ...] = other.shape or ()
        if other.is_exact or entry.step != row.pair.reference.step or len(shape) < 2:
            continue
        is_beside = mixture_of(entry.layer) == mixture and is_router(other.pair) and not _EXPERTS.search(entry.layer)
        if is_beside and shape[-1] > 1 and math.prod(shape[:-1]) == tokens and (sides := values_of(other.pair)):
            return _by_token(sides[0]).astype(np.float64), _by_token(sides[1]).astype(np.float64)
    return None


def most_flips(ref: Array, cand: Array) -> int:
    """An upper bound on the tokens that rounding may send to other experts; 0 if the two sides hardly differ.

    Two neighbouring scores change places if their errors together exceed the gap between them. Any two neighbours may
    decide, in a choice of groups or of experts. A router may add something to its logits before it chooses, which need
    not be dumped and makes other scores neighbours; so gaps of random size are counted as well.
    """
    gaps = np.diff(np.sort(ref, axis=1), axis=1)
    apart = np.sqrt(2 * np.square(cand - ref).mean(1, keepdims=True))
    with np.errstate(all="ignore"):
        ratios = np.divide(gaps, apart, out=np.full_like(gaps, np.inf), where=apart > 0)
        usual = np.divide(apart, gaps.mean(1, keepdims=True), out=np.zeros_like(apart), where=apart > 0)
    seen = float(2 * _above(ratios).mean(1).sum())
    by_chance = float(2 * _OF_RANDOM_GAPS * np.minimum(usual, 1).sum())
    return max(_at_most(seen, 3), _at_most(by_chance, 2))


def _at_most(expected: float, deviations: int) -> int:
    """An upper bound on the number of events, given the expected number."""
    return 0 if not expected >= _HARDLY else math.ceil(expected + deviations * math.sqrt(expected))


def _above(ratios: Array) -> NDArray[np.float64]:
    """The probability that a normal variable exceeds each number of standard deviations."""
    found = [0.5 * math.erfc(ratio / math.sqrt(2)) for ratio in ratios.reshape(-1).tolist()]
    return np.array(found, np.float64).reshape(ratios.shape)


def _by_logits(
    flips: RouteFlips, of_ref: Array, of_cand: Array, *, was_right: bool
) -> tuple[Verdict, RouteFlips | None]:
    """The verdict on routes that differ, by the logits of each side."""
    (ref, cand), flipped = flips.routes, flips.flipped
    told = f"{int(flipped.sum())} of {flips.tokens} tokens took other experts"
    if not np.isfinite(of_cand[flipped]).all():
        return Verdict("drifts", f"{told}, by odd logits"), flips
    are_best = bool(_are_best(cand, of_cand)[flipped].all())
    if not are_best and _are_few(len(ref), was_right=was_right) and int(flipped.sum()) <= 1:
        why = f"{told}, of too few to tell by what rule they are chosen"
        return Verdict("drifts", why), flips._replace(is_proven=False)
    if not are_best:
        return Verdict("diverges", f"{told}, and not those that the router's own logits rank highest"), None
    gap = float(_gap(ref, cand, of_ref)[flipped].max())
    return Verdict("drifts", f"{flips.summary}: {gap:.1e} of the router's logits decides"), flips


def is_router(pair: Pair) -> bool:
    """Whether a layer is a router, by its name within its block or by its class."""
    sides = pair.reference, pair.candidate
    names = (pair.name, *(side.layer for side in sides))
    classes = ((side.origin and side.origin.module_class) or "" for side in sides)
    return any(_ROUTER.search(_own_name(name)) for name in names) or any(map(_ROUTER_CLASS.search, classes))


def _own_name(layer: str) -> str:
    """A layer's name within its block, without its operation; the rest may be the name of a model called after its
    experts."""
    *around, own = _NUMBERED.split(layer.partition("/")[0])
    return own if around else own.rpartition(".")[2]


def _by_token(side: Array) -> Array:
    return side.reshape(-1, side.shape[-1])


def _are_sets(routes: Ints) -> bool:
    """Whether no token takes an expert twice, as ids and positions might."""
    ordered = np.sort(routes, 1)
    return bool(routes.shape[1] > 1 and (ordered[:, 1:] != ordered[:, :-1]).all())


def _logits(row: Row, before: Iterable[Row], routes: Ints, cand: Ints) -> tuple[Array, Array] | None:
    """Both sides of the nearest earlier logits by which the reference's routes are the best, and which cover the
    candidate's."""
    if min(routes.min(), cand.min()) < 0:
        return None
    for other in reversed(list(before)):
        shape: tuple[int, ...] = other.shape or ()
        if other.is_exact or other.pair.reference.step != row.pair.reference.step or len(shape) < 2:
            continue
        if shape[-1] <= max(routes.shape[1], int(routes.max()), int(cand.max())) or np.prod(shape[:-1]) != len(routes):
            continue
        sides = values_of(other.pair)
        if sides is not None and _are_best(routes, _by_token(sides[0])).mean() >= _PROVEN:
            return _by_token(sides[0]).astype(np.float64), _by_token(sides[1]).astype(np.float64)
    return None


def _are_best(routes: Ints, logits: Array) -> Mask:
    """For each token, whether every expert it took scores at least as high as every other."""
    values = logits.astype(np.float64)
    took = np.zeros(values.shape, bool)
    np.put_along_axis(took, routes, True, 1)
    least = np.where(took, values, np.inf).min(1)
    return np.asarray(least >= np.where(took, -np.inf, values).max(1))


def _gap(ref: Ints, cand: Ints, logits: Array) -> NDArray[np.float64]:
    """How much the reference's choice outscores the candidate's, in the reference's logits, relative to their range."""
    best = [np.take_along_axis(logits, side, 1).min(1) for side in (ref, cand)]
    return np.asarray(np.abs(best[0] - best[1]) / np.maximum(np.ptp(logits, 1), np.finfo(np.float64).tiny))
