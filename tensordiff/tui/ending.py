"""Ending the app from outside: by a signal, at any moment, whatever it waits for.

A signal must not raise while the app runs: it may interrupt a queue of Textual, which then stays locked, and so does
the app. So the signal is noted, and the app leaves as soon as it listens. If it cannot leave, because its terminal is
gone or accepts no output and everything waits for that, it is ended anyway after a while: the terminal's modes are
restored, and temporary folders removed. Child processes notice by themselves that their parent is gone.

A terminal may also disappear without a signal, such as that of a job that tmux or ssh leaves behind. So it is checked
regularly.
"""

from __future__ import annotations

import asyncio
import os
import signal
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tensordiff.util.temporary_folders import remove_temporary_folders

INTERRUPTED, TERMINATED = 130, 143
_STDIN = 0
_STATUSES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED, signal.SIGHUP: TERMINATED}
_GRACE_S = 5.0
_LOOK_S = 2.0


class Ending:
    """Receives signals, and passes them to the app once it listens."""

    def __init__(self, grace_s: float = _GRACE_S) -> None:
        self._grace_s, self._over = grace_s, threading.Event()
        self._status: int | None = None
        """The exit status for the first signal."""
        self._leave: Callable[[], object] | None = None
        self._modes: list[Any] | None = None

    @contextmanager
    def minded(self) -> Iterator[None]:
        """Handle the signals during a block in which the app runs."""
        before = {number: signal.getsignal(number) for number in _STATUSES}
        with suppress(termios.error, OSError, ValueError, AttributeError):  # there may be no terminal
            self._modes = termios.tcgetattr(_STDIN)
        for number in before:
            signal.signal(number, self._note)
        if self._modes is not None:
            threading.Thread(target=self._watch_terminal, name="terminal", daemon=True).start()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._over.set()

    def listen(self, leave: Callable[[int], object]) -> None:
        """Have ``leave`` called with a status, in the running event loop, when a signal comes or has come."""
        loop = asyncio.get_running_loop()
        self._leave = lambda: loop.call_soon_threadsafe(leave, self._status or TERMINATED)
        if self._status is not None:
            self._leave()

    def _note(self, number: int, _: object) -> None:
        if self._status is None:
            self._status = _STATUSES[signal.Signals(number)]
            timer = threading.Timer(self._grace_s, self._force)
            timer.daemon = True
            timer.start()
        if self._leave is not None:
            with suppress(RuntimeError):  # the loop is closed: the app is about to end
                self._leave()

    def _watch_terminal(self) -> None:
        """End the app once its terminal is gone."""
        while not self._over.wait(_LOOK_S):
            try:
                termios.tcgetattr(_STDIN)
            except (termios.error, OSError):
                self._note(signal.SIGHUP, None)
                return

    def _force(self) -> None:
        """End now, unless the app has ended meanwhile."""
        if self._over.is_set():
            return
        if self._modes is not None:
            with suppress(termios.error, OSError):  # the terminal is gone
                termios.tcsetattr(_STDIN, termios.TCSANOW, self._modes)
        remove_temporary_folders()
        os._exit(self._status or TERMINATED)
