"""Recovering execution order from the values: an output that is another layer's input was computed before it.

For dumps that have no order of their own. A module ends after its parts. Where values say nothing (a
residual is added between two layers), what the layers of a transformer are called does, then numbers.
"""

from __future__ import annotations

import heapq
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache

from tensordiff.dump.model import Dump, Entry
from tensordiff.dump.names import natural_key
from tensordiff.errors import DumpError

Node = tuple[str, int, int]
"""Layer, step and call."""
_ENDS = 1 << 12  # bytes at either end that tell tensors apart
_MOST_READ = 20_000  # entries up to which values are asked at all
_SMALLEST = 16


def recover(dump: Dump) -> tuple[list[Entry], bool]:
    """A dump's entries in a likely order of execution, and whether values had a say in it."""
    nodes = {_node(entry) for entry in dump.entries}
    edges = set(_from_values(dump)) if len(dump) <= _MOST_READ else set()
    within = set(_from_names(nodes))
    order = _sorted(nodes, edges | within) if edges or within else sorted(nodes, key=_key)
    place = {node: k for k, node in enumerate(order)}
    return sorted(dump.entries, key=lambda e: (place[_node(e)], *_port_key(e.port))), bool(edges)


@lru_cache(maxsize=1 << 12)
def _port_key(port: str) -> tuple[object, ...]:
    """What a layer is given stands before what it gives."""
    return not port.startswith("input"), natural_key(port)


def _node(entry: Entry) -> Node:
    return entry.layer, entry.step, entry.call


def _from_values(dump: Dump) -> Iterator[tuple[Node, Node]]:
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
                yield from ((_node(giver), taker) for taker in inside[_node(entry)])


def _inside(dump: Dump) -> dict[Node, list[Node]]:
    """For each module, itself and all within it."""
    found: dict[Node, list[Node]] = defaultdict(list)
    for layer, step, call in {_node(entry) for entry in dump.entries}:
        parts = layer.split(".")
        for length in range(1, len(parts) + 1):
            found[".".join(parts[:length]), step, call].append((layer, step, call))
    return found


def _from_names(nodes: set[Node]) -> Iterator[tuple[Node, Node]]:
    """A module ends after every part of it."""
    for layer, step, call in nodes:
        parent = layer
        while "." in parent:
            parent = parent.rpartition(".")[0]
            around = next((node for node in ((parent, step, call), (parent, step, 1)) if node in nodes), None)
            if around is not None:
                yield (layer, step, call), around
                break


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


def _sorted(nodes: set[Node], edges: set[tuple[Node, Node]]) -> list[Node]:
    """Nodes after all that come before them; by step and numbers in names where edges leave a choice."""
    after: dict[Node, list[Node]] = defaultdict(list)
    waiting = dict.fromkeys(nodes, 0)
    for first, then in edges:
        after[first].append(then)
        waiting[then] += 1
    ready = [(_key(node), node) for node, count in waiting.items() if not count]
    heapq.heapify(ready)
    order: list[Node] = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for then in after[node]:
            waiting[then] -= 1
            if not waiting[then]:
                heapq.heappush(ready, (_key(then), then))
    done = set(order)
    return order + sorted(nodes - done, key=_key)  # what values tie in a circle


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


def _key(node: Node) -> tuple[object, ...]:
    layer, step, call = node
    return step, tuple(_rank(component) for component in layer.split(".")), call
