"""Captures in child processes, as the command line makes them, and what comparing two of them says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tensordiff.capture.events import Done, Event, Failed
from tensordiff.capture.job import Job, parse_source
from tensordiff.capture.runner import Run
from tensordiff.capture.settings import Injection, Settings
from tensordiff.dump import Dump, open_dump
from tensordiff.search.outcome import Outcome
from tensordiff.session.request import Request
from tensordiff.session.session import Session


def events_of(source: str, folder: Path, task: str = "capture", **said: Any) -> list[Event]:
    """All that a child tells, the log of one that failed among it."""
    parsed, more = parse_source(source), said.pop("more", {})
    assert parsed is not None
    said = {"device": "auto" if parsed.kind == "py" else "cpu"} | said  # a py: source places its model itself
    with Run(Job(parsed, Settings(**said), str(folder), task, more)) as run:
        return list(run)


def capture(source: str, folder: Path, task: str = "capture", **said: Any) -> Dump:
    """Capture, and open what was captured."""
    last = events_of(source, folder, task, **said)[-1]
    assert isinstance(last, Done), last
    return open_dump(folder)


def refusal(source: str, folder: Path, **said: Any) -> str:
    """Why a capture failed."""
    last = events_of(source, folder, **said)[-1]
    assert isinstance(last, Failed), last
    return last.sentence


@dataclass(frozen=True)
class Compared:
    """Two dumps, compared."""

    session: Session
    outcome: Outcome

    @property
    def culprit(self) -> str | None:
        """The culprit's name."""
        return self.outcome.culprit.pair.name if self.outcome.culprit else None

    def injected(self, *, above: float) -> set[str]:
        """Layers whose output is wrong by more than that though their inputs are right."""
        found = (row for row in self.outcome.rows if row.injected is not None and not row.pair.reference.is_input)
        return {row.pair.name for row in found if row.injected is not None and row.injected.rel_l2 > above}


def compare(reference: Path, candidate: Path, injected: Path | None = None, golden: Path | None = None) -> Compared:
    """Compare two dumps."""
    session = Session.open(Request(reference, candidate, injected=injected, golden=golden))
    return Compared(session, session.outcome(list(session.rows())))


@dataclass(frozen=True)
class Sides:
    """A model on both engines."""

    model: Path
    dtype: str
    folder: Path

    @cached_property
    def reference(self) -> Path:
        """Hugging Face, with the attention that is written out."""
        return capture(
            f"hf:{self.model}", self.folder / "hf", dtype=self.dtype, attn_implementation="eager"
        ).path  # fmt: skip

    @cached_property
    def candidate(self) -> Path:
        """MAX, on the reference's tokens."""
        return self.on_max("max", force=True)

    @cached_property
    def injected(self) -> Path:
        """MAX, on the reference's inputs."""
        return self.on_max("injected", inject=Injection(str(self.reference)))

    def on_max(self, name: str, model: Path | None = None, **said: Any) -> Path:
        """One more capture on MAX, of this model or a changed one."""
        ids = tuple(self.token_ids)
        return capture(
            f"max:{model or self.model}", self.folder / name, dtype=self.dtype, input_ids=ids, **said
        ).path  # fmt: skip

    @property
    def token_ids(self) -> list[int]:
        """What both are run on."""
        found = open_dump(self.reference).facts["token_ids"]
        assert isinstance(found, list | tuple)
        return [int(each) for each in found]
