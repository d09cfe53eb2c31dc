"""The work that the owner of a session has in progress, and the messages in which its threads report results."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from tensordiff.align.rules.file import RulesFile
from tensordiff.dump import Dump
from tensordiff.dump.lint import Finding
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.session.storage.state import DumpIdentity
from tensordiff.tui.comparison.measurement import Result
from tensordiff.tui.comparison.session_keeper import SessionKeeper
from tensordiff.tui.table.model import Batch, Listing


@dataclass(frozen=True, eq=False)
class AlignmentTask:
    """An opening or realigning in progress, with its full request. Compared by identity."""

    request: Request
    rules: RulesFile
    session: Session | None
    """The session whose open dumps are realigned; None if they are to be opened."""
    keeper: SessionKeeper | None
    """None if the session file is still to be read."""
    listing: Listing
    """The listing that is shown meanwhile."""


@dataclass
class Aligned(Message):
    """Both dumps are open and aligned."""

    task: AlignmentTask
    session: Session
    listing: Listing
    findings: tuple[Finding, ...]
    keeper: SessionKeeper
    on_disk: tuple[DumpIdentity, DumpIdentity] | None


@dataclass
class AlignmentFailed(Message):
    """The dumps could not be opened or aligned."""

    task: AlignmentTask
    error: Exception


@dataclass
class CheckpointsOpened(Message):
    """Both sides are checkpoints, not runs: another screen compares their parameters."""

    task: AlignmentTask
    reference: Dump
    candidate: Dump


class Measurement:
    """A measurement in progress. Compared by identity."""


@dataclass
class RowsMeasured(Message):
    """More rows were measured."""

    measurement: Measurement
    batch: Batch


@dataclass
class MeasurementEnded(Message):
    """All rows are measured."""

    measurement: Measurement
    result: Result


@dataclass
class StreamEnded(Message):
    """A stream ended: the source has run, or it failed, or the user ended it."""

    task: AlignmentTask


@dataclass
class DumpsChanged(Message):
    """The dumps on disk are not those that are shown."""

    on_disk: tuple[DumpIdentity, DumpIdentity]
