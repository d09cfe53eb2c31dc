"""Which module of the exported model a node comes from, according to the node itself.

torch's exporters record it in two ways. The newer one stores in a node's properties the modules around it from the
outermost, their classes, and the stack trace. The older one names nodes ``/model/layers.0/mlp/down_proj/MatMul``;
builders that follow it do the same, and TensorFlow's names are read in the same way. In such names a module that is
called again has the suffix ``_1``, and a part of a ``Sequential`` appears by its whole name:
``/blocks.0/blocks.0.1/Relu``.

All of it is text from a stranger: it is parsed, never run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from onnx import NodeProto

_SCOPES = "pkg.torch.onnx.name_scopes"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
_STACK = "pkg.torch.onnx.stack_trace"
_DEEPEST = 64  # the deepest nesting of modules that is told apart
_LONGEST = 1 << 16  # characters of a property that are read
_FRAME = re.compile(r'File "([^"<\n][^"\n]*)", line (\d{1,9})')
_TRACED = re.compile(r"^(\S[^(\n]*)\((\d{1,9})\): ")  # the older exporter's, innermost first
_AGAIN = re.compile(r"(.+)_(\d{1,6})")
_CALLED = re.compile(r"@(\d{1,6})")
_NO_MODULE = "_empty_nn_module_stack"  # what torch writes for nodes of its own passes
_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")


class Scope(NamedTuple):
    """Where a node comes from."""

    modules: tuple[str, ...] = ()
    """The modules around it from the outermost, each by its full name; the model itself is not among them."""
    classes: tuple[str | None, ...] = ()
    """The class of each module, if known."""
    root_class: str | None = None
    marks: tuple[str, ...] = ()
    """For each module, what tells one call of it from another, if the exporter records that."""
    file: str | None = None
    line: int | None = None
    op: str | None = None
    """The exporter's own name for the operation, if it records one."""
    is_known: bool = True
    """Whether the node records where it comes from; nodes added by a later pass do not."""


def scopes(nodes: Sequence[NodeProto], weights: Iterable[str]) -> list[Scope]:
    """Where each node comes from."""
    named = _Names(frozenset(_holders(weights)))
    return [_from_properties(node) or named.scope(node) for node in nodes]


def _holders(weights: Iterable[str]) -> Iterable[str]:
    """Modules that the names of weights imply."""
    for weight in weights:
        parts = weight.split(".")[:_DEEPEST]
        yield from (".".join(parts[:k]) for k in range(1, len(parts)))


# --- torch.onnx.export(dynamo=True)


def _from_properties(node: NodeProto) -> Scope | None:
    said = {each.key: each.value for each in node.metadata_props}
    names = _texts(said.get(_SCOPES))
    if not names:
        return None
    classes = _texts(said.get(_CLASSES))
    known: list[str] | list[None] = classes if len(classes) == len(names) else [None] * len(names)
    around = [(name, kind) for name, kind in zip(names[:-1], known[:-1], strict=True) if _is_module(name)][:_DEEPEST]
    modules = tuple(_CALLED.sub("", name) for name, _ in around)
    marks = tuple("@".join(_CALLED.findall(name)) for name, _ in around)
    root = known[0] if names[0] == "" and len(names) > 1 else None
    frames = _FRAME.findall(said.get(_STACK, "")[-_LONGEST:])
    file, line = frames[-1] if frames else (None, None)
    kinds, is_known = tuple(kind for _, kind in around), _is_module(names[0]) or names[0] == ""
    return Scope(modules, kinds, root, marks, _short(file), None if line is None else int(line), names[-1], is_known)


def _is_module(name: str) -> bool:
    return bool(name) and not name.startswith(_NO_MODULE)


def _texts(spelled: str | None) -> list[str]:
    """Parse a list of strings in Python's notation; empty if it is something else."""
    if spelled is None or len(spelled) > _LONGEST:
        return []
    try:
        found = ast.literal_eval(spelled)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    return found if isinstance(found, list) and all(isinstance(each, str) for each in found) else []


# --- names with slashes


class _Names:
    """Reads scopes from names. The meaning of a suffix depends on the names before it."""

    def __init__(self, holders: frozenset[str]) -> None:
        self._holders = holders
        self._seen: set[str] = set()

    def scope(self, node: NodeProto) -> Scope:
        """The scope in a node's name."""
        modules: list[str] = []
        marks: list[str] = []
        last = ""
        for part in list(filter(None, node.name.split("/")[:-1]))[:_DEEPEST]:
            name, last, mark = self._module(modules[-1] if modules else "", last, part)
            modules.append(name)
            marks.append(mark)
        self._seen.update(modules)
        file, line = _traced(node.doc_string)
        return Scope(tuple(modules), (None,) * len(modules), None, tuple(marks), file, line, is_known="/" in node.name)

    def _module(self, parent: str, last: str, part: str) -> tuple[str, str, str]:
        """A module's full name, its own part of that name, and what tells this call from the first."""
        name = self._joined(parent, last, part)
        again = _AGAIN.fullmatch(part)
        if again is None or name in self._holders or name in self._seen:
            return name, part, ""
        first = self._joined(parent, last, again[1])
        return (first, again[1], again[2]) if first in self._seen else (name, part, "")

    def _joined(self, parent: str, last: str, part: str) -> str:
        """The full name of a part; a part that repeats its parent's name is a full name already, from there on."""
        plain = f"{parent}.{part}" if parent else part
        if not last or not part.startswith(f"{last}.") or plain in self._holders:
            return plain
        return f"{parent}{part.removeprefix(last)}"


def _traced(text: str) -> tuple[str | None, int | None]:
    found = _TRACED.match(text[:_LONGEST])
    return (None, None) if found is None else (_short(found[1]), int(found[2]))


def _short(file: str | None) -> str | None:
    """A file as dumps name it: relative to its package, if installed."""
    return None if file is None else _INSTALLED.sub("", file).replace("\\", "/")
