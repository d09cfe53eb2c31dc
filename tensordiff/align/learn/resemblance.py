"""Resemblance: which tensors are probably the same beyond the first error, where nothing is equal any more.

Two tensors that an error has made different still point in a similar direction, and the order of computation stays. So
the classes of both sides are aligned like two sequences: in the order they are computed, equal ones as anchors, similar
ones between them. A pair counts if nothing else that could stand there resembles either of the two nearly as much.

Without an order, each must resemble the other far more than anything else does. The same is required of tensors that
are left and match only in another layout, such as rope's interleaved pairs against its halves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby, permutations

import numpy as np
from numpy.typing import NDArray

from tensordiff.align.by_value import Fingerprint, common_tolerance
from tensordiff.align.expression import evaluate_view
from tensordiff.align.learn.evidence import Evidence, Side, ValueClass, likely_view
from tensordiff.align.learn.possible_views import possible_views
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Entry

_SAMPLE = 2048
_ANCHOR = 2.0
_LEAST = 0.4
"""The cosine from which two tensors may be the same one, changed by an error."""
_CLEAR_IN_ORDER, _CLEAR = 0.85, 0.6
"""How much closer than the second a tensor must be: its distance, as a share of the second's."""
_RIVAL = 0.75
"""How alike the candidate's second may be, as a share of the first. A norm before its weight that no error has reached
is closer to the reference's norm than a norm that an error has reached."""
_ROWS, _SAME_SIZE = 8, 1e-3
"""How many tokens are looked at, and by how much their mean squares may differ in a norm without a weight."""
_ACROSS = 0.97
"""How alike an input of one side and an output of the other must be, since a norm's input resembles its result, too. If
an error has left less of later tensors, this share of what is left."""
_LEAST_ACROSS = 0.6
"""The lower limit of that, however little is left."""
_MOST_CELLS = 4_000_000
_VIEW_SHARE = 0.95
"""The share of the likeness of two tensors that they must have in the layout in which they are compared."""
_LEAST_LAID_OUT, _MOST_LAID_OUT = 256, 1 << 24
"""From how many values on a layout can be distinguished from chance, and how many values are permuted in total."""
_MOST_TIES = 3
_AROUND, _OUTLIER = 5, 0.88
"""How many later pairs show how much likeness is left, and which share of theirs a pair must have."""
Likely = tuple[ValueClass, ValueClass, float]
Matrix = NDArray[np.float64]


def resembling(
    evidence: Evidence, foreign: Collection[int] = frozenset(), agrees_after: Callable[[Entry], bool] = lambda _: False
) -> list[Likely]:
    """Classes of the reference and of the candidate that are probably the same, and how alike they are.

    ``foreign`` are entries of the candidate, by their ids, that the reference does not have. ``agrees_after`` says
    whether what is computed from an entry of the reference is right.
    """
    out = {id(one) for one in evidence.classes if not one.is_shared and
           any(id(item.entry) in foreign for item in one.members[1])}  # fmt: skip
    found, doubtful = _in_order(evidence, out)
    if found and _have_opposite_directions(*_one_sided(evidence)):
        across, more = _in_order(evidence, out | doubtful, found)
        found, doubtful = found + across, doubtful | more
    taken = {id(one) for pair in found for one in pair[:2]} | doubtful | out
    ours, theirs = ([one for one in some if id(one) not in taken] for some in _one_sided(evidence))
    for size in {one.head.size for one in ours} & {one.head.size for one in theirs}:
        mine, others = ([one for one in some if one.head.size == size] for some in (ours, theirs))
        if len(mine) * len(others) <= _MOST_CELLS:
            found += _mutually_alike(mine, others, _likenesses(mine, others))
    taken |= {id(one) for pair in found for one in pair[:2]}
    least = _OUTLIER * float(np.median([likeness for _, _, likeness in found])) if found else _LEAST
    laid_out = _in_other_layouts(*([one for one in some if id(one) not in taken] for some in (ours, theirs)))
    return found + [
        (mine, other, likeness)
        for mine, other, likeness in laid_out
        if likeness >= least and not _keeps_row_sizes(mine, other, likeness) and not agrees_after(mine.head.entry)
    ]


def alike(reference: Fingerprint, candidate: Fingerprint) -> float:
    """How alike two tensors are, up to 1; 0 if their sizes differ."""
    if reference.size != candidate.size:
        return 0.0
    cosine = np.array([[_direction(reference) @ _direction(candidate)]])
    return float(_likeness(cosine, np.array([reference.rms]), np.array([candidate.rms]))[0, 0])


def _one_sided(evidence: Evidence) -> tuple[list[ValueClass], list[ValueClass]]:
    """The classes that only one side has."""
    alone = [one for one in evidence.classes if not one.is_weak and not one.is_shared]
    return [one for one in alone if one.members[0]], [one for one in alone if one.members[1]]


def _have_opposite_directions(ours: Sequence[ValueClass], theirs: Sequence[ValueClass]) -> bool:
    """Whether one side has a tensor only as an input and the other one of its size only as an output."""
    seen = [{(one.head.size, _directions(one, side)) for one in some} for side, some in enumerate((ours, theirs))]
    return any((size, 3 - ways) in seen[1] for size, ways in seen[0] if ways != 3)


# --- in order --------------------------------------------------------------------------------------------


def _in_order(evidence: Evidence, out: Collection[int], known: Sequence[Likely] = ()) -> tuple[list[Likely], set[int]]:
    """The classes that fit in order, and the ids of those that would if no other fitted as well.

    With ``known`` pairs, also what is left between them: an input of one side may then be an output of the other.
    """
    sides = evidence.reference, evidence.candidate
    ours, theirs = (_sequence(evidence, side, k, out) for k, side in enumerate(sides))
    if not evidence.is_ordered or not ours or not theirs or len(ours) * len(theirs) > _MOST_CELLS:
        return [], set()
    scores = _scores([one for _, one in ours], [one for _, one in theirs], known)
    scores, theirs = _with_ties_in_order(scores, theirs)
    path = _best_path(np.where(scores >= _LEAST, scores, 0.0))
    likenesses = {(id(a), id(b)): likeness for a, b, likeness in known}
    fitting = [(ours[i][1], theirs[j][1]) for i, j in path]
    path_scores = [
        likenesses.get((id(a), id(b)), min(float(scores[pair]), 1.0))
        for pair, (a, b) in zip(path, fitting, strict=True)
    ]
    ends = [(-1, -1), *path, (len(ours), len(theirs))]
    pairs: list[Likely] = []
    doubtful: set[int] = set()
    for k, ((i, j), (mine, other)) in enumerate(zip(path, fitting, strict=True)):
        if mine is other or (id(mine), id(other)) in likenesses:
            continue
        rows, columns = slice(ends[k][0] + 1, ends[k + 2][0]), slice(ends[k][1] + 1, ends[k + 2][1])
        rival = max([0.0, *np.delete(scores[i, columns], j - columns.start)])
        second = max([rival, *np.delete(scores[rows, j], i - rows.start)])
        later = float(np.median(path_scores[k + 1 : k + 1 + _AROUND] or path_scores[k : k + 1]))
        least = min(_ACROSS, max(_LEAST_ACROSS, _ACROSS * later)) if known else _OUTLIER * later
        is_clear = 1.0 - scores[i, j] <= _CLEAR_IN_ORDER * (1.0 - second) and rival <= _RIVAL * scores[i, j]
        if is_clear and path_scores[k] >= least:
            pairs.append((mine, other, float(scores[i, j])))
        else:
            doubtful |= {id(one) for _, one in (*ours[rows], *theirs[columns])}
    return pairs, doubtful


def _sequence(evidence: Evidence, side: Side, which: int, out: Collection[int]) -> list[tuple[int, ValueClass]]:
    """The classes of one side in the order they are computed, each with its time.

    All outputs of a call have the same time.
    """
    ends = {(entry.layer, entry.call): at for at, entry in enumerate(side.all_entries) if not entry.is_input}

    def computed_at(one: ValueClass) -> int:
        entries = [item.entry for item in one.members[which]]
        outputs = [ends[entry.layer, entry.call] for entry in entries if not entry.is_input]
        return min(outputs or [side.position[id(entry)] for entry in entries])

    wanted = (one for one in evidence.classes if not one.is_weak and one.members[which] and id(one) not in out)
    return sorted(((computed_at(one), one) for one in wanted), key=lambda item: item[0])


def _with_ties_in_order(
    scores: Matrix, theirs: list[tuple[int, ValueClass]]
) -> tuple[Matrix, list[tuple[int, ValueClass]]]:
    """The outputs of one call of the candidate, in the order that fits the reference's sequence best."""
    order: list[int] = []
    for _, group in groupby(range(len(theirs)), key=lambda k: theirs[k][0]):
        columns = list(group)
        if 1 < len(columns) <= _MOST_TIES:
            columns = list(max(permutations(columns), key=lambda some: _sum_in_order(scores, tuple(some))))
        order += columns
    return scores[:, order], [theirs[k] for k in order]


def _sum_in_order(scores: Matrix, columns: Sequence[int]) -> float:
    """The largest sum of one score per column, each in a later row than the one before."""
    best = np.zeros(len(scores) + 1)
    for column in columns:
        best = np.maximum.accumulate(np.concatenate([[0.0], best[:-1] + scores[:, column]]))
    return float(best[-1])


def _scores(ours: Sequence[ValueClass], theirs: Sequence[ValueClass], known: Sequence[Likely]) -> Matrix:
    """How well each class of one side fits each of the other; shared or known classes fit only themselves."""
    same = {id(one): one for one in ours if one.is_shared} | {id(a): b for a, b, _ in known}
    taken = {*same, *map(id, same.values())}
    scores = np.zeros((len(ours), len(theirs)))
    rows, columns = (
        {size: [k for k, one in enumerate(some) if one.head.size == size and id(one) not in taken] for size in
         {one.head.size for one in some}}
        for some in (ours, theirs)
    )  # fmt: skip
    for size, own in rows.items():
        others = columns.get(size, [])
        if own and others:
            mine, other = [ours[k] for k in own], [theirs[k] for k in others]
            ways = [np.array([_directions(one, side) for one in some]) for side, some in enumerate((mine, other))]
            made = _likenesses(mine, other)
            is_possible = (ways[0][:, None] & ways[1][None, :] > 0) | (made >= (_LEAST if known else _ACROSS))
            scores[np.ix_(own, others)] = np.where(is_possible, made, 0.0)
    at = {id(one): k for k, one in enumerate(theirs)}
    for k, one in enumerate(ours):
        if id(one) in same:
            scores[k, at[id(same[id(one)])]] = _ANCHOR
    return scores


def _best_path(scores: Matrix) -> list[tuple[int, int]]:
    """The pairs, in the order of both sequences, with the largest sum of scores."""
    best = np.zeros((scores.shape[0] + 1, scores.shape[1] + 1))
    for i, row in enumerate(scores):
        np.maximum.accumulate(np.maximum(best[i, 1:], best[i, :-1] + row), out=best[i + 1, 1:])
    path = []
    i, j = scores.shape
    while i and j:
        if best[i, j] == best[i, j - 1]:
            j -= 1
        elif best[i, j] == best[i - 1, j]:
            i -= 1
        else:
            i, j = i - 1, j - 1
            path.append((i, j))
    return path[::-1]


# --- without an order ------------------------------------------------------------------------------------


def _mutually_alike(ours: Sequence[ValueClass], theirs: Sequence[ValueClass], scores: Matrix) -> Iterator[Likely]:
    """Classes each of which is the other's nearest by far."""
    ways = [np.array([_directions(one, side) for one in some]) for side, some in enumerate((ours, theirs))]
    distance = np.where((ways[0][:, None] & ways[1][None, :]) > 0, 1.0 - scores, 1.0)
    for k, row in enumerate(distance):
        best = int(row.argmin())
        column = distance[:, best]
        if row[best] > 1.0 - _LEAST or int(column.argmin()) != k:
            continue
        others = np.concatenate([np.delete(row, best), np.delete(column, k), [1.0]])
        if row[best] <= _CLEAR * float(others.min()):
            yield ours[k], theirs[best], 1.0 - float(row[best])


def _in_other_layouts(ours: Sequence[ValueClass], theirs: Sequence[ValueClass]) -> Iterator[Likely]:
    """Classes that are each other's nearest by far once the reference's is permuted, the smallest first."""
    left = _MOST_LAID_OUT
    for size in sorted({one.head.size for one in ours} & {one.head.size for one in theirs}):
        mine, others = ([one for one in some if one.head.size == size] for some in (ours, theirs))
        shapes = {one.head.entry.spec.shape for one in others}
        views = [[(k, view) for view in possible_views(one.head.entry.spec.shape, shape) if view]
                 for shape in shapes for k, one in enumerate(mine)]  # fmt: skip
        tried = list(dict.fromkeys(one for some in views for one in some))
        left -= size * len(tried)
        if left < 0:
            return
        if size < _LEAST_LAID_OUT or not tried or len(tried) * len(others) > _MOST_CELLS:
            continue
        scores = _likenesses(mine, others)
        laid_out = np.stack([_direction_of(evaluate_view(view, mine[k].head.entry.read())) for k, view in tried])
        cosines = laid_out @ np.stack([_direction(one.head) for one in others]).T
        sizes = [np.array([one.head.rms for one in some]) for some in ([mine[k] for k, _ in tried], others)]
        for (k, _), row in zip(tried, _likeness(cosines, *sizes), strict=True):
            scores[k] = np.maximum(scores[k], row)
        yield from _mutually_alike(mine, others, scores)


def _likenesses(ours: Sequence[ValueClass], theirs: Sequence[ValueClass]) -> Matrix:
    a, b = (np.stack([_direction(one.head) for one in some]) for some in (ours, theirs))
    sizes = [np.array([one.head.rms for one in some]) for some in (ours, theirs)]
    with np.errstate(all="ignore"):
        made = _likeness(a @ b.T, *sizes)
    normed = [np.array([is_normalized(one.members[k][0]) for one in some]) for k, some in enumerate((ours, theirs))]
    return np.where(~normed[0][:, None] & normed[1][None, :], 0.0, made)


def is_normalized(item: Fingerprint) -> bool:
    """Whether all tokens have the same length, as after a norm without a weight; no error makes other tensors so."""
    rows = item.entry.read().reshape(-1, item.width)[:_ROWS].astype(np.float64)
    if len(rows) < 2 or item.width < 2:
        return False
    squares = (rows**2).mean(1)
    return bool(np.ptp(squares) <= _SAME_SIZE * squares.max())


def _likeness(cosines: Matrix, reference: Matrix, candidate: Matrix) -> Matrix:
    """By direction, and by how much of the reference is left in the candidate: all of it if an error was added.

    A norm's input and its output point the same way, and differ in that.
    """
    with np.errstate(all="ignore"):
        left = cosines * candidate[None, :] / reference[:, None]
        made = cosines * np.sqrt(np.clip(np.minimum(left, 1.0 / left), 0.0, 1.0))
    return np.asarray(np.nan_to_num(made, nan=-1.0), np.float64)


def _directions(one: ValueClass, side: int) -> int:
    """Whether a tensor is seen as an input, as an output, or as both, as bits."""
    return sum({1 if item.entry.is_input else 2 for item in one.members[side]})


def _keeps_row_sizes(ours: ValueClass, theirs: ValueClass, likeness: float) -> bool:
    """Whether each head of each token has the same length on both sides, as keys have before and after rope.

    No error leaves all lengths as they are: these are different tensors.
    """
    view = likely_view(ours.head, theirs.members[1][0], _VIEW_SHARE * likeness)
    if view is None:
        return False
    made, given = evaluate_view(view, ours.head.entry.read()), theirs.head.entry.read()
    width = min(made.shape[-1], given.shape[-1])
    a, b = (np.linalg.norm(one.reshape(-1, width).astype(np.float64), axis=1) for one in (made, given))
    return bool(np.linalg.norm(a - b) <= max(common_tolerance(ours.head, theirs.head), 1e-6) * np.linalg.norm(a))


def _direction(item: Fingerprint) -> Matrix:
    return _direction_of(item.entry.read())


def _direction_of(array: Array) -> Matrix:
    flat = array.reshape(-1)
    some = flat[:: max(1, flat.size // _SAMPLE)][:_SAMPLE].astype(np.float64)
    some = some - some.mean()
    size = float(np.linalg.norm(some))
    return np.asarray(some / size if size else some, np.float64)
