"""The dump that a job writes, for any engine: opened with what is known before the run, closed with the rest.

A run that fails keeps what it reached: the dump is readable up to there, and contains the error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from tensordiff.capture.events import Done, Note, Tell
from tensordiff.capture.job import Job
from tensordiff.capture.process.disk_space import Budget
from tensordiff.capture.process.stream_writer import ListingWriter, StreamWriter
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import EntryKey, Origin
from tensordiff.dump.native.writer import DumpWriter
from tensordiff.errors import TensordiffError, printable

_REPORTED = ("model", "device", "dtype", "prompt", "token_ids", "notes")


@dataclass
class Output:
    """A dump being written."""

    writer: DumpWriter
    budget: Budget
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts of the run; written when the block ends, with or without an error."""
    order: list[EntryKey] = field(default_factory=list)
    """The execution order of the entries, if they were written in several passes."""
    entries: int = 0
    nbytes: int = 0

    def add(self, key: EntryKey, array: Array, origin: Origin) -> None:
        """Write a tensor, unless the budget is spent."""
        if not self.budget.allows(array.nbytes):
            return
        self.writer.add(
            key.name, array, step=key.step, call=key.call, module_class=origin.module_class,
            source_file=origin.source_file, source_line=origin.source_line, injected=origin.injected,
        )  # fmt: skip
        self.entries += 1
        self.nbytes += array.nbytes

    def add_parameter(self, key: EntryKey, array: Array, origin: Origin) -> None:
        """Write a parameter of the model. It counts toward the budget, but not as a tensor of the run."""
        entries, nbytes = self.entries, self.nbytes
        self.add(key, array, origin)
        self.entries, self.nbytes = entries, nbytes

    def begin_pass(self) -> None:
        """Begin another pass over the model."""
        self.writer.begin_part()


@contextmanager
def open_output(job: Job, framework: str) -> Iterator[Output]:
    """Open the dump of a job. The output's ``facts`` are written when the block ends, also after an error."""
    facts = first_facts(job, framework)
    with _writer(job, facts) as writer:
        output = Output(writer, Budget(job.settings.max_bytes))
        try:
            yield output
        except BaseException as error:
            _add_error(output, error)
            raise
        writer.add_facts(**output.facts)
        if output.order:
            writer.arrange(output.order)


def _writer(job: Job, facts: Mapping[str, object]) -> DumpWriter:
    if job.writes == "listing":
        return ListingWriter(job.output, facts, durable=False)
    if job.writes == "stream":
        return StreamWriter(job.output, facts, job.window_bytes)
    return DumpWriter(job.output, facts, overwrite=job.settings.force, durable=False)


def partial_dump_clause(job: Job, reached: str = "the layers it reached") -> str:
    """The end of a sentence on a failed run: where its tensors can be read, if they can."""
    return f"; {reached} lie in {printable(job.output)}" if job.writes == "dump" else ""


def _add_error(output: Output, error: BaseException) -> None:
    try:
        output.writer.add_facts(**{**output.facts, "error": printable(str(error) or type(error).__name__)})
    except TensordiffError:
        return  # the disk is full or gone: that error is already being raised


def first_facts(job: Job, framework: str) -> dict[str, Any]:
    """The facts of a dump that are known before the run."""
    return {**job.facts(), "framework": framework, "signature": job.signature}


class WrittenSize(Protocol):
    """How much was written."""

    @property
    def entries(self) -> int:
        """The number of tensors."""

    @property
    def nbytes(self) -> int:
        """Their size."""


def done(job: Job, size: WrittenSize, facts: Mapping[str, Any], tell: Tell) -> Done:
    """The last event of a capture; the notes in ``facts``, the facts of the dump, are sent before it."""
    for note in facts.get("notes") or ():
        tell(Note(note))
    reported = {key: facts.get(key) for key in _REPORTED} | ({"layer": facts["layer"]} if "layer" in facts else {})
    return Done(job.output, size.entries, {**reported, "bytes": size.nbytes})
