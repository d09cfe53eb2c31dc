"""Sources, which are models that can be run, as the command line names them; and jobs, which are what a child runs.

A text that begins with the kind of an engine, ``hf:PATH_OR_ID`` or ``onnx:FILE``, is a source; every other text is a
path. Nothing is looked up here. A job is one line of JSON on the child's standard input: the source, how to run it and
where to write.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tensordiff.capture.engines import ENGINES, spellings
from tensordiff.capture.settings import Injection, Settings
from tensordiff.errors import CaptureError, printable

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")
"""The beginning of a URL; a ``Path`` keeps only one of its slashes."""


@dataclass(frozen=True)
class Source:
    """A model that can be run."""

    kind: str
    """A key of ``ENGINES``."""
    target: str
    """A folder, a file or the id of a model on the hub."""
    function: str | None = None
    """For a Python file: the function to call for the model and its inputs."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.target}" + (f":{self.function}" if self.function else "")

    def absolute(self) -> Source:
        """The same source, independent of the working folder; the id of a model is unchanged."""
        if not _exists(self.target):
            return self
        path = Path(self.target).expanduser()
        # A file's companions lie beside its name, which in the hub's cache is a link.
        keeps_link = ENGINES[self.kind].takes_file and not self.function
        return replace(self, target=str(path.absolute() if keeps_link else path.resolve()))

    @property
    def is_absolute(self) -> bool:
        """Whether it means the same in every folder: an absolute path, or the id of a model that is no folder here."""
        if Path(self.target).is_absolute():
            return True
        return not ENGINES[self.kind].takes_file and not _exists(self.target)


def _exists(target: str) -> bool:
    """Whether a file or folder has this name. A manifest may contain impossible names, or an unknown user's home."""
    return os.path.exists(os.path.expanduser(target))  # noqa: PTH110, PTH111 - Path raises in these cases


def parse_source(text: str) -> Source | None:
    """The source that a text names; None if it is a plain path."""
    kind, colon, target = text.partition(":")
    if not colon or not kind.isidentifier() or kind not in ENGINES:
        return None
    engine, function = ENGINES[kind], None
    if engine.takes_function:
        target, _, function = target.rpartition(":")
    if not target or function == "":
        raise CaptureError(f"{printable(text)}: does not say what to run; write {engine.spelling}")
    if engine.takes_path and (url := _URL.match(target)):
        wanted = "a file" if engine.takes_file else "a folder on this machine, or the id of a model on the hub"
        raise CaptureError(f"{kind}:{url[1]}://…: is a URL, and only dumps may be; copy the model, and give {wanted}")
    return Source(kind, target, function)


def required_source(text: str) -> Source:
    """Parse a source; if the text is none, raises ``CaptureError`` with a guess at what was meant."""
    source = parse_source(text)
    if source is None:
        meant = f"did you mean {_likely_source(text)}? Sources are" if _likely_source(text) else "write"
        raise CaptureError(f"{printable(text)}: is not a source; {meant} {spellings()}")
    return source.absolute()


def _likely_source(text: str) -> str:
    """The source that a plain path may have been meant as; empty if nothing there looks like one."""
    path = Path(text).expanduser()
    kinds = {".py": f"py:{text}:FUNCTION", ".onnx": f"onnx:{text}", ".gguf": f"llamacpp:{text}"}
    meant = f"hf:{text}" if (path / "config.json").is_file() else kinds.get(path.suffix.lower(), "")
    return printable(meant) if path.exists() else ""


def refuse_settings(source: Source, settings: Settings) -> None:
    """Refuse settings that a source's engine cannot honour, before a framework is imported."""
    default = Settings()
    for name, why in ENGINES[source.kind].refuses.items():
        if getattr(settings, name) != getattr(default, name):
            option = f"--{name.replace('_', '-')}"
            raise CaptureError(f"{printable(source)}: {option} is not for {source.kind}: sources; {why}")
    if settings.gradients and not ENGINES[source.kind].has_gradients:
        able = " and ".join(f"{kind}:" for kind, engine in ENGINES.items() if engine.has_gradients)
        raise CaptureError(
            f"{printable(source)}: --gradients is not for {source.kind}: sources, which run only forward; "
            f"{able} sources have gradients"
        )


REPLAY = "replay"
"""The task of a job that replays a layer."""
Writes = Literal["dump", "listing", "stream"]
"""What a job leaves in its folder: a dump; a dump without values (``listing``); or tensors that are read and removed
while it runs (``stream``).
"""


@dataclass(frozen=True)
class Job:
    """One run of a source."""

    source: Source
    settings: Settings
    output: str
    """The folder that the dump is written to."""
    task: str = "capture"
    """``capture``, or ``replay``: one layer alone, on the inputs of a dump."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the task; for ``replay``: ``dump``, ``layer``, ``step``, ``call`` and ``bundle``."""
    signature: str | None = None
    """Proves later that this user ran it; see ``provenance``."""
    lists_files: bool = False
    """Whether the child reports the files it was made of."""
    writes: Writes = "dump"
    window_bytes: int = 0
    """For a stream, how many bytes may wait to be read."""

    @property
    def reference(self) -> str | None:
        """The dump that the run takes tensors from: the one to replay, else the one to inject."""
        if self.task == REPLAY:
            return str(self.more["dump"])
        return self.settings.inject.dump if self.settings.inject is not None else None

    def facts(self) -> dict[str, Any]:
        """The source and settings, for the manifest."""
        # Whether an older dump was overwritten does not matter for how this one was made.
        return {"source": str(self.source), "settings": replace(self.settings, force=False).to_json()}

    def encode(self) -> str:
        """The job as one line of JSON."""
        source = {"kind": self.source.kind, "target": self.source.target, "function": self.source.function}
        fields = {"source": source, "settings": self.settings.to_json(), "output": self.output, "task": self.task}
        rest = {"more": self.more, "signature": self.signature, "lists_files": self.lists_files}
        return json.dumps({**fields, **rest, "writes": self.writes, "window_bytes": self.window_bytes})

    @classmethod
    def decode(cls, line: str | bytes) -> Job:
        """Parse a line that ``encode`` made."""
        fields = json.loads(line)
        source, settings = Source(**fields["source"]), Settings.from_json(fields["settings"])
        rest = (fields[name] for name in ("more", "signature", "lists_files", "writes", "window_bytes"))
        return cls(source, settings, fields["output"], fields["task"], *rest)


def replay_as_injection(job: Job) -> Job:
    """The same job as an injection of the dump to be replayed; the engine finds the layer in the model.

    This is a replay for engines that cannot call a layer by itself.
    """
    return replace(
        job,
        settings=replace(job.settings, inject=replayed_dump(job), ops=None, optimized=False, steps=1, gradients=False),
    )


def replayed_dump(job: Job) -> Injection:
    """The injection for a replay; refuses what only engines that call a layer by itself can do."""
    kind = job.source.kind
    if job.more.get("bundle") is not None:
        raise CaptureError(f"{printable(job.source)}: a layer of {kind}: sources cannot be exported; leave -o out")
    if int(job.more.get("step", 0)):
        raise CaptureError(
            f"{printable(job.source)}: of {kind}: sources only step 0 can be replayed; "
            "a later step needs what the layers kept from the steps before it"
        )
    return Injection(str(job.more["dump"]))
