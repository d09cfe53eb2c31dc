"""Processes and waits of tests: a child hears Ctrl-C however the suite was started, and every wait has an end.

A suite that a shell started in the background ignores SIGINT, under nohup SIGHUP too, and so would every process
that it starts.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PATIENCE_S = 300
"""Far longer than anything here takes, on a machine that is busy with something else too."""
_POLL_S = 0.02


def run(command: Sequence[str | Path], *, check: bool = False, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and take what it says as text."""
    options.setdefault("env", dict(os.environ))  # what Mojo sets in C, once MAX is imported, is left behind
    return subprocess.run(command, capture_output=True, text=True, check=check, timeout=PATIENCE_S, **options)


def run_for_bytes(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end, and take what it says as it is."""
    return subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_S, **options)


@contextmanager
def started(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process that hears Ctrl-C; killed at the end, if it is there still, with its pipes closed."""
    with subprocess.Popen(command, preexec_fn=_hear_signals, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def _hear_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def until(is_so: Callable[[], object]) -> None:
    """Ask again and again until something is so."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, "it never was so"
        time.sleep(_POLL_S)


def ended(process: subprocess.Popen[Any]) -> int:
    """The status of a process that is about to end."""
    return process.wait(PATIENCE_S)


def children(process: int) -> list[int]:
    """The processes that one has started and that are there still, as Linux knows them."""
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(pid) for task in tasks for pid in _read(task).split()]


def command_line(pid: int) -> bytes:
    """The command of a process; nothing where it has ended."""
    return _read(Path(f"/proc/{pid}/cmdline"))


def open_files(pid: int) -> list[Path]:
    """The files that a process has open, of those that it has open still when they are looked at."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(link.readlink())
    return found


def _read(path: Path) -> bytes:
    """What Linux says of a process or a thread, which may end between being listed and being read."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def is_there(pid: int) -> bool:
    """Whether there is such a process."""
    return Path(f"/proc/{pid}").exists()


class Terminal:
    """The keyboard and the screen of a process: what it writes is read as it comes."""

    def __init__(self, columns: int = 80, lines: int = 24) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""
        """All that was written so far."""

    def type(self, text: str | bytes) -> None:
        """Press keys."""
        os.write(self.master, text.encode() if isinstance(text, str) else text)

    def until(self, text: str | bytes) -> str:
        """Read until something is written; all that was since the last call."""
        wanted, start = text.encode() if isinstance(text, str) else text, len(self.seen)
        end = time.monotonic() + PATIENCE_S
        while wanted not in self.seen[start:]:
            assert time.monotonic() < end, f"{text!r} was not written in {self.seen[start:]!r}"
            self._read()
        return self.seen[start:].decode(errors="replace").replace("\r\n", "\n")

    def read_until(self, is_so: Callable[[], object]) -> None:
        """Read on until something is so."""
        end = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < end, f"it never was so, and {self.seen[-2000:]!r} was written"
            self._read()

    def read_until_ended(self, process: subprocess.Popen[Any]) -> int:
        """Read on, for a process may wait for somebody to; its status."""
        end = time.monotonic() + PATIENCE_S
        while process.poll() is None:
            assert time.monotonic() < end, f"it goes on, and has written {self.seen[-2000:]!r}"
            self._read()
        while self._read(0):
            pass
        return process.returncode

    @property
    def text(self) -> str:
        """All that was written so far, with the ends of lines as programs write them."""
        return self.seen.decode(errors="replace").replace("\r\n", "\n")

    def _read(self, patience_s: float = _POLL_S) -> bool:
        if not select.select([self.master], [], [], patience_s)[0]:
            return False
        # The other end stays open here, so that the end of a process is no error of a read.
        self.seen += os.read(self.master, 1 << 16)
        return True

    def close(self) -> None:
        """Take it away."""
        os.close(self.slave)
        os.close(self.master)


@contextmanager
def on_terminal(
    command: Sequence[str], columns: int = 80, lines: int = 24, *, env: Mapping[str, str], **options: Any
) -> Iterator[tuple[Terminal, subprocess.Popen[Any]]]:
    """A process on a terminal of its own, which is all its streams unless told otherwise."""
    terminal = Terminal(columns, lines)
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.slave)
    try:
        with started(command, **{**streams, "env": env, "start_new_session": True, **options}) as process:
            yield terminal, process
    finally:
        terminal.close()
