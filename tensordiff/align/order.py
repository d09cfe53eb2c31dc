"""Execution order: the order of the pairs, and whether both sides ran in the same one.

Some dumps have no order, such as a folder of MAX files. The pairs then take the other side's. If neither side has one,
it is inferred from the values: an output that is another layer's input was computed before it, and a module ends after
its parts. If values do not decide (a residual is added between two layers), the usual order of a transformer's parts
does, then the numbers in names.
"""

from __future__ import annotations

import heapq
import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple, TypeVar

from tensordiff.align.index import ComputedTensor, parts_of
from tensordiff.dump.model import CallKey, Dump, Entry
from tensordiff.dump.names import natural_key
from tensordiff.errors import DumpError
from tensordiff.util.slices import release, sorted_positions

Order = Literal["same", "differs", "unknown"]
ItemT = TypeVar("ItemT")
PairT = TypeVar("PairT", bound=tuple[Entry, Entry, str])


class OrderDifference(NamedTuple):
    """A position at which the two sides run different layers."""

    position: int
    reference: str
    candidate: str


def in_execution_order(reference: Dump, candidate: Dump, pairs: Sequence[PairT]) -> tuple[list[PairT], str]:
    """Pairs in execution order, and what the order was taken from."""
    if reference.ordered and _are_in_order((pair[0] for pair in pairs), reference.entries):
        return list(pairs), "reference"
    if candidate.ordered and not reference.ordered:
        positions = _positions(candidate.entries)
        return _sorted(pairs, [_position(positions, pair[1]) for pair in pairs]), "candidate"
    entries, source = (reference.entries, "reference") if reference.ordered else _inferred(reference)
    positions = _positions(entries)
    in_order = _sorted(pairs, [_position(positions, pair[0]) for pair in pairs])
    if candidate.ordered:
        in_order = _with_ties_in_order(in_order, positions, candidate)
    release(positions)
    return in_order, source


def _are_in_order(some: Iterable[Entry], entries: Iterable[Entry]) -> bool:
    """Whether some entries, none of them computed, occur in this order among all.

    This is the usual case, and checking it needs no dict of a million positions.
    """
    left = iter(entries)
    return all(any(entry is one for entry in left) for one in some)


def _sorted(items: Sequence[ItemT], places: list[int]) -> list[ItemT]:
    """Items sorted by their places, equal ones in their own order."""
    return [items[at] for at in sorted_positions(places)]


def _with_ties_in_order(pairs: list[PairT], positions: dict[int, int], candidate: Dump) -> list[PairT]:
    """Put pairs that end with the same entry of the reference into the candidate's order."""
    ends = [_position(positions, pair[0]) for pair in pairs]
    if all(a < b for a, b in pairwise(ends)):
        return pairs
    theirs = _positions(candidate.entries)
    keyed = sorted(zip(ends, pairs, strict=True), key=lambda item: (item[0], _position(theirs, item[1][1])))
    return [pair for _, pair in keyed]


def _inferred(dump: Dump) -> tuple[Sequence[Entry], str]:
    entries, by_values = infer_order(dump)
    return entries, "values" if by_values else "names"


def _positions(entries: Sequence[Entry]) -> dict[int, int]:
    return {id(entry): k for k, entry in enumerate(entries)}


def _position(positions: dict[int, int], entry: Entry) -> int:
    """The position of an entry; for an expression, that of its last part."""
    position = positions.get(id(entry))
    return position if position is not None else max(positions[id(part)] for part in parts_of(entry))


def _without_partial_views(pairs: Sequence[tuple[Entry, Entry, str]]) -> list[tuple[Entry, Entry]]:
    """Pairs without views of entries that are also paired whole, such as the last token's logits.

    These may run at any time.
    """
    whole = {id(r) for r, _, _ in pairs}
    return [(r, c) for r, c, _ in pairs if not _is_view_of(r, whole)]


def _is_view_of(entry: Entry, whole: Collection[int]) -> bool:
    if not isinstance(entry.stored, ComputedTensor):  # nearly all
        return False
    parts = list(parts_of(entry))
    return len(parts) == 1 and parts[0] is not entry and id(parts[0]) in whole


def compare_order(reference: Dump, candidate: Dump, pairs: Sequence[tuple[Entry, Entry, str]]) -> Order:
    """Whether the paired entries ran in the same order on both sides."""
    if not (reference.ordered and candidate.ordered):
        return "unknown"
    ours = (one for one, _, _ in pairs if not one.is_input)
    theirs = (other for one, other, _ in pairs if not one.is_input)
    if _are_in_order(ours, reference.entries) and _are_in_order(theirs, candidate.entries):
        return "same"
    return "differs" if order_differences(reference, candidate, pairs) else "same"


def order_differences(
    reference: Dump, candidate: Dump, pairs: Sequence[tuple[Entry, Entry, str]]
) -> list[OrderDifference]:
    """The positions at which the two sequences of paired outputs differ."""
    outputs = [(r, c) for r, c in _without_partial_views(pairs) if not r.is_input]
    ours, theirs = _positions(reference.entries), _positions(candidate.entries)
    places = [_position(ours, pair[0]) for pair in outputs], [_position(theirs, pair[1]) for pair in outputs]
    release(ours, theirs)
    if all(a < b for side in places for a, b in pairwise(side)):
        return []
    by_reference, by_candidate = (_sorted(outputs, side) for side in places)
    return [
        OrderDifference(k, a[0].name, b[0].name)
        for k, (a, b) in enumerate(zip(by_reference, by_candidate, strict=True))
        if a[0] is not b[0]
    ]


SortKey = tuple[int, list[int], int]
"""Step, the rank of each component of the layer's name, call."""
_DIGEST_BYTES = 1 << 12  # bytes at either end of a tensor that go into its digest
_MAX_ENTRIES = 20_000  # larger dumps are ordered by names alone
_MIN_ELEMENTS = 16


def infer_order(dump: Dump) -> tuple[list[Entry], bool]:
    """A dump's entries in their likely execution order, and whether values were used to find it."""
    own_calls = [entry.call_key for entry in dump.entries]
    calls = dict.fromkeys(own_calls)
    edges = set(_edges_from_values(dump)) if len(dump) <= _MAX_ENTRIES else set()
    within_modules = set(_edges_from_names(calls))
    keys = _sort_keys(calls)
    order = (
        _topological_order(keys, edges | within_modules)
        if edges or within_modules
        else sorted(calls, key=keys.__getitem__)
    )
    position = {key: k for k, key in enumerate(order)}
    places = [(position[key], _port_key(e.port)) for key, e in zip(own_calls, dump.entries, strict=True)]
    return [dump.entries[at] for at in sorted(range(len(places)), key=places.__getitem__)], bool(edges)


@lru_cache(maxsize=1 << 12)
def _port_key(port: str) -> tuple[object, ...]:
    """Sort key of a port: inputs of a layer come before its outputs."""
    return not port.startswith("input"), natural_key(port)


def _edges_from_values(dump: Dump) -> Iterator[tuple[CallKey, CallKey]]:
    """Calls whose output is the input of another call, as (before, after)."""
    if not dump.has_inputs:
        return
    producers: dict[object, list[Entry]] = defaultdict(list)
    for entry in dump.entries:
        if not entry.is_input and (digest := _digest(entry)) is not None:
            producers[digest].append(entry)
    inside = _calls_inside(dump)
    for entry in dump.entries:
        for producer in producers.get(_digest(entry), []) if entry.is_input else []:
            if not _is_inside(entry.layer, producer.layer) and not _is_inside(producer.layer, entry.layer):
                # Layers inside a module cannot run before the module gets its input.
                yield from ((producer.call_key, consumer) for consumer in inside[entry.call_key])


def _calls_inside(dump: Dump) -> dict[CallKey, list[CallKey]]:
    """For each call of a module, itself and all calls within it."""
    inside: dict[CallKey, list[CallKey]] = defaultdict(list)
    for layer, step, call in {entry.call_key for entry in dump.entries}:
        parts = layer.split(".")
        for length in range(1, len(parts) + 1):
            inside[CallKey(".".join(parts[:length]), step, call)].append(CallKey(layer, step, call))
    return inside


def _edges_from_names(calls: Mapping[CallKey, object]) -> Iterator[tuple[CallKey, CallKey]]:
    """A module ends after each of its parts: edges as (part, module)."""

    @cache
    def around(parent: str, step: int, call: int) -> CallKey | None:
        """The module of that name, or else the next outer one. Cached, since each of its parts asks."""
        for key in (CallKey(parent, step, call), CallKey(parent, step, 1)):
            if key in calls:
                return key
        return around(parent.rpartition(".")[0], step, call) if "." in parent else None

    for key in calls:
        layer, step, call = key
        parent, dot, _ = layer.rpartition(".")
        if dot and (module := around(parent, step, call)) is not None:
            yield key, module


def _is_inside(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(outer + ".")


def _digest(entry: Entry) -> object:
    """A digest by which equal tensors are found; None for tiny, zero or unreadable ones."""
    try:
        array = entry.read()
    except DumpError:
        return None  # measuring reports it
    if array.size < _MIN_ELEMENTS or not array.flags.c_contiguous:
        return None
    # Only both ends are read: opening must not read a whole dump.
    flat, count = array.reshape(-1), max(1, _DIGEST_BYTES // array.itemsize)
    ends = (flat[:count].tobytes(), flat[-count:].tobytes())
    if not any(map(any, ends)):
        return None
    return entry.step, array.size, array.dtype.str, zlib.crc32(ends[1], zlib.crc32(ends[0]))


def _topological_order(keys: Mapping[CallKey, SortKey], edges: set[tuple[CallKey, CallKey]]) -> list[CallKey]:
    """Calls in an order that all edges allow; by their sort keys if edges leave a choice."""
    after: dict[CallKey, list[CallKey]] = defaultdict(list)
    waiting = dict.fromkeys(keys, 0)
    for first, then in edges:
        after[first].append(then)
        waiting[then] += 1
    ready = [(keys[key], key) for key, count in waiting.items() if not count]
    heapq.heapify(ready)
    order: list[CallKey] = []
    while ready:
        _, key = heapq.heappop(ready)
        order.append(key)
        for then in after[key]:
            waiting[then] -= 1
            if not waiting[then]:
                heapq.heappush(ready, (keys[then], then))
    return order + sorted(keys.keys() - set(order), key=keys.__getitem__)  # what is left has circular edges


# Parts of a transformer in the order they run; the first pattern that matches a component of a name counts.
_USUAL_ORDER = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"embed|^w[tp]e$|rotary|^hook_resid_pre$",
        r"input_layernorm|^ln_?1$|norm1|attention_norm",
        r"^[qkv]_proj|qkv|^query|^key|^value|^self$|gate|^up_proj|intermediate|^fc1$|^w[13]$|^hook_(?:[qkv]|pre)",
        r"[qk]_norm|^act|activation",
        r"^(?!post).*(?:attn|attention)",
        r"^o_proj|^out_proj|^down|^dense|^output|^fc2$|^w2$|^hook_(?:z|post)$",
        r"post_attention|^ln_?2$|norm2|ffn_norm|^hook_resid_mid$",
        r"^(?!hook).*mlp|feed_forward|ffn",
        r"^hook_(?:mlp_out|resid_post)$",
        r"^(?:layers?|blocks?|h|encoder|decoder|language_model|model|transformer|\d+)$",
        r"norm|^ln_f(?:inal)?$",
        r"head|pooler|classifier|logits",
    )
)


@lru_cache(maxsize=1 << 14)
def _usual_rank(component: str) -> tuple[object, ...]:
    runs = next((k for k, pattern in enumerate(_USUAL_ORDER) if pattern.search(component)), len(_USUAL_ORDER) // 2)
    return runs, natural_key(component)


def _sort_keys(calls: Iterable[CallKey]) -> dict[CallKey, SortKey]:
    """A sort key for each call, from names alone."""
    parts = {layer: layer.split(".") for layer in {key.layer for key in calls}}
    # Ranks are nested tuples, which are slow to compare; so each component gets the number of its rank.
    ranks = {part: _usual_rank(part) for part in {part for components in parts.values() for part in components}}
    number = {rank: k for k, rank in enumerate(sorted(set(ranks.values())))}
    position = {component: number[rank] for component, rank in ranks.items()}
    return {key: (key.step, [position[part] for part in parts[key.layer]], key.call) for key in calls}
