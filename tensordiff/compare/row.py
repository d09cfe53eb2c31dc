"""A row: everything known about one measured pair. ``comparer`` creates rows; all later code reads them.

``read_pair`` and ``values_of`` return the two tensors of a pair in one shape.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from tensordiff.align.match import Pair
from tensordiff.align.views import Views, broadcast, no_views, reconcile
from tensordiff.compare.judge.verdict import Verdict
from tensordiff.compare.measure.diff import Diff
from tensordiff.dump import Entry
from tensordiff.dump.dtypes import Array, name_of
from tensordiff.dump.model import Spec
from tensordiff.errors import AlignError, DumpError
from tensordiff.util.mappings import count_losses, raise_losses


class Row(NamedTuple):
    """One measured pair."""

    pair: Pair
    dtypes: tuple[str, str] | None
    """None if a side could not be read."""
    shape: tuple[int, ...] | None
    """The common shape after the views; None if there is none."""
    views: tuple[str, ...]
    diff: Diff | None
    injected: Diff | None
    golden_ratio: float | None
    verdict: Verdict
    amplification: float | None = None
    """rel_l2 divided by that of the layer's input; None if the input's error is unknown or zero."""
    downcast: float | None = None
    """rel_l2 against the reference cast to the candidate's coarser type; measured only for pairs that diverge."""
    ignored_golden: float | None = None
    """The reference's error against a golden run that was ignored because it is not a run of the same model."""
    after_flips: bool = False
    """Whether tokens took other experts at near-ties before this pair, which changes those tokens from there on."""
    after_proven_flips: bool = False
    """Whether they did, and the logits prove that all of these were near-ties."""
    computed_in: tuple[str, str] | None = None
    """The coarsest types on the way to this tensor, which may be coarser than the stored types."""
    worst_token: float | None = None
    """The error of the worst token, if the norm over all tokens hides that it is wrong."""
    set_aside: Verdict | None = None
    """The verdict on all tokens, if some at one end of rows may be padding; it is restored if something sees them."""
    plain_verdict: Verdict | None = None
    """The verdict without the injected run, if that run changed it."""
    without_limits: Verdict | None = None
    """The automatic verdict, if the user's own tolerance decided; it tells culprits from victims."""
    is_undecided: bool = False
    """Whether some tokens are wrong, and no dumped tensor tells a bug from tokens that took other experts."""

    @property
    def is_input(self) -> bool:
        """Whether this pair is an input of a layer."""
        return self.pair.reference.is_input

    @property
    def is_gradient(self) -> bool:
        """Whether this pair is a gradient."""
        return self.pair.reference.is_gradient

    @property
    def is_in_part(self) -> bool:
        """Whether a view selected only a part of the tensor: one token, or a slice."""
        return any(_LEAVES_OUT.match(view) for view in self.views)

    @property
    def is_exact(self) -> bool:
        """Whether both sides hold integers or booleans, which are never rounded: ids, positions, masks."""
        return self.dtypes is not None and _are_exact(self.dtypes)


_LEAVES_OUT = re.compile(r"(candidate )?(last_token|token|slice)\b")


@lru_cache(maxsize=512)
def _are_exact(dtypes: tuple[str, str]) -> bool:
    return all(name.startswith(("int", "uint", "bool")) for name in dtypes)


def unknown_row(pair: Pair, why: str, dtypes: tuple[str, str] | None = None) -> Row:
    """The row of a pair that could not be measured."""
    return Row(
        pair=pair, dtypes=dtypes, shape=None, views=(), diff=None, injected=None, golden_ratio=None,
        verdict=Verdict("unknown", why),
    )  # fmt: skip


def readable_spec(entry: Entry) -> Spec | None:
    """The shape and type of an entry; None if it cannot be read, which the entry's own row reports."""
    try:
        return entry.spec
    except (DumpError, AlignError):
        return None


class PairValues(NamedTuple):
    """Both tensors of a pair, mapped and in one shape."""

    pair: Pair
    views: Views
    ref: Array
    cand: Array


def read_pair(pair: Pair, read: Callable[[Entry], Array] = Entry.read) -> PairValues | Row:
    """Map both tensors of a pair; a row with verdict ``unknown`` if they cannot be read or have no common shape."""
    before = count_losses()
    try:
        ref, cand = read(pair.reference), read(pair.candidate)
    except (DumpError, AlignError) as error:
        return unknown_row(pair, str(error))
    shape = ref.shape
    if shape == cand.shape:
        return tuple.__new__(PairValues, (pair, no_views(shape), ref, cand))  # in half the time of ``PairValues(…)``
    views = reconcile(shape, cand.shape)
    if views is None and (len(shape) > 2 or ref.dtype.kind in "iub"):  # rows of a matrix may be the tokens of an expert
        views = broadcast(shape, cand.shape)
    if views is None:
        why = f"shapes {list(ref.shape)} and {list(cand.shape)} differ; {_way_out(ref.shape, cand.shape)}"
        return unknown_row(pair, why, (name_of(ref.dtype), name_of(cand.dtype)))
    values = PairValues(pair, views, views.apply(ref), views.apply(cand))
    try:
        raise_losses(before, pair.reference.name)  # a view may have copied data that was cut short
    except DumpError as error:
        return unknown_row(pair, str(error))
    return values


def _way_out(ref: tuple[int, ...], cand: tuple[int, ...]) -> str:
    """What to try if two shapes cannot be reconciled: a view that turns one into the other, if there is one."""
    if math.prod(ref) != math.prod(cand):
        return "were both given the same input? If so, a [[view]] rule takes a part, such as candidate = 'last_token'"
    view = "reshape " + " ".join(map(str, ref))
    for i, j in itertools.combinations(range(len(cand)), 2):
        swapped = list(cand)
        swapped[i], swapped[j] = swapped[j], swapped[i]
        if tuple(swapped) == ref:
            view = f"transpose {i} {j}"
            break
    return f"add a [[view]] rule, e.g. candidate = '{view}'"


def values_of(pair: Pair) -> tuple[Array, Array] | None:
    """Both tensors of a pair in one shape; None if they cannot be read or have no common shape."""
    values = read_pair(pair)
    return None if isinstance(values, Row) else (values.ref, values.cand)
