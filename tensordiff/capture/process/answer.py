"""What a capture says of itself, whatever the engine: the facts its dump begins with, and the answer at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from tensordiff.capture.events import Done, Event, Note
from tensordiff.capture.job import Job

_TOLD = ("model", "device", "dtype", "prompt", "token_ids", "notes")


class Counted(Protocol):
    """Whoever wrote the tensors."""

    @property
    def entries(self) -> int:
        """How many."""

    @property
    def nbytes(self) -> int:
        """How large they are."""


def first_facts(job: Job, framework: str) -> dict[str, Any]:
    """What is known of a dump before anything runs."""
    # Whether an older dump was overwritten is no part of how this one was made.
    settings = replace(job.settings, force=False).to_json()
    return {"source": str(job.source), "framework": framework, "settings": settings}


def done(job: Job, sink: Counted, facts: Mapping[str, Any], tell: Callable[[Event], None]) -> Done:
    """What was made; of a layer that was replayed alone, which it was."""
    for note in facts.get("notes") or ():
        tell(Note(note))
    told = {key: facts.get(key) for key in _TOLD} | {key: facts[key] for key in ("layer",) if key in facts}
    return Done(job.output, sink.entries, {**told, "bytes": sink.nbytes})
