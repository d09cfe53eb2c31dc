"""The precision that a tensor was computed in, which may be coarser than the type it is stored in.

A residual stream kept in float32 contains what bfloat16 parts added to it, and a router's float32 logits are computed
from bfloat16 states. So the permitted error follows from the coarsest type on the way: that of the layer's inputs and
parts if they were dumped, else that of the run, which captures record.

If nothing came in, earlier computation explains nothing: a layer whose inputs are equal bit for bit is judged by its
own type and those of its inputs and parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

from tensordiff.align.match import Pair
from tensordiff.compare.judge.parents import parent_of
from tensordiff.compare.judge.verdict import EIGHT_BITS, TF32, coarser
from tensordiff.dump.arithmetic import Tf32, is_convolution
from tensordiff.dump.model import CallKey, Entry
from tensordiff.util.slices import release

Dtypes = tuple[str, str]
_EIGHT_BITS = (EIGHT_BITS, EIGHT_BITS)


class _Types(NamedTuple):
    """The coarsest types that a pair was computed with."""

    way: Dtypes
    """The coarsest types on the whole way to it."""
    own: Dtypes
    """The coarsest types in its own layer: of the pair itself, of the layer's inputs and of its parts."""


_types = lru_cache(maxsize=512)(_Types)
"""The types of a pair; the tuple is shared by all pairs with the same types."""


class Precision:
    """Tracks the coarsest types on the way so far, for the reference and the candidate."""

    def __init__(
        self, run: Dtypes | None = None, in_eight_bits: Collection[str] = (), reference_tf32: Tf32 = "nowhere"
    ) -> None:
        self.run, self.in_eight_bits, self.reference_tf32 = run, in_eight_bits, reference_tf32
        self.inputs: dict[CallKey, _Types] = {}
        self.outputs: dict[CallKey, _Types] = {}
        """Types of calls that already returned something: further outputs of a call, such as a cache, have the same
        parts."""
        self.given: set[CallKey] = set()
        self.parts: defaultdict[tuple[str, int], list[_Types]] = defaultdict(list)
        self.before: Dtypes | None = None

    def release(self) -> None:
        """Forget all pairs, in slices."""
        release(self.inputs, self.outputs, self.given, self.parts)

    def on_the_way(self, pair: Pair, dtypes: Dtypes, *, is_exact: bool, is_given_equal: bool = False) -> Dtypes:
        """The coarsest types that explain a pair's error; remembered for tensors that are computed from it.

        ``is_given_equal`` says that the inputs are equal bit for bit, so that only the pair's own layer explains an
        error.
        """
        entry = pair.reference
        if is_exact:
            if entry.is_input:
                self.given.add(entry.call_key)
            return dtypes
        if self.reference_tf32 != "nowhere":
            dtypes = self._as_computed(entry, dtypes)
        call = entry.call_key
        if entry.is_input:
            found = _Types(_coarsest(dtypes, self.before), dtypes)
            self.inputs[call] = _coarser_of(found, self.inputs.get(call, found))
            self.given.add(call)
        else:
            own = _coarsest(dtypes, _EIGHT_BITS) if entry.layer in self.in_eight_bits else dtypes
            found = _types(own, own)
            before = self.inputs.get(call), self.outputs.get(call)
            for other in (*before, *self.parts.pop((entry.layer, entry.step), ())):
                if other is not None:
                    found = _coarser_of(found, other)
            self.outputs[call] = found
            if call not in self.given and self.run is not None:
                found = _coarser_of(found, _Types(self.run, self.run))
            self.parts[parent_of(entry.layer), entry.step].append(found)
            self.before = _coarsest(found.way, self.before)
        return found.own if is_given_equal else found.way

    def _as_computed(self, entry: Entry, dtypes: Dtypes) -> Dtypes:
        """The types, with TF32 in place of the reference's float32 if it computed in TF32.

        A candidate's claim is not believed: it could loosen its own verdict, and values do not show TF32.
        """
        if dtypes[0] != "float32":
            return dtypes
        is_conv_layer = entry.origin is not None and is_convolution(entry.origin.module_class)
        if self.reference_tf32 == "convolutions" and (entry.is_input or not is_conv_layer):
            return dtypes
        return TF32, dtypes[1]


def _coarser_of(one: _Types, other: _Types) -> _Types:
    if other == one:
        return one
    return _Types(_coarsest(one.way, other.way), _coarsest(one.own, other.own))


def _coarsest(one: Dtypes, other: Dtypes | None) -> Dtypes:
    return one if other is None or other == one else (coarser(one[0], other[0]), coarser(one[1], other[1]))
