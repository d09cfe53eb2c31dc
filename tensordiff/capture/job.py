"""What a child is given on its standard input, as one line of JSON: the source, how to run it, where to write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensordiff.capture.settings import Settings
from tensordiff.capture.source import Source


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
