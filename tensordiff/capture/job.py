"""Sources, models that can be run, as they are named on the command line; and the job that a child is given.

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
"""How a URL begins; as a ``Path`` it has one slash."""


@dataclass(frozen=True)
class Source:
    """A model that can be run."""

    kind: str
    """A key of ``ENGINES``."""
    target: str
    """A folder, a file or the id of a model on the hub."""
    function: str | None = None
    """Where the target is a file of Python: what to call for the model and its inputs."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.target}" + (f":{self.function}" if self.function else "")

    def absolute(self) -> Source:
        """The same source, independent of the working folder; the id of a model stays as it is."""
        if not _exists(self.target):
            return self
        path = Path(self.target).expanduser()
        # What belongs to a file lies beside its name, which in the hub's cache is a link.
        keeps_link = ENGINES[self.kind].takes_file and not self.function
        return replace(self, target=str(path.absolute() if keeps_link else path.resolve()))

    @property
    def is_absolute(self) -> bool:
        """Whether it names the same in every folder: an absolute path, or the id of a model that is no folder here."""
        if Path(self.target).is_absolute():
            return True
        return not ENGINES[self.kind].takes_file and not _exists(self.target)


def _exists(target: str) -> bool:
    """Whether a file or folder has this name; a manifest may name what no file system could hold, nor any user have."""
    return os.path.exists(os.path.expanduser(target))  # noqa: PTH110, PTH111 - Path raises in these cases


def parse_source(text: str) -> Source | None:
    """The source that a text names; None where it is a path like any other."""
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
    """Parse a source; raises where the text is none, and says what may have been meant."""
    source = parse_source(text)
    if source is None:
        meant = f"did you mean {_likely_source(text)}? Sources are" if _likely_source(text) else "write"
        raise CaptureError(f"{printable(text)}: is not a source; {meant} {spellings()}")
    return source.absolute()


def _likely_source(text: str) -> str:
    """The source that a path alone may have been meant as; empty where nothing lies there that looks like one."""
    path = Path(text).expanduser()
    kinds = {".py": f"py:{text}:FUNCTION", ".onnx": f"onnx:{text}", ".gguf": f"llamacpp:{text}"}
    meant = f"hf:{text}" if (path / "config.json").is_file() else kinds.get(path.suffix.lower(), "")
    return printable(meant) if path.exists() else ""


def refuse_settings(source: Source, settings: Settings) -> None:
    """Refuse settings that the engine of a source cannot honour, before a framework is imported."""
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
"""What a job leaves in its folder: a dump; what a dump would hold, without values; or tensors that are read and removed
while it runs (``stream``)."""


@dataclass(frozen=True)
class Job:
    """One run of a source."""

    source: Source
    settings: Settings
    output: str
    """The folder that the dump goes to."""
    task: str = "capture"
    """``capture``, or ``replay``: one layer alone, on the inputs of a dump."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the task; of ``replay``: ``dump``, ``layer``, ``step``, ``call`` and ``bundle``."""
    signature: str | None = None
    """Proves to the user later that it was they who had this run; see ``signature``."""
    lists_files: bool = False
    """Whether the child says which files it was made of."""
    writes: Writes = "dump"
    window_bytes: int = 0
    """Of a stream, how much may wait to be read."""

    @property
    def reference(self) -> str | None:
        """The dump that the run takes tensors from: the one to replay, else the one to inject."""
        if self.task == REPLAY:
            return str(self.more["dump"])
        return self.settings.inject.dump if self.settings.inject is not None else None

    def facts(self) -> dict[str, Any]:
        """What a manifest says of it: the source, and how it was run."""
        # Whether an older dump was overwritten is no part of how this one was made.
        return {"source": str(self.source), "settings": replace(self.settings, force=False).to_json()}

    def encode(self) -> str:
        """As one line."""
        source = {"kind": self.source.kind, "target": self.source.target, "function": self.source.function}
        fields = {"source": source, "settings": self.settings.to_json(), "output": self.output, "task": self.task}
        rest = {"more": self.more, "signature": self.signature, "lists_files": self.lists_files}
        return json.dumps({**fields, **rest, "writes": self.writes, "window_bytes": self.window_bytes})

    @classmethod
    def decode(cls, line: str | bytes) -> Job:
        """What ``encode`` gave, read back."""
        fields = json.loads(line)
        source, settings = Source(**fields["source"]), Settings.from_json(fields["settings"])
        rest = (fields[name] for name in ("more", "signature", "lists_files", "writes", "window_bytes"))
        return cls(source, settings, fields["output"], fields["task"], *rest)


def replay_as_injection(job: Job) -> Job:
    """The same job as an injection of the dump to be replayed; the layer is found among the model's by the engine."""
    return replace(
        job,
        settings=replace(job.settings, inject=replayed_dump(job), ops=None, optimized=False, steps=1, gradients=False),
    )


def replayed_dump(job: Job) -> Injection:
    """What a replay injects; refuses what only engines that call a layer by itself can do."""
    kind = job.source.kind
    if job.more.get("bundle") is not None:
        raise CaptureError(f"{printable(job.source)}: a layer of {kind}: sources cannot be exported; leave -o out")
    if int(job.more.get("step", 0)):
        raise CaptureError(
            f"{printable(job.source)}: of {kind}: sources only step 0 can be replayed; "
            "a later step needs what the layers kept from the steps before it"
        )
    return Injection(str(job.more["dump"]))
