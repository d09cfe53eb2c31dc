"""Rows by module: the tree of the dotted names, and the visible lines of it when some modules are folded.

A module's own output is on the module's line; its other entries (inputs, further outputs) and the modules in it follow,
one level deeper. A module without a row of its own also has a line, and a folded one shows the worst verdict within. A
thread builds the tree; the visible lines are computed on columns of numbers, so that folding one of a hundred thousand
modules is instant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.util.slices import SlicedDict, release

NOWHERE = -1
Integers = NDArray[np.intp]
Mask = NDArray[np.bool_]


class Line(NamedTuple):
    """One line of the table: a row, a module, or both."""

    row: int
    """Position in the listing; ``NOWHERE`` for a module without a row."""
    node: int = NOWHERE
    """The module that this line folds; ``NOWHERE`` for a row without content."""
    depth: int = 0


@dataclass(frozen=True)
class Lines:
    """Lines from top to bottom, with one array for each attribute."""

    rows: Integers
    nodes: Integers
    depths: Integers

    @classmethod
    def flat(cls, rows: Integers) -> Lines:
        """Rows without modules. Constant attributes are stored once, because the event loop makes these."""
        nowhere, top = (np.broadcast_to(np.intp(number), len(rows)) for number in (NOWHERE, 0))
        return cls(rows, nowhere, top)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> Line:
        return Line(int(self.rows[at]), int(self.nodes[at]), int(self.depths[at]))

    def __iter__(self) -> Iterator[Line]:
        return map(self.__getitem__, range(len(self)))

    def of_row(self, row: int) -> int | None:
        """The index of a row's line."""
        return _first(self.rows == row)

    def of_node(self, node: int) -> int | None:
        """The index of the line that folds a module."""
        return _first(self.nodes == node)

    def around(self, at: int) -> int | None:
        """The index of the line of the module that contains a line."""
        above = np.flatnonzero((self.nodes[:at] != NOWHERE) & (self.depths[:at] < self.depths[at]))
        return int(above[-1]) if len(above) else None


def _first(mask: Mask) -> int | None:
    return int(mask.argmax()) if mask.any() else None


@dataclass(slots=True)
class _Node:
    """A module while the tree is built."""

    path: str
    depth: int
    rows: list[int] = field(default_factory=list)
    children: list[int] = field(default_factory=list)


class _Kept(NamedTuple):
    """What a choice of rows leaves of a tree."""

    is_kept: Mask
    """For each entry, whether it is a row that is kept."""
    is_holding: Mask
    """For each module, whether such a row is in it or below it."""
    can_fold: Mask
    """For each module, whether folding it would hide anything."""
    heads: Mask
    """For each entry, whether it is on its module's line."""


@dataclass(frozen=True)
class Tree:
    """Modules from top to bottom, each followed by everything within it."""

    paths: list[str]
    depths: Integers
    ends: Integers
    """For each module, the first one after it that is not within it."""
    is_parent: Mask
    starts: Integers
    """Where each module's entries begin: one a row, or one for a module without rows.

    Has one more element than modules.
    """
    rows: Integers
    """The row of each entry, or ``NOWHERE``."""

    @classmethod
    def of(cls, names: Sequence[str], is_input: Mask) -> Tree:
        """Build the tree of layer names; a module's own output comes before its inputs."""
        nodes = _grown(names)
        order, ends = _walked(nodes)
        laid = [nodes[at] for at in order]
        count, rows = len(laid), [sorted(node.rows, key=lambda row: bool(is_input[row])) or [NOWHERE] for node in laid]
        starts = np.zeros(count + 1, np.intp)
        np.cumsum(np.fromiter((len(own) for own in rows), np.intp, count), out=starts[1:])
        tree = cls(
            [node.path for node in laid],
            np.fromiter((node.depth for node in laid), np.intp, count),  # from a list, it would be one long call
            np.fromiter((end for end in ends), np.intp, count),
            np.fromiter((bool(node.children) for node in laid), np.bool_, count),
            starts,
            np.fromiter((row for own in rows for row in own), np.intp, int(starts[-1])),
        )
        release(rows, laid, nodes, order, ends)
        tree.lines(tree.usual_folds, np.ones(len(names), np.bool_))  # computes here what showing it needs
        return tree

    @cached_property
    def _owners(self) -> Integers:
        """The module of each entry."""
        return np.repeat(np.arange(len(self.paths)), np.diff(self.starts))

    def release(self) -> None:
        """Free the names, in slices: the tree is shown no more."""
        release(self.paths)

    def path(self, node: int) -> str:
        """A module's full name."""
        return self.paths[node]

    def within(self, node: int) -> Integers:
        """Positions of a module's rows and of all below it."""
        rows: Integers = self.rows[self.starts[node] : self.starts[self.ends[node]]]
        return np.extract(rows != NOWHERE, rows)

    def around(self, row: int) -> Integers:
        """The modules that a row is in, from the outermost one to its own."""
        own = self._owners[self.rows == row][0]
        modules: Integers = np.flatnonzero(self.ends[: own + 1] > own)
        return modules

    @cached_property
    def usual_folds(self) -> Mask:
        """Numbered blocks, such as layers.0: the first question is which of them is wrong."""
        is_numbered = (path.rpartition(".")[2].isdecimal() for path in self.paths)
        return self.is_parent & np.fromiter(is_numbered, np.bool_, len(self.paths))

    def lines(self, is_folded: Mask, kept: Mask) -> Lines:
        """The lines to show: nothing below a folded module, and no module without a kept row."""
        if not len(self.paths):
            return Lines.flat(np.empty(0, np.intp))
        is_kept, is_holding, can_fold, heads = self._all_kept if kept.all() else self._kept(kept)
        is_shown = is_holding & ~self._hidden(is_folded)
        shown = np.flatnonzero(is_shown[self._owners] & (heads | (is_kept & ~is_folded[self._owners])))
        rows, heads, owners = np.where(is_kept[shown], self.rows[shown], NOWHERE), heads[shown], self._owners[shown]
        nodes = np.where(heads & can_fold[owners], owners, NOWHERE)
        return Lines(rows, nodes, self.depths[owners] + ~heads)

    def _kept(self, kept: Mask) -> _Kept:
        is_kept = (self.rows != NOWHERE) & kept[self.rows]
        until = np.concatenate(([0], np.cumsum(is_kept)))
        own = until[self.starts[1:]] - until[self.starts[:-1]]
        is_holding = until[self.starts[self.ends]] > until[self.starts[:-1]]
        return _Kept(is_kept, is_holding, self.is_parent | (own > 1), self._heads(is_kept))

    @cached_property
    def _all_kept(self) -> _Kept:
        """The result of ``_kept`` if nothing is left out, as when folding and unfolding."""
        return self._kept(np.ones(int(self.rows.max(initial=0)) + 1, np.bool_))

    def _hidden(self, is_folded: Mask) -> Mask:
        """Whether each module is within a folded one."""
        begins, ends = is_folded.nonzero()[0] + 1, self.ends[is_folded]
        count = len(is_folded) + 1
        around = np.cumsum(np.bincount(begins, minlength=count) - np.bincount(ends, minlength=count))
        hidden: Mask = around[:-1] > 0
        return hidden

    def _heads(self, is_kept: Mask) -> Mask:
        """For each module's entries, the one on its line: the first that is kept, or its first."""
        count = len(self.rows)
        firsts = np.minimum.reduceat(np.where(is_kept, np.arange(count), count), self.starts[:-1])
        heads = np.zeros(count, np.bool_)
        heads[np.where(firsts < count, firsts, self.starts[:-1])] = True
        return heads


def _grown(names: Sequence[str]) -> list[_Node]:
    """All modules in order of first appearance; the first of them is the root, which has no line."""
    nodes = [_Node("", -1)]
    found: SlicedDict[str, int] = SlicedDict()
    for row, name in enumerate(names):
        at = found.get(name)
        nodes[_add(nodes, name, found) if at is None else at].rows.append(row)
    found.release()
    return nodes


def _add(nodes: list[_Node], name: str, found: SlicedDict[str, int]) -> int:
    """The node of a name, created with all its parents if needed."""
    missing = [name]
    while (above := missing[-1].rpartition(".")[0]) and above not in found:
        missing.append(above)
    parent: int = found.get(above, 0)
    for path in reversed(missing):
        nodes.append(_Node(path, nodes[parent].depth + 1))
        nodes[parent].children.append(len(nodes) - 1)
        parent = found[path] = len(nodes) - 1
    return parent


def _walked(nodes: Sequence[_Node]) -> tuple[list[int], list[int]]:
    """The nodes below the root from top to bottom, and for each the number of nodes up to its end."""
    order: list[int] = []
    ends = [0] * (len(nodes) - 1)
    stack = [(at, NOWHERE) for at in reversed(nodes[0].children)]
    while stack:
        at, begun = stack.pop()
        if begun != NOWHERE:
            ends[begun] = len(order)
            continue
        stack.append((at, len(order)))
        order.append(at)
        stack.extend((child, NOWHERE) for child in reversed(nodes[at].children))
    return order, ends
