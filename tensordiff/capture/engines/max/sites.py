"""Values in the graph of a MAX model: which inputs of layers can be given from outside, and which cannot.

Nothing here imports MAX: what is decided on these records can be tested where it is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tensordiff.capture.process.layers import entry_key
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import CallKey, EntryKey, Origin

Role = Literal["copy", "term", "columns", "part"]
"""What one GPU's share of a tensor is to the whole: the same, a term of a sum, columns, or what cannot be told."""


@dataclass(frozen=True)
class Shard:
    """Which GPU's share of a tensor a value is."""

    number: int
    count: int
    role: Role
    path: str = ""
    """Of a layer's share, the list of shards it lies in; see ``shards``."""


@dataclass(frozen=True)
class GraphSite:
    """A value of a graph: an input or output of one call of a layer."""

    layer: str
    port: str
    call: int
    origin: Origin = field(default=Origin(), compare=False)
    """The class of the layer, and where its code is."""
    shard: Shard | None = None
    """Where the tensor is spread over GPUs; layer and port are then those of the first."""

    def call_key(self, step: int) -> CallKey:
        """The call in a step of a run."""
        return CallKey(self.layer, step, self.call)

    def key(self, step: int) -> EntryKey:
        """The entry that the value is in a step of a run."""
        return entry_key(self.call_key(step), self.port)


@dataclass(frozen=True)
class InputSlot:
    """An input of a layer that can be given from outside."""

    site: GraphSite
    dtype: Any
    shape: tuple[int | str, ...]
    device: Any
    alias: GraphSite | None = None
    """Where the value that the model itself would take stood first: another layer's output, mostly."""
    has_flag: bool = True
    """Whether the graph has a value of its own beside the given one."""


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
"""What was recorded in one step, in execution order."""
