"""What stands around a tensor in its dump, and may be what the candidate lost or added twice.

These are what its layer was given, and what the layer's parts were given and gave: a residual is one of
them. Only tensors of the same size are read.
"""

from __future__ import annotations

from tensordiff.dump.dtypes import Array, is_float
from tensordiff.dump.model import Dump, Entry
from tensordiff.errors import DumpError, printable

_MOST = 16


def context_of(entry: Entry, dump: Dump, size: int) -> dict[str, Array]:
    """Tensors of a dump, by name, that an output of so many elements may be off by; the layer's inputs first."""
    found: dict[str, Array] = {}
    if entry.is_input:
        return found
    near = (other for other in dump.entries if other.step == entry.step and _is_near(other, entry))
    for other in sorted(near, key=lambda other: other.layer != entry.layer):
        if len(found) < _MOST:
            found |= _read(other, size)
    return found


def given_to(entry: Entry, dump: Dump, size: int) -> dict[str, Array]:
    """What an output's own layer was given, by name, as far as it has as many elements."""
    if entry.is_input:
        return {}
    found: dict[str, Array] = {}
    for other in dump.entries:
        if other.layer == entry.layer and other.step == entry.step and _is_near(other, entry) and len(found) < _MOST:
            found |= _read(other, size)
    return found


def _is_near(other: Entry, entry: Entry) -> bool:
    if other.layer == entry.layer:
        return other.is_input and other.call == entry.call
    parent, _, part = other.layer.rpartition(".")
    return bool(part) and parent == entry.layer


def _read(other: Entry, size: int) -> dict[str, Array]:
    """An entry by its name, or nothing: one that cannot be read has a row of its own, which says why."""
    try:
        fits = other.spec.size == size and is_float(other.spec.dtype)
        return {printable(other.name): other.read()} if fits else {}
    except DumpError:
        return {}
