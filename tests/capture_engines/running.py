"""Checkpoints and captures of a session of tests, each made once, and what is asked of every engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from tensordiff.capture.child import ReusableChild
from tensordiff.capture.interpreter import interpreter
from tensordiff.capture.job import Job, parse_source
from tensordiff.capture.runner import Run
from tensordiff.capture.settings import Injection, Settings
from tensordiff.compare.row import Row
from tensordiff.dump import Dump
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.capture_engines.checkpoints import IDS, Bug, make_checkpoint, make_gguf

STEPS = 4
WRONG = 1e-3
"""No right layer of these models is so far off in float32."""


@dataclass
class Shelf:
    """What was made so far, in a folder."""

    folder: Path
    child: ReusableChild
    """Keeps the process of one capture for the next, where that is of the same source."""
    _made: dict[str, Path] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)

    def checkpoint(self, name: str, bug: Bug | None = None) -> Path:
        """A checkpoint of an architecture."""
        label = f"{name}-{bug.__name__}" if bug else name
        if label not in self._made:
            self._made[label] = make_checkpoint(name, self.folder / label, bug)
        return self._made[label]

    def source(self, kind: str, name: str, bug: Bug | None = None) -> str:
        """The source of an engine for a checkpoint."""
        checkpoint = self.checkpoint(name, bug)
        if kind != "llamacpp":
            return f"{kind}:{checkpoint}"
        return f"{kind}:{make_gguf(checkpoint, Path(interpreter(kind)))}"

    def capture(self, source: str, **settings: Any) -> Path:
        """A capture of a source, of the prompt and three decoded tokens unless told otherwise."""
        wanted = replace(Settings(input_ids=IDS, steps=STEPS), **settings)
        label = f"{source} {wanted.to_json()}"
        if label not in self._made:
            parsed = parse_source(source)
            assert parsed is not None
            output = self.folder / f"dump-{next(self._numbers)}"  # a capture that failed may have left one
            Run(Job(parsed.absolute(), wanted, str(output)), self.child).result()
            self._made[label] = output
        return self._made[label]

    def reference(self, name: str, **settings: Any) -> Path:
        """The capture of a right checkpoint by transformers."""
        return self.capture(f"hf:{self.checkpoint(name)}", **settings)

    def injected(self, source: str, reference: Path, at: str = "all", **settings: Any) -> Path:
        """A capture on the reference's inputs."""
        return self.capture(source, inject=Injection(str(reference), at), **settings)


def compared(reference: Path, candidate: Path, injected: Path | None = None) -> Session:
    """Two dumps, paired by what comes with tensordiff alone: nothing is learned, and there are no rules."""
    return Session.open(Request(reference, candidate, injected=injected, learn=False))


def culprit(session: Session) -> str | None:
    """The name of the culprit, in whatever step it is seen first."""
    found = session.outcome(list(session.comparer.rows(session.pairs))).culprit
    return None if found is None else found.pair.name


def wrong_by_themselves(session: Session, wrong: float = WRONG) -> set[str]:
    """The layers without others in them that are wrong even on the reference's inputs."""
    rows: list[Row] = list(session.comparer.rows(session.pairs))
    layers = {row.pair.reference.layer for row in rows}
    return {
        row.pair.name
        for row in rows
        if not row.pair.reference.is_input and row.injected is not None and row.injected.rel_l2 > wrong
        and not any(layer.startswith(f"{row.pair.reference.layer}.") for layer in layers)
    }  # fmt: skip


def wrong_layers(session: Session, wrong: float = WRONG) -> set[str]:
    """All layers that are wrong even on the reference's inputs, with those that hold one."""
    rows: list[Row] = list(session.comparer.rows(session.pairs))
    own = (row for row in rows if not row.pair.reference.is_input and row.injected is not None)
    return {row.pair.reference.layer for row in own if row.injected is not None and row.injected.rel_l2 > wrong}


def orphan_outputs(session: Session) -> set[str]:
    """Layers of the candidate that gave something which is not paired."""
    return {entry.layer for entry in session.alignment.candidate_orphans if not entry.is_input}


def orphans_of_reference(session: Session) -> set[str]:
    """Outputs of the reference that are not paired, by name; of the model itself none that is a cache."""
    outputs = (entry for entry in session.alignment.reference_orphans if not entry.is_input)
    return {f"{entry.layer}-{entry.port}" for entry in outputs if "past_key_values" not in entry.port}


def injected_layers(dump: Dump) -> dict[str, Any]:
    """What an injected run says of each call: what it was given, and whether it was isolated."""
    injection: Any = dump.facts["injection"]
    found: dict[str, Any] = injection["layers"]
    return found
