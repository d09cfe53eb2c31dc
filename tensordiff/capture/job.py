"""Sources: models that can be run, as they are named on the command line.

``hf:PATH_OR_ID``, ``max:PATH_OR_ID``, ``py:FILE.py:FUNCTION`` and ``onnx:FILE``. A text that names none of
these is a path, and whether something lies there is for ``dump`` to say. Nothing is looked up here.

What a child is given on its standard input, as one line of JSON: the source, how to run it, where to write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from tensordiff.capture.settings import Settings
from tensordiff.errors import CaptureError, printable

Kind = Literal["hf", "max", "py", "onnx"]
_SOURCE = re.compile(r"(hf|max|py|onnx):(.*)", re.DOTALL)


@dataclass(frozen=True)
class Source:
    """A model that can be run."""

    kind: Kind
    target: str
    """A folder, a file or a hub's id."""
    function: str | None = None
    """Of a ``py:`` source: what to call for the model and its inputs."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.target}" + (f":{self.function}" if self.function else "")

    def absolute(self) -> Source:
        """The same, wherever it is run from; a hub's id stays as it is."""
        path = Path(self.target).expanduser()
        if not path.exists():
            return self
        # A graph's weights lie beside its name, which in a hub's cache is a link.
        return replace(self, target=str(path.absolute() if self.kind == "onnx" else path.resolve()))


def parse_source(text: str) -> Source | None:
    """The source that a text names; None where it is a path like any other."""
    found = _SOURCE.fullmatch(text)
    if found is None:
        return None
    kind, target = cast(Kind, found[1]), found[2]
    function = None
    if kind == "py":
        target, _, function = target.rpartition(":")
    if not target or function == "":
        spelled = {"py": "py:FILE.py:FUNCTION", "onnx": "onnx:FILE"}.get(kind, f"{kind}:PATH_OR_ID")
        raise CaptureError(f"{printable(text)}: does not say what to run; write {spelled}")
    return Source(kind, target, function)


@dataclass(frozen=True)
class Job:
    """One run of a child."""

    source: Source
    settings: Settings
    output: str
    """The folder that the dump, or whatever else is made, goes to."""
    task: str = "capture"
    """``capture``, or another that the child knows: ``replay``."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """What the task needs beside."""

    def encode(self) -> str:
        """As one line."""
        source = {"kind": self.source.kind, "target": self.source.target, "function": self.source.function}
        found = {"source": source, "settings": self.settings.to_json(), "output": self.output, "task": self.task}
        return json.dumps({**found, "more": self.more})

    @classmethod
    def decode(cls, line: str | bytes) -> Job:
        """What ``encode`` gave, read back."""
        found = json.loads(line)
        settings = Settings.from_json(found["settings"])
        return cls(Source(**found["source"]), settings, found["output"], found["task"], found["more"])
