"""Where values stand in a MAX model, which of a layer's inputs can be given from outside, and which cannot.

Nothing here imports MAX: what is decided on these records can be checked where it is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensordiff.dump.dtypes import Array


@dataclass(frozen=True)
class Written:
    """Where a layer's code is."""

    module_class: str | None = None
    source_file: str | None = None
    source_line: int | None = None


@dataclass(frozen=True)
class Place:
    """Where in the model a value stands."""

    layer: str
    port: str
    call: int
    written: Written = field(default=Written(), compare=False)

    @property
    def name(self) -> str:
        """The entry's name: ``layer(2)-output``."""
        return f"{self.layer}{f'({self.call})' if self.call > 1 else ''}-{self.port}"


@dataclass(frozen=True)
class Slot:
    """An input of a layer that can be given from outside."""

    place: Place
    dtype: Any
    shape: tuple[int | str, ...]
    device: Any
    origin: Place | None = None
    """Where the value that the model itself would take stood first: another layer's output, mostly."""
    has_flag: bool = True
    """Whether the graph has a value of its own beside the given one."""


@dataclass(frozen=True)
class Refused:
    """An input of a layer that cannot be given from outside, and why."""

    place: Place
    why: str
    is_constant: bool = False
    """Whether it is the same in every run, so that no error reaches the layer through it."""


@dataclass(frozen=True)
class Inlets:
    """The inputs of a model's layers: those that can be given from outside, and those that cannot."""

    slots: Sequence[Slot]
    refused: Sequence[Refused] = ()


Given = Mapping[Place, Array]
"""Values to run a graph on, by the input that takes them."""
