"""Values in the graph of a MAX model: which inputs of layers can be given from outside, and which cannot.

Nothing here imports MAX, so decisions on these records can be tested without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tensordiff.capture.process.layers import entry_key
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import CallKey, EntryKey, Origin

Role = Literal["copy", "term", "columns", "part"]
"""How one GPU's shard relates to the whole tensor: a copy, a term of a sum, columns, or a part that cannot
be merged.
"""


@dataclass(frozen=True)
class Shard:
    """Which GPU's shard of a tensor a value is."""

    number: int
    count: int
    role: Role
    path: str = ""
    """For a shard of a layer, the list of shards it is in; see ``shards``."""


@dataclass(frozen=True)
class GraphSite:
    """A value of a graph: an input or output of one call of a layer."""

    layer: str
    port: str
    call: int
    origin: Origin = field(default=Origin(), compare=False)
    """The class of the layer, and where its code is."""
    shard: Shard | None = None
    """Set if the tensor is sharded over GPUs; layer and port are then those of the first shard."""

    def call_key(self, step: int) -> CallKey:
        """The call in a step of a run."""
        return CallKey(self.layer, step, self.call)

    def key(self, step: int) -> EntryKey:
        """The entry that holds the value in a step of a run."""
        return entry_key(self.call_key(step), self.port)


@dataclass(frozen=True)
class InputSlot:
    """An input of a layer that can be given from outside."""

    site: GraphSite
    dtype: Any
    shape: tuple[int | str, ...]
    device: Any
    alias: GraphSite | None = None
    """Where the model's own value appeared first, usually as another layer's output."""
    has_flag: bool = True
    """Whether the graph also has a value of its own for this input."""


@dataclass(frozen=True)
class FixedInput:
    """An input of a layer that cannot be given from outside, and why."""

    site: GraphSite
    why: str
    is_constant: bool = False
    """Whether it is the same in every run, so that no error reaches the layer through it."""


@dataclass(frozen=True)
class ModelInputs:
    """The inputs of a model's layers: those that can be given from outside, and those that cannot."""

    slots: Sequence[InputSlot]
    fixed: Sequence[FixedInput] = ()


SiteValues = Mapping[GraphSite, Array]
"""Values to run a graph on, by the input that takes them."""
StepTensors = Sequence[tuple[GraphSite, Array]]
"""The tensors recorded in one step, in execution order."""
