"""Sinks for the tensors that hooks see: one writes them to a dump, one only lists them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tensordiff.capture.engines.torch.facts import forward_location
from tensordiff.capture.engines.torch.hooks import CallTensor
from tensordiff.capture.engines.torch.tensors import spec_of, why_not_copied
from tensordiff.capture.engines.torch.writing.writer import BackgroundWriter
from tensordiff.capture.injection.sources import SpecOnly
from tensordiff.capture.process.disk_space import Budget
from tensordiff.dump.model import Entry, EntryKey, Origin


@dataclass
class WritingSink:
    """Copies every tensor and passes it to the writer, until the budget is spent."""

    writer: BackgroundWriter
    budget: Budget
    nbytes: int = 0
    entries: int = 0

    def see(self, item: CallTensor) -> None:
        """Copy a tensor and have it written."""
        if (why := why_not_copied(item.tensor) or _why_not_now(item.tensor)) is not None:
            self.budget.leave_out(why)
            return
        if not self.budget.allows(item.tensor.nbytes):
            return
        self.nbytes += self.writer.put(item.key, _origin(item), item.tensor)
        self.entries += 1

    def notes(self) -> list[str]:
        """Notes on what was left out."""
        return self.budget.notes()


def _why_not_now(tensor: Tensor) -> str | None:
    """Why a tensor cannot be copied now.

    While a CUDA graph is captured nothing runs, and waiting for a copy would abort it.
    """
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph was being captured, and its tensors have no values yet; capture a run without CUDA graphs"
    return None


def _origin(item: CallTensor) -> Origin:
    """Where a tensor was made: in its module, or where an operation was called."""
    module = item.call.module
    if module is None:
        file, line = item.place or (None, None)
        return Origin(item.about, file, line, item.injected)
    found = _of_module(type(module))
    return found if item.injected is None else found._replace(injected=item.injected)


_origins: dict[type, Origin] = {}


def _of_module(kind: type) -> Origin:
    """The origin of all tensors of a class, made once."""
    if (found := _origins.get(kind)) is None:
        _origins[kind] = found = Origin(kind.__name__, *forward_location(kind))
    return found


@dataclass
class ListingSink:
    """Lists the entries that a dump of this run would have, without values."""

    entries: list[Entry] = field(default_factory=list)
    aliases: dict[EntryKey, EntryKey] = field(default_factory=dict)
    """Inputs that are the same tensor as an earlier entry, unchanged since."""

    def __post_init__(self) -> None:
        self._first: dict[int, tuple[weakref.ref[Tensor], int, EntryKey]] = {}

    def _note_alias(self, item: CallTensor) -> None:
        tensor, key = item.tensor, item.key
        version = -1 if tensor.is_inference() else tensor._version
        before = self._first.get(id(tensor))
        if before is None or before[0]() is not tensor or before[1] != version:
            self._first[id(tensor)] = (weakref.ref(tensor), version, key)
        elif item.port.startswith("input"):
            self.aliases[key] = before[2]

    def see(self, item: CallTensor) -> None:
        """List a tensor."""
        if why_not_copied(item.tensor) is None and (spec := spec_of(item.tensor)) is not None:
            self._note_alias(item)
            call, module = item.call, item.call.module
            origin = Origin(type(module).__name__ if module is not None else None)
            self.entries.append(
                Entry(item.key.name, call.layer, item.port, call.call, call.step, SpecOnly(spec), origin)
            )  # fmt: skip
