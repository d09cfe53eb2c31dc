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

    def see(self, seen: CallTensor) -> None:
        """Copy a tensor and have it written."""
        if (why := why_not_copied(seen.tensor) or _why_not_now(seen.tensor)) is not None:
            self.budget.leave_out(why)
            return
        if not self.budget.allows(seen.tensor.nbytes):
            return
        self.nbytes += self.writer.put(seen.key, _origin(seen), seen.tensor)
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


def _origin(seen: CallTensor) -> Origin:
    """Where a tensor was made: in its module, or where an operation was called."""
    module = seen.call.module
    if module is None:
        file, line = seen.place or (None, None)
        return Origin(seen.about, file, line, seen.injected)
    found = _of_module(type(module))
    return found if seen.injected is None else found._replace(injected=seen.injected)


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

    def _note_alias(self, seen: CallTensor) -> None:
        tensor, key = seen.tensor, seen.key
        version = -1 if tensor.is_inference() else tensor._version
        before = self._first.get(id(tensor))
        if before is None or before[0]() is not tensor or before[1] != version:
            self._first[id(tensor)] = (weakref.ref(tensor), version, key)
        elif seen.port.startswith("input"):
            self.aliases[key] = before[2]

    def see(self, seen: CallTensor) -> None:
        """List a tensor."""
        if why_not_copied(seen.tensor) is None and (spec := spec_of(seen.tensor)) is not None:
            self._note_alias(seen)
            call, module = seen.call, seen.call.module
            origin = Origin(type(module).__name__ if module is not None else None)
            self.entries.append(
                Entry(seen.key.name, call.layer, seen.port, call.call, call.step, SpecOnly(spec), origin)
            )  # fmt: skip
