"""The events that a child process sends while it runs: one JSON object a line.

``Phase`` says what begins now, ``Progress`` how far it is, ``Note`` is a sentence for the user. The last event is
``Done`` or ``Failed``; a child that ends without either crashed, and ``runner`` says how. ``NewProcessNeeded`` is sent
by a reusable child to the runner and goes no further.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Phase:
    """What begins now: ``importing``, ``loading``, ``listing tensors``, ``running``, ``writing``."""

    name: str
    detail: str = ""


@dataclass(frozen=True)
class Progress:
    """How far the phase is; ``total`` is 0 where nobody knows."""

    done: int
    total: int
    what: str = ""


@dataclass(frozen=True)
class Note:
    """A sentence for the person."""

    text: str


@dataclass(frozen=True)
class Failed:
    """Why it ended before its end."""

    sentence: str
    detail: str = ""
    """A traceback or the end of the log, for ``--debug``."""
    path: str | None = None
    """A dump that can be read up to where it ended."""


@dataclass(frozen=True)
class Done:
    """What was made."""

    path: str
    entries: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    """Where the job asked for it: the files that the process was made of, as far as they are known."""


@dataclass(frozen=True)
class NewProcessNeeded:
    """A job is for a new process: something is not as it was when this one was new. Nothing was written."""

    why: str


Event = Phase | Progress | Note | Failed | Done | NewProcessNeeded
Tell = Callable[[Event], None]
"""Sends an event to whoever listens."""
_KINDS: dict[str, type[Event]] = {
    kind.__name__.lower(): kind for kind in (Phase, Progress, Note, Failed, Done, NewProcessNeeded)
}


def encode(event: Event) -> str:
    """An event as its line, without the line's end."""
    return json.dumps({"event": type(event).__name__.lower(), **asdict(event)}, separators=(",", ":"), default=str)


def decode(line: str | bytes) -> Event:
    """The event that a line is; raises ``ValueError`` where it is none."""
    found = json.loads(line)
    try:
        lists = {key: tuple(value) for key, value in found.items() if isinstance(value, list)}
        return _KINDS[found.pop("event")](**{**found, **lists})
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not an event: {line!r:.200}") from error


@dataclass
class ThrottledProgress:
    """Sends ``Progress`` a few times a second, however often it is made."""

    tell: Tell
    total: int = 0
    done: int = 0
    _next_s: float = 0.0

    def advance(self, what: str) -> None:
        """One more is done."""
        self.done += 1
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _PROGRESS_EVERY_S
            if self.total:
                self.tell(Progress(self.done, max(self.total, self.done), what))
            else:
                self.tell(Progress(self.done, 0, f"{self.done:,} done, {what}"))


_PROGRESS_EVERY_S = 0.1
