"""Recognize the axes of a tensor (tokens, channels, heads) from the dump around it.

Only the dump is used: the number of tokens of a step is the length of its ids; the channels per head follow from a norm
over heads, the rotary angles or the attention weights. Only headers are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from tensordiff.compare.look.logits import is_logits
from tensordiff.compare.measure.diff import unravel
from tensordiff.compare.row import readable_spec
from tensordiff.dump.model import Dump, Entry

_SPLIT = re.compile(r"(^|[._])(q|k|v|qkv|query|key|value|query_key_value|c_attn|wq|wk|wv|wqkv)(_proj)?$", re.I)
_JOINED = re.compile(r"(attn|attention).*[._](o_proj|out_proj|c_proj|wo|dense)$", re.I)
_IDS = re.compile(r"input_ids|position_ids")
_QUERY = re.compile(r"(^|[._])(q|query)(_proj)?$")


class NamedShape(NamedTuple):
    """A shape with a name for each axis. Splitting or adding axes does not change the order of the elements."""

    names: tuple[str, ...]
    shape: tuple[int, ...]

    def with_heads(self, heads: int) -> NamedShape | None:
        """The shape with the last axis split into heads; None if that leaves a remainder."""
        if heads < 2 or not self.shape or self.shape[-1] % heads:
            return None
        return NamedShape(
            (*self.names[:-1], "head", "head channel"), (*self.shape[:-1], heads, self.shape[-1] // heads)
        )

    def at_least_2d(self) -> NamedShape:
        """The shape with at least two axes."""
        missing = max(0, 2 - len(self.shape))
        return NamedShape(("",) * missing + self.names, (1,) * missing + self.shape)

    def index_in(self, other: NamedShape, index: Sequence[int]) -> tuple[int, ...]:
        """The index of the same element in another shape."""
        flat = 0
        for at, size in zip(index, self.shape, strict=True):
            flat = flat * size + at
        return unravel(flat, other.shape)


def name_axes(entry: Entry, shape: tuple[int, ...], tokens: int | None) -> NamedShape:
    """Name the axes of an entry's tensor, in the shape in which it is compared."""
    names = ["batch" if axis == 0 else f"axis {axis}" for axis in range(len(shape))]
    is_ids = len(shape) < 3 and tokens is not None and shape[-1:] == (tokens,)
    if is_ids:
        names[-1] = "token"
    elif shape:
        names[-1] = "word" if is_logits(entry.layer, entry.port, shape) else "channel"
        _name_inner(names, shape, tokens)
    return NamedShape(tuple(names), shape)


def _name_inner(names: list[str], shape: tuple[int, ...], tokens: int | None) -> None:
    """Name the axes before the last one."""
    token_axes = [axis for axis in range(len(shape) - 1) if shape[axis] == tokens and tokens != 1]
    token = token_axes[-1] if token_axes else None
    if token is None:
        if len(shape) == 2 and shape[0] != 1:
            names[0] = "row"
        return
    names[token] = "token"
    is_weights = len(shape) >= 3 and shape[-1] == tokens and token == len(shape) - 2
    if is_weights:
        names[-1] = "key token"
    if token == len(shape) - 3:
        names[token + 1] = "head"
    elif token >= 2 or (token == 1 and is_weights):
        names[token - 1] = "head"


def token_ids_of(dump: Dump, step: int) -> tuple[int, ...]:
    """The token ids of a step; empty if the dump does not have them."""
    ids = dump.facts.get("token_ids")
    return tuple(ids) if step == 0 and isinstance(ids, list) and all(isinstance(i, int) for i in ids) else ()


class DumpAxes:
    """What the tensors of a dump show about its axes. Its entries are searched once: 100,000 of them take a while."""

    def __init__(self, dump: Dump) -> None:
        self._dump = dump

    def tokens_of(self, step: int) -> int | None:
        """The number of tokens of a step, from its input ids; None if no ids were dumped."""
        for entry in self._found.ids.get(step, ()):
            spec = readable_spec(entry)
            if spec is not None and spec.dtype.kind in "iu" and 1 <= len(spec.shape) <= 2:
                return spec.shape[-1]
        ids = self._dump.facts.get("token_ids")
        return len(ids) if step == 0 and isinstance(ids, list) and not any(isinstance(i, list) for i in ids) else None

    def heads_of(self, entry: Entry, channels: int) -> int | None:
        """The number of heads in an entry's channels; None if it has none or the dump does not show how many."""
        has_heads = _JOINED.search(entry.layer) if entry.is_input else _SPLIT.search(entry.layer)
        if not has_heads:
            return None
        sizes = (size for size in self._head_sizes(entry) if size and channels % size == 0 and channels > size)
        size = next(sizes, None)
        return channels // size if size else None

    def _head_sizes(self, entry: Entry) -> Iterator[int | None]:
        """Possible numbers of channels per head, the most reliable first."""
        near = self._near(entry)
        for other in near:
            spec = readable_spec(other) if other.layer.endswith(("q_norm", "k_norm")) else None
            yield spec.shape[-1] if spec and len(spec.shape) >= 3 and spec.shape[-2] < spec.shape[-1] * 64 else None
        for other in self._found.rotary:
            spec = readable_spec(other)
            yield spec.shape[-1] if spec and len(spec.shape) >= 2 else None
        yield _size_by_attention_weights(near)

    def _near(self, entry: Entry) -> list[Entry]:
        """The module around an entry and what lies directly in it, in the order of the dump."""
        around, entries, within = _parent(entry.layer), self._dump.entries, self._found.within
        itself = [at for at in within.get((entry.step, _parent(around)), ()) if entries[at].layer == around]
        return [entries[at] for at in sorted({*itself, *within.get((entry.step, around), ())})]

    @property
    def is_found(self) -> bool:
        """Whether the entries were searched."""
        return "_found" in vars(self)

    def find(self) -> None:
        """Search the entries."""
        _ = self._found

    @cached_property
    def _found(self) -> _Found:
        found = _Found({}, [], {})
        for at, entry in enumerate(self._dump.entries):
            found.within.setdefault((entry.step, _parent(entry.layer)), []).append(at)
            if entry.is_input:
                if _IDS.search(entry.port) or "embed" in entry.layer:
                    found.ids.setdefault(entry.step, []).append(entry)
            elif "rotary" in entry.layer.rpartition(".")[2]:
                found.rotary.append(entry)
        return found


class _Found(NamedTuple):
    """Entries of a dump that show something about its axes."""

    ids: dict[int, list[Entry]]
    """Inputs that may be token ids, by step."""
    rotary: list[Entry]
    within: dict[tuple[int, str], list[int]]
    """Positions of entries, by their step and the module they lie in."""


def _parent(layer: str) -> str:
    return layer.rpartition(".")[0]


def _size_by_attention_weights(near: Sequence[Entry]) -> int | None:
    """Channels per head from attention weights, which have one matrix per head among which the queries are divided."""
    specs = [(other, spec) for other in near if not other.is_input and (spec := readable_spec(other))]
    square = (s.shape for _, s in specs if len(s.shape) == 4 and s.shape[-1] == s.shape[-2])
    queries = (s.shape[-1] for other, s in specs if _QUERY.search(other.layer) and len(s.shape) >= 2)
    shape, width = next(square, None), next(queries, None)
    return width // shape[1] if shape and width and width % shape[1] == 0 else None
