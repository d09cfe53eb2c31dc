"""Merges tensors that MAX shards over several GPUs.

A model on ``gpu:0,1`` has each tensor on both GPUs: as copies (inputs of layers, norms, sums), as terms of a sum (what
a layer computes from its shard of the weights, before the GPUs add up), or as columns. A shard is never compared with a
whole tensor. Here the shards are merged, and a whole tensor that is injected is split again. Shards that cannot be
merged (queries, keys and values of some heads) are written one by one, under names that pair with nothing. Nothing here
imports MAX.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tensordiff.capture.engines.max.sites import GraphSite, InputSlot, Role, Shard, StepTensors
from tensordiff.dump.dtypes import Array

_LIST = re.compile(r"^(?P<list>.*?\.(?:\w+_shards|list_of_attentions|distributed_linear_layers))\.(?P<number>\d+)")


@dataclass(frozen=True)
class LayerShard:
    """A layer that is one GPU's shard of another."""

    number: int
    count: int
    path: str
    """The list that holds all shards; a shard may also be inside one of its items."""
    inputs: Role
    outputs: Role

    def of_port(self, port: str) -> Shard:
        """The shard that a tensor of the layer is."""
        return Shard(self.number, self.count, self.inputs if port.startswith("input") else self.outputs, self.path)


@dataclass(frozen=True)
class ShardPath:
    """The name of a layer, split at the list of shards in it."""

    path: str
    number: int
    rest: str

    @classmethod
    def of(cls, name: str) -> ShardPath | None:
        """Split a name; None if it contains no list of shards."""
        found = _LIST.match(name)
        return None if found is None else cls(found["list"], int(found["number"]), name[found.end() :])

    @property
    def whole(self) -> str:
        """The name of the layer before sharding: ``mlp`` for ``mlp_shards.1``."""
        if self.path.endswith("_shards"):
            return self.path.removesuffix("_shards") + self.rest
        return self.path.rpartition(".")[0] + self.rest

    @property
    def first(self) -> str:
        """The name of the same layer on the first GPU, which all shards are named after."""
        return f"{self.path}.0{self.rest}"


def merged_site(site: GraphSite) -> GraphSite:
    """The site of a tensor once shards are merged; a shard that cannot be merged gets a site of its own."""
    shard = site.shard
    if shard is None:
        return site
    if shard.role != "part":
        return replace(site, shard=None)
    own = f"{shard.path}.{shard.number}of{shard.count}"
    return replace(site, layer=own + site.layer.removeprefix(f"{shard.path}.0"), shard=None)


@dataclass
class Merger:
    """Merges the tensors of steps, and notes copies that differ."""

    differing: dict[str, float] = field(default_factory=dict)
    """How far the copies of a tensor differ, by its name; they should not."""

    def step(self, tensors: StepTensors) -> StepTensors:
        """The tensors of a step, in order, each merged."""
        groups: defaultdict[GraphSite, list[tuple[Shard | None, Array]]] = defaultdict(list)
        for site, array in tensors:
            groups[merged_site(site)].append((site.shard, array))
        return [(site, self._whole(site, parts)) for site, parts in groups.items()]

    def notes(self) -> list[str]:
        """Notes for the user."""
        if not self.differing:
            return []
        name, error = max(self.differing.items(), key=lambda item: item[1])
        return [f"{len(self.differing)} tensors differ between GPUs that should hold copies, most {name}: {error:.1e}"]

    def _whole(self, site: GraphSite, parts: Sequence[tuple[Shard | None, Array]]) -> Array:
        shard, first = parts[0]
        if shard is None or len(parts) == 1:
            return first
        arrays = [array for _, array in parts]
        if shard.role == "term":
            wide = np.float64 if first.dtype == np.float64 else np.float32
            return np.asarray(sum(array.astype(wide) for array in arrays)).astype(first.dtype)
        if shard.role == "columns":
            return np.concatenate(arrays, axis=-1)
        for other in arrays[1:]:
            if (error := _difference(first, other)) > 0:
                name = site.key(0).name
                self.differing[name] = max(error, self.differing.get(name, 0.0))
        return first


def _difference(one: Array, other: Array) -> float:
    a, b = one.astype(np.float64).reshape(-1), other.astype(np.float64).reshape(-1)
    if a.size != b.size:
        return float("inf")
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    size = float(np.linalg.norm(a[np.isfinite(a)])) or 1.0
    return float(np.linalg.norm((b - a)[~same])) / size if not same.all() else 0.0


def split_by_shard(slots: Iterable[InputSlot], value: Array) -> Iterator[tuple[GraphSite, Array]]:
    """Split a value among the switches of all shards: each gets a copy, or its columns."""
    begin = 0
    for slot in sorted(slots, key=lambda slot: slot.site.shard.number if slot.site.shard else 0):
        if slot.site.shard is None or slot.site.shard.role != "columns":
            yield slot.site, value
            continue
        end = begin + int(slot.shape[-1])
        yield slot.site, np.ascontiguousarray(value[..., begin:end])
        begin = end


def slots_by_input(slots: Iterable[InputSlot]) -> Mapping[tuple[str, int, str], list[InputSlot]]:
    """The switches of each input: one, or one for each shard."""
    found: defaultdict[tuple[str, int, str], list[InputSlot]] = defaultdict(list)
    for slot in slots:
        site = merged_site(slot.site)
        found[site.layer, site.call, site.port].append(slot)
    return found
