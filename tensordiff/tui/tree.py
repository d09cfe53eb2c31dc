"""Rows by module: the tree that dotted names spell, and which of its lines show when some are folded.

A module's own output stands on the module's line; what else it has (inputs, further outputs) and what lies
within it follow, one step further in. A module without a row of its own has a line all the same, and a
folded one tells the worst verdict within.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NOWHERE = -1


class Line(NamedTuple):
    """One line of the table: a row, a module, or both."""

    row: int
    """Position in the listing; ``NOWHERE`` for a module without a row."""
    node: int = NOWHERE
    """The module that this line folds; ``NOWHERE`` for a row that holds nothing."""
    depth: int = 0


@dataclass(slots=True)
class _Node:
    path: str
    depth: int
    rows: list[int] = field(default_factory=list)
    children: list[int] = field(default_factory=list)
    begin: int = 0
    end: int = 0
    """Which of the rows, as the tree orders them, are its own or lie within."""


@dataclass(frozen=True)
class Tree:
    """Modules in order of first appearance; node 0 is the root and has no line."""

    nodes: tuple[_Node, ...]
    rows: NDArray[np.intp]
    """Positions of all rows, each module's together."""

    @classmethod
    def of(cls, names: Sequence[str], is_input: NDArray[np.bool_]) -> Tree:
        """From layer names; a name's own output before its inputs."""
        nodes = [_Node("", -1)]
        found: dict[str, int] = {}
        for position, name in enumerate(names):
            at = found.get(name)
            nodes[_add(nodes, name, found) if at is None else at].rows.append(position)
        for node in nodes:
            if len(node.rows) > 1:
                node.rows.sort(key=lambda at: bool(is_input[at]))
        return cls(tuple(nodes), _lay_out(nodes))

    def path(self, node: int) -> str:
        """A module's whole name."""
        return self.nodes[node].path

    def within(self, node: int) -> NDArray[np.intp]:
        """Positions of a module's rows and of all below it."""
        return self.rows[self.nodes[node].begin : self.nodes[node].end]

    def usual_folds(self) -> set[str]:
        """Blocks that are counted, such as layers.0: what one wants to see first is which of them."""
        return {node.path for node in self.nodes if node.children and node.path.rpartition(".")[2].isdecimal()}

    def lines(self, folded: Collection[str], kept: NDArray[np.bool_]) -> list[Line]:
        """The lines to show: nothing below a folded module, nothing that holds none of the rows kept."""
        until = np.concatenate(([0], np.cumsum(kept[self.rows]))).tolist()
        lines, stack = [Line(at) for at in self.nodes[0].rows if kept[at]], [*reversed(self.nodes[0].children)]
        while stack:
            at = stack.pop()
            node = self.nodes[at]
            if until[node.begin] == until[node.end]:
                continue
            is_folded = node.path in folded
            lines += self._own_lines(at, node, is_folded, kept)
            if not is_folded:
                stack.extend(reversed(node.children))
        return lines

    def _own_lines(self, at: int, node: _Node, is_folded: bool, kept: NDArray[np.bool_]) -> list[Line]:
        rows = [row for row in node.rows if kept[row]]
        if not node.children and len(rows) <= 1:
            return [Line(row, NOWHERE, node.depth) for row in rows]
        first = rows[0] if rows else NOWHERE
        rest = [] if is_folded else [Line(row, NOWHERE, node.depth + 1) for row in rows[1:]]
        return [Line(first, at, node.depth), *rest]


def _add(nodes: list[_Node], name: str, found: dict[str, int]) -> int:
    """The node of a name, made with all above it where they are not there yet."""
    missing = [name]
    while (above := missing[-1].rpartition(".")[0]) and above not in found:
        missing.append(above)
    parent = found.get(above, 0)
    for path in reversed(missing):
        nodes.append(_Node(path, nodes[parent].depth + 1))
        nodes[parent].children.append(len(nodes) - 1)
        parent = found[path] = len(nodes) - 1
    return parent


def _lay_out(nodes: Sequence[_Node]) -> NDArray[np.intp]:
    """Give each node its stretch of the rows."""
    rows: list[int] = []
    stack = [(0, False)]
    while stack:
        at, is_left = stack.pop()
        node = nodes[at]
        if is_left:
            node.end = len(rows)
            continue
        node.begin = len(rows)
        rows += node.rows
        stack.append((at, True))
        stack.extend((child, False) for child in reversed(node.children))
    return np.array(rows, np.intp)
