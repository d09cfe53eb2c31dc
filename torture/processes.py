"""Commands run as a user runs them, and what must not be left when they are gone.

A process and all that it starts carry a mark in their environment, by which they are found again whatever group or
session they are in. Its temporary files go to a folder of the case, which has to be empty in the end.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

_MARK = "TORTURE_MARK"
_GRACE_S = 10.0  # how long what was started may outlive the command
_POLL_S = 0.02
_CACHES = ("torchinductor_",)
"""Folders that frameworks keep in the temporary folder on purpose."""


class Case:
    """The folder, the environment and the mark of one case."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out, self.temporary = folder, folder / "out", folder / "tmp"
        for path in (folder, self.out, self.temporary):
            path.mkdir()
        self._mark = secrets.token_hex(8)

    def environment(self, **more: str) -> dict[str, str]:
        """Of the command, and of all that it starts."""
        return os.environ | {
            _MARK: self._mark, "TMPDIR": str(self.temporary), "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_CONFIG_HOME": str(self.folder / "config"), "TERM": "xterm-256color", **more,
        }  # fmt: skip

    def processes(self) -> list[int]:
        """What is still there of the command."""
        wanted = f"{_MARK}={self._mark}".encode()
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if wanted in _environment(path)]

    def leftovers(self) -> Iterator[str]:
        """What should not be there any more; whatever it is, it is ended."""
        if not waited(lambda: not self.processes(), _GRACE_S):
            names = [_name(pid) for pid in self.processes()]
            yield f"left running: {', '.join(names)}"
        self.end()
        if left := sorted(path.name for path in self.temporary.iterdir() if not path.name.startswith(_CACHES)):
            yield f"left in the temporary folder: {', '.join(left)}"
        if left := sorted(path.name for path in self.out.rglob(".tensordiff-*")):
            yield f"left beside its output: {', '.join(left)}"

    def end(self) -> None:
        """End whatever carries the mark."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _environment(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it has gone, or is somebody else's


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")[:120]
    except OSError:
        return str(pid)


def waited(is_so: Callable[[], object], patience_s: float) -> bool:
    """Wait until something is so; whether it was in time."""
    end = time.monotonic() + patience_s
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True


@contextmanager
def started(
    words: Sequence[str], case: Case, cwd: Path, streams: Mapping[str, Any], terminal: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a session of its own, on a terminal if one is given; ended with all that it started."""
    process = subprocess.Popen(  # noqa: S603 - our own commands
        list(words), cwd=cwd, env=case.environment(), start_new_session=True,
        preexec_fn=partial(_prepare, terminal), **streams,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        case.end()


def _prepare(terminal: int | None) -> None:
    """Signals act as they do in a terminal, whoever started the campaign; a terminal that hangs up says so."""
    if terminal is not None:
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def descriptors(pid: int) -> int:
    """How many files a process has open."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0


def memory_mb(pid: int) -> float:
    """How much memory of its own a process has."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:")), 0.0)
