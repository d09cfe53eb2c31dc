"""Recovering execution order from the values: an output that is another layer's input was computed before it.

For dumps that have no order of their own. A module ends after its parts. Where values say nothing (a
residual is added between two layers), what the layers of a transformer are called does, then numbers.

Execution order: of the pairs, and whether both sides ran in the same.

A folder of MAX files has none. Then it is taken from the other side; if neither has one it is recovered
from the values, see ``infer_order``.
"""

from __future__ import annotations

import heapq
import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Literal, NamedTuple, TypeVar

from tensordiff.align.index import parts_of
from tensordiff.dump.model import CallKey, Dump, Entry
from tensordiff.dump.names import natural_key
from tensordiff.errors import DumpError

Key = tuple[int, list[int], int]
"""Step, the rank of each component of the layer's name, call."""
_ENDS = 1 << 12  # bytes at either end that tell tensors apart
_MOST_READ = 20_000  # entries up to which values are asked at all
_SMALLEST = 16


def infer_order(dump: Dump) -> tuple[list[Entry], bool]:
    """A dump's entries in a likely order of execution, and whether values had a say in it."""
    nodes = dict.fromkeys(e.call_key for e in dump.entries)
    edges = set(_from_values(dump)) if len(dump) <= _MOST_READ else set()
    within = set(_from_names(nodes))
    keys = _keys(nodes)
    order = _sorted(keys, edges | within) if edges or within else sorted(nodes, key=keys.__getitem__)
    place = {node: k for k, node in enumerate(order)}
    return sorted(dump.entries, key=lambda e: (place[e.call_key], _port_key(e.port))), bool(edges)


@lru_cache(maxsize=1 << 12)
def _port_key(port: str) -> tuple[object, ...]:
    """What a layer is given stands before what it gives."""
    return not port.startswith("input"), natural_key(port)


def _from_values(dump: Dump) -> Iterator[tuple[CallKey, CallKey]]:
    """Who gave what another was given. Equal values at several levels tie the innermost giver to each taker."""
    if not any(entry.is_input for entry in dump.entries):
        return
    givers: dict[object, list[Entry]] = defaultdict(list)
    for entry in dump.entries:
        if not entry.is_input and (digest := _digest(entry)) is not None:
            givers[digest].append(entry)
    inside = _inside(dump)
    for entry in dump.entries:
        for giver in givers.get(_digest(entry), []) if entry.is_input else []:
            if not _is_within(entry.layer, giver.layer) and not _is_within(giver.layer, entry.layer):
                # What is inside a module cannot run before the module was given its input.
                yield from ((giver.call_key, taker) for taker in inside[entry.call_key])


def _inside(dump: Dump) -> dict[CallKey, list[CallKey]]:
    """For each module, itself and all within it."""
    found: dict[CallKey, list[CallKey]] = defaultdict(list)
    for layer, step, call in {entry.call_key for entry in dump.entries}:
        parts = layer.split(".")
        for length in range(1, len(parts) + 1):
            found[CallKey(".".join(parts[:length]), step, call)].append(CallKey(layer, step, call))
    return found


def _from_names(nodes: Mapping[CallKey, object]) -> Iterator[tuple[CallKey, CallKey]]:
    """A module ends after every part of it."""

    @cache
    def around(parent: str, step: int, call: int) -> CallKey | None:
        """The module of that name, or else the next one outwards: asked again by each of its parts."""
        for node in (CallKey(parent, step, call), CallKey(parent, step, 1)):
            if node in nodes:
                return node
        return around(parent.rpartition(".")[0], step, call) if "." in parent else None

    for node in nodes:
        layer, step, call = node
        parent, dot, _ = layer.rpartition(".")
        if dot and (module := around(parent, step, call)) is not None:
            yield node, module


def _is_within(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(outer + ".")


def _digest(entry: Entry) -> object:
    """Enough to know a tensor again; None for what many are like."""
    try:
        array = entry.read()
    except DumpError:
        return None  # measuring will say why
    if array.size < _SMALLEST or not array.flags.c_contiguous:
        return None
    # Only the ends are touched: opening must not read a dump.
    flat, count = array.reshape(-1), max(1, _ENDS // array.itemsize)
    ends = (flat[:count].tobytes(), flat[-count:].tobytes())
    if not any(map(any, ends)):
        return None
    return entry.step, array.size, array.dtype.str, zlib.crc32(ends[1], zlib.crc32(ends[0]))


def _sorted(keys: Mapping[CallKey, Key], edges: set[tuple[CallKey, CallKey]]) -> list[CallKey]:
    """CallKeys after all that come before them; by step and numbers in names where edges leave a choice."""
    after: dict[CallKey, list[CallKey]] = defaultdict(list)
    waiting = dict.fromkeys(keys, 0)
    for first, then in edges:
        after[first].append(then)
        waiting[then] += 1
    ready = [(keys[node], node) for node, count in waiting.items() if not count]
    heapq.heapify(ready)
    order: list[CallKey] = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for then in after[node]:
            waiting[then] -= 1
            if not waiting[then]:
                heapq.heappush(ready, (keys[then], then))
    return order + sorted(keys.keys() - set(order), key=keys.__getitem__)  # what values tie in a circle


# Parts of a transformer as they run: by the first that fits a component of the name.
_RUNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"embed|^w[tp]e$|rotary",
        r"input_layernorm|^ln_1$|norm1|attention_norm",
        r"^[qkv]_proj|qkv|^query|^key|^value|^self$|gate|^up_proj|intermediate|^fc1$|^w[13]$",
        r"[qk]_norm|^act|activation",
        r"^(?!post).*(?:attn|attention)",
        r"^o_proj|^out_proj|^down|^dense|^output|^fc2$|^w2$",
        r"post_attention|^ln_2$|norm2|ffn_norm",
        r"mlp|feed_forward|ffn",
        r"^(?:layers?|blocks?|h|encoder|decoder|language_model|model|transformer|\d+)$",
        r"norm|^ln_f$",
        r"head|pooler|classifier|logits",
    )
)


@lru_cache(maxsize=1 << 14)
def _rank(component: str) -> tuple[object, ...]:
    runs = next((k for k, pattern in enumerate(_RUNS) if pattern.search(component)), len(_RUNS) // 2)
    return runs, natural_key(component)


def _keys(nodes: Iterable[CallKey]) -> dict[CallKey, Key]:
    """Where each node stands as far as names tell: by step, then by the rank of every component."""
    parts = {layer: layer.split(".") for layer in {node.layer for node in nodes}}
    # Ranks are nested tuples, slow to compare; there are few components, so each gets the number of its rank.
    ranks = {component: _rank(component) for component in {part for found in parts.values() for part in found}}
    number = {rank: k for k, rank in enumerate(sorted(set(ranks.values())))}
    place = {component: number[rank] for component, rank in ranks.items()}
    return {node: (node.step, [place[part] for part in parts[node.layer]], node.call) for node in nodes}


Order = Literal["same", "differs", "unknown"]
PairT = TypeVar("PairT", bound=tuple[Entry, Entry, str])


class OrderDifference(NamedTuple):
    """One position at which the two sides do not run the same layer."""

    position: int
    reference: str
    candidate: str


def in_execution_order(reference: Dump, candidate: Dump, found: Sequence[PairT]) -> tuple[list[PairT], str]:
    """Pairs as they ran, and what that was taken from."""
    if candidate.ordered and not reference.ordered:
        place = _places(candidate.entries)
        return sorted(found, key=lambda pair: _last(place, pair[1])), "candidate"
    entries, source = (reference.entries, "reference") if reference.ordered else _recovered(reference)
    place = _places(entries)
    return sorted(found, key=lambda pair: _last(place, pair[0])), source


def _recovered(dump: Dump) -> tuple[Sequence[Entry], str]:
    entries, by_values = infer_order(dump)
    return entries, "values" if by_values else "names"


def _places(entries: Sequence[Entry]) -> dict[int, int]:
    return {id(entry): k for k, entry in enumerate(entries)}


def _last(places: dict[int, int], entry: Entry) -> int:
    """An expression is known when the last of its parts is."""
    place = places.get(id(entry))
    return place if place is not None else max(places[id(part)] for part in parts_of(entry))


def _each_once(found: Sequence[tuple[Entry, Entry, str]]) -> list[tuple[Entry, Entry]]:
    """Pairs without those that see part of what is paired whole: the last token's logits run when an engine likes."""
    whole = {id(r) for r, _, _ in found}
    return [(r, c) for r, c, _ in found if not _sees_part_of(r, whole)]


def _sees_part_of(entry: Entry, whole: Collection[int]) -> bool:
    parts = list(parts_of(entry))
    return len(parts) == 1 and parts[0] is not entry and id(parts[0]) in whole


def compare_order(reference: Dump, candidate: Dump, found: Sequence[tuple[Entry, Entry, str]]) -> Order:
    """Whether what was paired ran in the same sequence on both sides."""
    if not (reference.ordered and candidate.ordered):
        return "unknown"
    return "differs" if order_differences(reference, candidate, found) else "same"


def order_differences(
    reference: Dump, candidate: Dump, found: Sequence[tuple[Entry, Entry, str]]
) -> list[OrderDifference]:
    """Position by position, where the two sequences of paired outputs are not the same."""
    outputs = [(r, c) for r, c in _each_once(found) if not r.is_input]
    ours, theirs = _places(reference.entries), _places(candidate.entries)
    by_reference = sorted(outputs, key=lambda pair: _last(ours, pair[0]))
    by_candidate = sorted(outputs, key=lambda pair: _last(theirs, pair[1]))
    return [
        OrderDifference(k, a[0].name, b[0].name)
        for k, (a, b) in enumerate(zip(by_reference, by_candidate, strict=True))
        if a[0] is not b[0]
    ]
