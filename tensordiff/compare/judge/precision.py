"""The precision that a tensor was computed in, which may be coarser than the type it is stored in.

A residual stream kept in float32 holds what bfloat16 parts added to it, and a router's float32 logits are made of
bfloat16 states. What a tensor may be off by is decided by the coarsest type on its way: that of its layer's inputs and
parts where they were dumped, else that of the run, which captures note.

What ran before explains nothing where nothing came in: a layer that was given the very same bits is held to its own
type, and those of its inputs and parts.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from tensordiff.align.match import Pair
from tensordiff.compare.judge.upstream_error import parent_of
from tensordiff.compare.judge.verdict import coarser
from tensordiff.dump.model import CallKey

Dtypes = tuple[str, str]


class _Types(NamedTuple):
    """The coarsest types that a pair was computed with."""

    way: Dtypes
    """On the whole way to it."""
    own: Dtypes
    """In its own layer: its own, and those of what the layer was given and of its parts."""


class Precision:
    """The coarsest types on the way so far, of the reference and of the candidate."""

    def __init__(self, run: Dtypes | None = None) -> None:
        self.run = run
        self.inputs: dict[CallKey, _Types] = {}
        self.given: set[CallKey] = set()
        self.parts: defaultdict[tuple[str, int], list[_Types]] = defaultdict(list)
        self.before: Dtypes | None = None

    def on_the_way(self, pair: Pair, dtypes: Dtypes, *, is_exact: bool, is_given_equal: bool = False) -> Dtypes:
        """The coarsest types that explain a pair's error; remembered for what is computed from it.

        ``is_given_equal`` says that what came in is equal, bit for bit: then only its own layer explains anything.
        """
        entry = pair.reference
        if is_exact:
            if entry.is_input:
                self.given.add(entry.call_key)
            return dtypes
        if entry.is_input:
            found = _Types(_coarsest(dtypes, self.before), dtypes)
            self.inputs[entry.call_key] = _coarser_of(found, self.inputs.get(entry.call_key))
            self.given.add(entry.call_key)
        else:
            found = _Types(dtypes, dtypes)
            for other in (self.inputs.get(entry.call_key), *self.parts.pop((entry.layer, entry.step), ())):
                found = _coarser_of(found, other)
            if entry.call_key not in self.given and self.run is not None:
                found = _coarser_of(found, _Types(self.run, self.run))
            self.parts[parent_of(entry.layer), entry.step].append(found)
            self.before = _coarsest(found.way, self.before)
        return found.own if is_given_equal else found.way


def _coarser_of(one: _Types, other: _Types | None) -> _Types:
    return one if other is None else _Types(_coarsest(one.way, other.way), _coarsest(one.own, other.own))


def _coarsest(one: Dtypes, other: Dtypes | None) -> Dtypes:
    return one if other is None else (coarser(one[0], other[0]), coarser(one[1], other[1]))
