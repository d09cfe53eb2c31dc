"""The events that a child process sends while it runs: one JSON object a line.

``Phase`` says what begins now, ``Progress`` how far it is, ``Note`` is a sentence for the user. The last event is
``Done`` or ``Failed``; a child that ends without either has crashed, and ``runner`` makes a ``Failed`` for it.
``NewProcessNeeded`` is sent by a reusable child to the runner and goes no further.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tensordiff.errors import CaptureError, printable
from tensordiff.secrets import masked_message


class ChildLog(Exception):
    """The traceback or log of a child process; shown with ``--debug``."""


@dataclass(frozen=True)
class Phase:
    """What begins now: ``importing``, ``loading``, ``listing tensors``, ``running``, ``writing``."""

    name: str
    detail: str = ""


@dataclass(frozen=True)
class Progress:
    """How far the phase is; ``total`` is 0 if unknown."""

    done: int
    total: int
    what: str = ""


@dataclass(frozen=True)
class Note:
    """A sentence for the user."""

    text: str


@dataclass(frozen=True)
class Failed:
    """The run failed."""

    sentence: str
    detail: str = ""
    """A traceback or the end of the log, for ``--debug``."""
    path: str | None = None
    """A dump that can be read up to the failure."""

    def error(self) -> CaptureError:
        """The error to raise for it in the parent; its cause is the child's traceback or log."""
        error = CaptureError(printable(self.sentence))
        error.__cause__ = ChildLog(f"\n{masked_message(self.detail)}")
        return error


@dataclass(frozen=True)
class Done:
    """The run succeeded."""

    path: str
    entries: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    """If the job asked for it: the files that the process was made of, as far as they are known."""


@dataclass(frozen=True)
class NewProcessNeeded:
    """The job needs a new process, because something changed since this one was new. Nothing was written."""

    why: str


Event = Phase | Progress | Note | Failed | Done | NewProcessNeeded
Tell = Callable[[Event], None]
"""Sends an event to the parent, or to whoever listens."""
_KINDS: dict[str, type[Event]] = {
    kind.__name__.lower(): kind for kind in (Phase, Progress, Note, Failed, Done, NewProcessNeeded)
}


def encode(event: Event) -> str:
    """An event as a line of JSON, without the line break."""
    return json.dumps({"event": type(event).__name__.lower(), **asdict(event)}, separators=(",", ":"), default=str)


def decode(line: str | bytes) -> Event:
    """The event in a line; raises ``ValueError`` if it is none."""
    found = json.loads(line)
    try:
        lists = {key: tuple(value) for key, value in found.items() if isinstance(value, list)}
        return _KINDS[found.pop("event")](**{**found, **lists})
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not an event: {line!r:.200}") from error


@dataclass
class ThrottledProgress:
    """Sends ``Progress`` a few times a second, however often it is advanced."""

    tell: Tell
    total: int = 0
    done: int = 0
    _next_s: float = 0.0

    def advance(self, what: str) -> None:
        """Count one more."""
        self.done += 1
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _PROGRESS_EVERY_S
            if self.total:
                self.tell(Progress(self.done, max(self.total, self.done), what))
            else:
                self.tell(Progress(self.done, 0, f"{self.done:,} done, {what}"))


_PROGRESS_EVERY_S = 0.1
