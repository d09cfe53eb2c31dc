"""The layers of a llama.cpp graph: which nodes belong to which weight, and what they take and give.

A graph is a list of nodes. Most have no name of their own or share one with others; the weight that a node reads tells
what it is for. So a layer is named after its weight in the GGUF file: ``blk.0.attn_q.weight`` becomes the layer
``model.blk.0.attn.q``, and its input is what is multiplied with the weight. A norm begins where the mean is taken. A
bias is part of its layer; so is the factor that Gemma multiplies its embedding with, as in transformers. Around these
layers are the attention and feed-forward part of each block, the block, and the model.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import ml_dtypes
import numpy as np

from tensordiff.capture.engines.llamacpp.architectures import Architecture
from tensordiff.dump.dtypes import DType

F32, F16 = 0, 1

DTYPES: Mapping[int, DType] = {
    F32: np.dtype(np.float32), F16: np.dtype(np.float16), 24: np.dtype(np.int8), 25: np.dtype(np.int16),
    26: np.dtype(np.int32), 27: np.dtype(np.int64), 28: np.dtype(np.float64), 30: np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip
"""The types of ggml that are plain arrays; the others are quantized."""
ROOT = "model"
OPERATION = "/op_"
"""Separates the name of a layer from the number of an operation in it."""
_NO_OP = "NONE"
_EMBEDDING, _SCALED = "token_embd", "inp_scaled"
_VIEWS = frozenset({"VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE"})
_NORMS = frozenset({"RMS_NORM", "NORM", "L2_NORM", "GROUP_NORM"})
_WEIGHTING = frozenset({"MUL", "ADD"})
"""What a norm does with its weights. OLMo's norms have none, and a projection follows them."""
_BLOCK = re.compile(r"(blk\.\d+)\.(.+)")
_PART = re.compile(r"(attn|ffn)_(?!norm|post_norm)(.+)")
_WEIGHT = re.compile(r"(.+)\.(?:weight|bias|scale)")
_NORM_NODE = re.compile(r"((?:attn|ffn)_norm)-(\d+)")
_INPUT_NAMES = re.compile(r"inp_|cache_|out_ids|attn_inp")
_LAST_PART = {"attn": ("output", "out"), "ffn": ("down",)}
_BLOCK_OUTPUT = "l_out"
_EXPERTS_OUTPUTS = ("ffn_moe_out", "ffn_out")
"""Names of the outputs of a mixture of experts: the experts together, and these plus the experts that all
tokens share.
"""


class Tensor(NamedTuple):
    """A tensor of a graph, at its address; all that is known of it without its values."""

    address: int
    name: str
    op: str
    """The operation that makes it, such as ``MUL_MAT``; ``NONE`` for weights, inputs and caches."""
    kind: int
    """ggml's number for its type."""
    shape: tuple[int, ...]
    """The slowest dimension first.

    Leading ones are dropped as long as two dimensions remain: ``(tokens, features)``.
    """
    strides: tuple[int, ...]
    nbytes: int
    sources: tuple[int, ...]
    """The addresses of the tensors it is computed from."""
    view_of: int | None
    """The address of the tensor that owns its memory; None if it owns its memory itself."""
    is_swapped: bool = False
    """For a gated activation whose gate and up are one tensor: whether up comes first."""


@dataclass(frozen=True)
class Input:
    """An input of a layer: a source of one of the graph's nodes."""

    port: str
    node: int
    source: int
    """The index of the tensor among the node's sources."""
    is_restored: bool = False
    """Whether later nodes read the tensor too, so that an injected value must be removed after the layer."""


@dataclass(frozen=True)
class LayerCall:
    """A call of a layer: the nodes from ``first`` to ``last``."""

    layer: str
    kind: str
    """ggml's name for the operation, or ``block``."""
    first: int
    last: int
    inputs: tuple[Input, ...]
    output: str = "output"
    """The port of the output of ``last``."""
    is_root: bool = False

    def holds(self, other: LayerCall) -> bool:
        """Whether another call begins and ends within this one."""
        return self.first <= other.first and other.last <= self.last

    def is_disjoint(self, other: LayerCall) -> bool:
        """Whether the two calls have no node in common."""
        return self.last < other.first or other.last < self.first


@dataclass(frozen=True)
class Graph:
    """The nodes of one decode, and the tensors they read."""

    nodes: Sequence[Tensor]
    leaves: Mapping[int, Tensor] = field(default_factory=dict)
    """Weights, inputs and caches, by address."""
    architecture: Architecture = field(default_factory=Architecture)

    @cached_property
    def number(self) -> dict[int, int]:
        """The index of each node, by address."""
        return {node.address: k for k, node in enumerate(self.nodes)}

    @cached_property
    def calls(self) -> tuple[LayerCall, ...]:
        """All layers in the order they begin, an outer layer before those within it."""
        modules = list(self._modules())
        calls = [*modules, *self._parts(modules), *self._blocks(modules)]
        if self.nodes:
            calls.append(LayerCall(ROOT, ROOT, 0, len(self.nodes) - 1, (), "output_logits", is_root=True))
        nested = [call for call in calls if all(call.holds(o) or o.holds(call) or call.is_disjoint(o) for o in calls)]
        restored = (replace(call, inputs=tuple(self._restored(call))) for call in nested)
        return tuple(sorted(restored, key=lambda call: (call.first, -call.last, call.layer.count("."))))

    def operations(self, call: LayerCall) -> Iterator[LayerCall]:
        """The nodes within a layer, each as a layer of its own; views compute nothing and are left out."""
        within = range(call.first, call.last + 1)
        for number, k in enumerate(k for k in within if self.nodes[k].op not in _VIEWS and k in self._live_nodes):
            node = self.nodes[k]
            inputs = tuple(self._inputs(k, self._activations(k)))
            yield LayerCall(f"{call.layer}{OPERATION}{number:02d}_{node.op}", node.name, k, k, inputs)

    # --- layers ----------------------------------------------------------------------------------

    def _modules(self) -> Iterator[LayerCall]:
        """Layers with weights, in execution order."""
        ends: dict[str, list[int]] = defaultdict(list)
        begun: dict[tuple[str, int], int] = {}
        for k, node in enumerate(self.nodes):
            name, before = self._weight(node) or _norm_without_weight(node), self._producer(k)
            if node.name == _SCALED and before is not None and ends[_EMBEDDING] == [before]:
                name = _EMBEDDING
            if name is None or k not in self._live_nodes:
                continue
            if before is not None and ends[name] and ends[name][-1] == before:
                ends[name][-1] = k  # the bias or the scale of the layer
                begun[name, k] = begun.pop((name, before))
            else:
                is_weighted = before is not None and self.nodes[before].op in _NORMS and node.op in _WEIGHTING
                first = before if before is not None and is_weighted else k
                ends[name].append(k)
                begun[name, k] = first
        for (name, last), first in sorted(begun.items(), key=lambda item: item[1]):
            inputs = tuple(self._inputs(first, self._activations(first)))
            yield LayerCall(self._layer(name), self.nodes[first].op, first, last, inputs)

    def _parts(self, modules: Sequence[LayerCall]) -> Iterator[LayerCall]:
        """The attention and the feed-forward part of each block."""
        if self.architecture.has_inner_residual:
            return
        for holder, members in _by_holder(modules).items():
            block, _, part = holder.rpartition(".")
            if part not in _LAST_PART:
                continue
            last = [m.last for m in members if m.layer.rpartition(".")[2] in _LAST_PART[part]]
            number = block.rpartition(".")[2]
            has_experts = part == "ffn" and self._named(f"{_EXPERTS_OUTPUTS[0]}-{number}")
            last += [k for name in _EXPERTS_OUTPUTS for k in self._named(f"{name}-{number}")] if has_experts else []
            if last:
                first = min(members, key=lambda member: member.first)
                inputs = tuple(
                    replace(one, port="input_hidden_states") if part == "attn" else one for one in first.inputs
                )
                yield LayerCall(holder, part, first.first, max(last), inputs[:1])

    def _blocks(self, modules: Sequence[LayerCall]) -> Iterator[LayerCall]:
        """The blocks. A block ends at the node that makes the next block's input."""
        members: dict[str, list[LayerCall]] = defaultdict(list)
        for module in modules:
            if found := _BLOCK.match(module.layer.removeprefix(f"{ROOT}.")):
                members[f"{ROOT}.{found[1]}"].append(module)
        starts = [min(m.first for m in each) for each in members.values()]
        after = [m for m in modules if _BLOCK.match(m.layer.removeprefix(f"{ROOT}.")) is None]
        for name, each in members.items():
            first = min(each, key=lambda member: member.first)
            last = max(m.last for m in each)
            following = [k for k in (*starts, *(m.first for m in after)) if k > last]
            ends = self._named(f"{_BLOCK_OUTPUT}-{name.rpartition('.')[2]}")
            if following and not ends and (made := self._producer(min(following))) is not None:
                ends = [made]
            if ends and ends[-1] >= last:
                yield LayerCall(name, "block", first.first, ends[-1], first.inputs[:1])

    def _layer(self, weight: str) -> str:
        return layer_name(self.architecture.renamed(weight))

    def _named(self, name: str) -> list[int]:
        return [k for k, node in enumerate(self.nodes) if node.name == name]

    # --- sources ---------------------------------------------------------------------------------

    def tensor(self, address: int) -> Tensor | None:
        """The node or leaf at an address."""
        found = self.number.get(address)
        return self.leaves.get(address) if found is None else self.nodes[found]

    def _weight(self, node: Tensor) -> str | None:
        """The name of the weight that a node reads, without its ending."""
        if node.op == "ROPE":
            return None  # rope's frequencies are not a layer of their own
        leaves = (self.leaves.get(address) for address in node.sources if address not in self.number)
        names = (_WEIGHT.fullmatch(leaf.name) for leaf in leaves if leaf is not None and leaf.op == _NO_OP)
        name = next((found[1] for found in names if found), None)
        return "output" if name == _EMBEDDING and node.op == "MUL_MAT" else name  # tied weights

    def _activations(self, k: int) -> list[int]:
        """The indices of a node's sources that are not weights and whose type dumps have."""
        found = []
        for number, address in enumerate(self.nodes[k].sources):
            source = self.tensor(address)
            if source is None or source.kind not in DTYPES:
                continue
            is_weight = address not in self.number and not _INPUT_NAMES.match(source.name)
            if not (is_weight and source.view_of is None):
                found.append(number)
        return found

    def _inputs(self, k: int, sources: Sequence[int]) -> Iterator[Input]:
        return (Input(f"input_{n}", k, source) for n, source in enumerate(sources))

    def _producer(self, k: int) -> int | None:
        """The node that made a node's first activation, looking through views."""
        sources = self._activations(k)
        at = self.number.get(self.nodes[k].sources[sources[0]]) if sources else None
        while at is not None and self.nodes[at].op in _VIEWS:
            at = self.number.get(self.nodes[at].sources[0])
        return at

    @cached_property
    def _live_nodes(self) -> Collection[int]:
        """The nodes that the result or a cache depends on."""
        reached: set[int] = set()
        waiting = [k for k, node in enumerate(self.nodes) if node.name.startswith("cache_")] + [len(self.nodes) - 1]
        while waiting:
            k = waiting.pop()
            if k not in reached:
                reached.add(k)
                waiting += [self.number[a] for a in self.nodes[k].sources if a in self.number]
        return reached

    @cached_property
    def _last_read(self) -> dict[int, int]:
        """The last node that reads a tensor's memory, by the address of the tensor that owns the memory."""
        last: dict[int, int] = {}
        for k, node in enumerate(self.nodes):
            for address in node.sources:
                if (source := self.tensor(address)) is not None:
                    last[self._owner(source)] = k
        return last

    def _owner(self, tensor: Tensor) -> int:
        return tensor.address if tensor.view_of is None else tensor.view_of

    def _restored(self, call: LayerCall) -> Iterator[Input]:
        for one in call.inputs:
            source = self.tensor(self.nodes[one.node].sources[one.source])
            is_read_later = source is not None and self._last_read[self._owner(source)] > call.last
            yield replace(one, is_restored=is_read_later)


def _norm_without_weight(node: Tensor) -> str | None:
    """The layer name of a norm that reads no weight, as in OLMo.

    Norms with a weight are named just ``norm`` in the graph.
    """
    if node.op not in _NORMS:
        return None
    found = _NORM_NODE.fullmatch(node.name)
    return f"blk.{found[2]}.{found[1]}" if found else "output_norm" if node.name == "result_norm" else None


def layer_name(weight: str) -> str:
    """The layer of a weight: ``blk.0.attn_q`` is ``model.blk.0.attn.q``."""
    block = _BLOCK.fullmatch(weight)
    if block is None:
        return f"{ROOT}.{weight}"
    part = _PART.fullmatch(block[2])
    return f"{ROOT}.{block[1]}.{part[1]}.{part[2]}" if part else f"{ROOT}.{block[1]}.{block[2]}"


def _by_holder(calls: Sequence[LayerCall]) -> dict[str, list[LayerCall]]:
    held: dict[str, list[LayerCall]] = defaultdict(list)
    for call in calls:
        held[call.layer.rpartition(".")[0]].append(call)
    return held
