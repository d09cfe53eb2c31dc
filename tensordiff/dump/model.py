"""The data model of a dump, as the rest of tensordiff sees it.

A ``Dump`` is an ordered collection of entries. An ``Entry`` is one named tensor, not yet loaded: ``spec`` reads a
header at most, ``read`` maps the bytes. Readers build these and nothing else, and only they know what the bytes of a
format mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

from tensordiff.dump.dtypes import Array, DType
from tensordiff.dump.names import BACKWARD, MOST_PARTS, PARAMETER_PORT, is_backward, split_name, why_refused
from tensordiff.errors import DumpError
from tensordiff.util.mappings import count_losses, raise_losses


class Spec(NamedTuple):
    """Shape and dtype of a tensor, as its header says."""

    shape: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that the elements take when contiguous."""
        return self.size * self.dtype.itemsize


class StoredTensor(Protocol):
    """Where an entry's values come from. Both members raise ``BadFile`` if the file does not hold them."""

    @property
    def spec(self) -> Spec:
        """Shape and dtype; reads a header at most."""

    def read(self) -> Array:
        """The values, read-only, mapped without a copy if the layout allows."""


class LiveTensor:
    """A stored tensor that a running model has yet to compute: only the comparing thread reads it, in order."""

    __slots__ = ()


class MemoryTensor(NamedTuple):
    """A tensor in memory instead of a file."""

    array: Array

    @property
    def spec(self) -> Spec:
        """Shape and dtype."""
        return Spec(self.array.shape, self.array.dtype)

    def read(self) -> Array:
        """The values."""
        return self.array


class Origin(NamedTuple):
    """Where in a model a tensor comes from, as far as the dump says."""

    module_class: str | None = None
    source_file: str | None = None
    source_line: int | None = None
    injected: tuple[str, ...] | None = None
    """Reference entries whose values were injected: as this input, or into the layer of this output."""


_new = tuple.__new__
"""Makes a named tuple in half the time: there may be a million entries."""


class CallKey(NamedTuple):
    """One call of a layer. All inputs and outputs of that call share it."""

    layer: str
    step: int
    call: int


class EntryKey(NamedTuple):
    """Identifies an entry: no two entries of a dump have the same name, step and call."""

    name: str
    step: int
    call: int


class Entry(NamedTuple):
    """One named tensor of a dump, not yet loaded."""

    name: str
    layer: str
    port: str
    call: int
    step: int
    stored: StoredTensor
    origin: Origin | None = None

    @property
    def spec(self) -> Spec:
        """Shape and dtype; reads a header at most."""
        return self.stored.spec

    def read(self) -> Array:
        """The values, read-only."""
        before = count_losses()
        try:
            array = self.stored.read()
        except DumpError:
            raise_losses(before, self.name)  # a truncated file explains the error better
            raise
        if count_losses() != before:
            raise_losses(before, self.name)
        return array

    @property
    def key(self) -> EntryKey:
        """Identifies this entry within its dump."""
        return EntryKey(self.name, self.step, self.call)

    @property
    def call_key(self) -> CallKey:
        """The call of a layer that this tensor went into or came out of."""
        _, layer, _, call, step, _, _ = self
        return _new(CallKey, (layer, step, call))

    @property
    def is_input(self) -> bool:
        """Whether this is an input of its layer rather than an output."""
        return self.port.startswith("input")

    @property
    def is_gradient(self) -> bool:
        """Whether this is a gradient: an input or output of a module's backward pass."""
        return self.layer.startswith(BACKWARD) and is_backward(self.layer)


def entry(name: str, stored: StoredTensor, step: int = 0) -> Entry:
    """Make an entry from its name in a dump, which contains layer, port and call."""
    layer, port, call = split_name(name)
    return _new(Entry, (name, layer, port, call, step, stored, None))


class Problem(NamedTuple):
    """A file or folder of the dump that was left out, and why."""

    file: str
    sentence: str
    is_unread: bool = False
    """Whether tensors were left out with it, so that the dump as a whole cannot be said to agree."""
    do: str = ""
    """What to do about it, if nothing was left out but the dump itself is doubtful; otherwise it is to be dumped again.
    """


@dataclass(frozen=True)
class Dump:
    """All that one run left on disk."""

    path: Path
    format: str
    entries: tuple[Entry, ...] = field(repr=False)
    ordered: bool
    """Whether entries are in execution order. If not, they are in the order of the file or in natural order."""
    problems: tuple[Problem, ...] = ()
    interrupted: bool = False
    """Whether the capture ended before it finished."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """What the dump says about its run: source, framework, versions, device, token ids."""
    statistics: tuple[str, ...] = ()
    """The statistics that entries hold instead of values, in order; empty if they hold values."""
    is_summarized: bool = False
    """Whether it holds values, but is viewed through statistics because the other side has no more."""
    parameters: tuple[Entry, ...] = field(default=(), repr=False)
    """The model's parameters, if a capture was asked for them (``--weights``); not part of ``entries``."""
    files: frozenset[str] = field(default=frozenset(), repr=False)
    """Names in its folder that the reader took. ``leftovers`` looks at the others."""

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def unread(self) -> list[str]:
        """A sentence for everything that looks like tensors and was not read."""
        unread = (problem for problem in self.problems if problem.is_unread)
        return [f"{self._path_of(p)}: {p.sentence}{f'; {p.do}' if p.do else ''}" for p in unread]

    def _path_of(self, problem: Problem) -> Path:
        is_itself = problem.file == self.path.name and not self.path.is_dir()
        return self.path if is_itself else self.path / problem.file

    @cached_property
    def has_inputs(self) -> bool:
        """Whether inputs of layers were captured."""
        return any(port.startswith("input") for port in {entry.port for entry in self.entries})

    @property
    def has_gradients(self) -> bool:
        """Whether the backward pass was captured, too."""
        return any(entry.is_gradient for entry in self.entries)

    def without_gradients(self) -> Dump:
        """The dump without the backward pass."""
        return replace(self, entries=tuple(entry for entry in self.entries if not entry.is_gradient))

    def with_parameters_apart(self) -> Dump:
        """Move the parameters of the model out of the entries: they are not part of the run."""
        parameters = tuple(entry for entry in self.entries if entry.port == PARAMETER_PORT)
        if not parameters:
            return self
        entries = tuple(entry for entry in self.entries if entry.port != PARAMETER_PORT)
        return replace(self, entries=entries, parameters=parameters)

    def without_oversized_names(self) -> Dump:
        """Leave out the entries whose names no real model has, and report each as a problem."""
        most = MOST_PARTS  # of characters, too: a shorter name cannot have too many parts
        long = [entry for entry in self.entries if len(entry[0]) > most or len(entry[1]) > most or len(entry[2]) > most]
        refused = [(entry, why) for entry in long if (why := _why_refused(entry))]
        if not refused:
            return self
        unfit = {id(entry) for entry, _ in refused}
        problems = (
            Problem("", f"the name of tensor {entry.name[:60]!r}… {why}; it is left out", is_unread=True)
            for entry, why in refused
        )
        entries = tuple(entry for entry in self.entries if id(entry) not in unfit)
        return replace(self, entries=entries, problems=(*self.problems, *problems))


def _why_refused(entry: Entry) -> str | None:
    """Why an entry's name is refused. Layer and port are checked, too, since a dump may give them independently."""
    return next(filter(None, map(why_refused, (entry.name, entry.layer, entry.port))), None)
