"""Capture's children forked from a process that has imported the framework, in place of hundreds of imports of it.

A child that is forked has its own process id, session, standard streams, environment and folder, is killed and waited
for like any other, and runs ``tensordiff.capture.process`` from its first line; it only finds torch imported. Where an
import could come out differently (another interpreter, other variables, limits of the process) a new process is
started after all. So it is for tests marked ``new_children``, which are about the process itself.

A process that a test starts finds the server by a variable: ``PYTHON -m tests.forked_children`` is ``tensordiff``
whose children are forked.
"""

from __future__ import annotations

import array
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import IO, Any

from tensordiff.capture import child
from tests.fork_server import MAX_REQUEST

FOLDER = "TENSORDIFF_TESTS_FORK_FOLDER"
_SERVER = Path(__file__).with_name("fork_server.py")
_MODULE = "tensordiff.capture.process"
_OURS = ("tensordiff.capture.process.child_main", "tensordiff.capture.process.reusable_engine")
KINDS = {kind: [*_OURS, f"tensordiff.capture.engines.{kind}.engine"] for kind in ("py", "hf", "onnx")}
"""What a child of each kind imports whatever its job is."""
_UNREAD = (
    "PYTHONPATH", "PYTHONSAFEPATH", "PYTHONUNBUFFERED", "PYTEST_", "TENSORDIFF_", "XDG_", "COLUMNS", "LANG", "LC_",
    "NO_COLOR", "FORCE_COLOR", "TERM", "TMPDIR", "PWD", "OLDPWD", "AWS_",
)  # fmt: skip
"""Variables that no import of these looks at, or that a child is given anew."""
_LIMITS = ("RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_CPU")


def _surroundings(environment: Mapping[str, str]) -> str:
    """What may decide on what an import does."""
    read = {name: value for name, value in environment.items() if not name.startswith(_UNREAD)}
    limits = [resource.getrlimit(getattr(resource, name)) for name in _LIMITS]
    namespaces = [str(Path(f"/proc/self/ns/{name}").readlink()) for name in ("mnt", "net", "pid", "user")]
    return json.dumps([read, os.environ.get("PYTHONPATH"), sys.executable, limits, namespaces], sort_keys=True)


class Server:
    """A process from which children are forked, with those that have the frameworks."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="forks")
        self.folder = Path(self._folder.name)
        (self.folder / "surroundings").write_text(_surroundings(os.environ), "utf-8")
        (self.folder / "kinds").write_text(
            json.dumps(KINDS), "utf-8"
        )  # no test shall take it for a child by its command
        self._process = subprocess.Popen(
            [sys.executable, str(_SERVER), str(self.folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONSAFEPATH": "1"},
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "the server of children did not start"

    def close(self) -> None:
        """End it, and all that it forked."""
        self._process.communicate()
        self._folder.cleanup()


class ForkedChild:
    """A child of a server, with as much of ``subprocess.Popen`` as its starter uses."""

    def __init__(self, path: Path, request: dict[str, Any], streams: dict[int, int]) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._connection.connect(str(path))
            told, tell = os.pipe()
            self.stdin: IO[bytes] = os.fdopen(tell, "wb")
            with os.fdopen(told, "rb"):
                self._ask(request, {0: told} | streams)
            if not (answer := self._connection.recv(64)):
                raise ConnectionError("the server of children has ended")
        except OSError:
            self._connection.close()
            raise
        self.pid = int(answer)
        self._returncode: int | None = None
        self._waiting = Lock()

    def _ask(self, request: dict[str, Any], streams: dict[int, int]) -> None:
        message = json.dumps(request | {"numbers": list(streams)}).encode()
        assert len(message) < MAX_REQUEST
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams.values()))
        self._connection.sendmsg([message], [rights])

    def poll(self) -> int | None:
        """How it ended, if it has."""
        return self._status(0)

    def wait(self, timeout: float | None = None) -> int:
        """How it ended, once it has."""
        status = self._status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("a forked child", timeout or 0)
        return status

    def _status(self, timeout: float | None) -> int | None:
        with self._waiting:
            if self._returncode is None and select.select([self._connection], [], [], timeout)[0]:
                self._returncode = int(self._connection.recv(64))
                self._connection.close()
            return self._returncode


class ForkingSubprocess:
    """``subprocess`` as the module that starts capture's children finds it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes] | ForkedChild:
        """Fork a child where it will be the same, or start it."""
        python, _, module, kind, *more = command
        environment: dict[str, str] = options["env"]
        is_ours = (python, module) == (sys.executable, _MODULE) and kind in KINDS
        if not is_ours or _surroundings(environment) != (self._folder / "surroundings").read_text("utf-8"):
            return subprocess.Popen(command, **options)
        request = {
            "module": module, "arguments": [kind, *more], "environment": environment,
            "folder": str(Path.cwd()), "umask": _umask(), "path": environment["PYTHONPATH"].split(os.pathsep),
            "ignored": [int(n) for n in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(n) == signal.SIG_IGN],
        }  # fmt: skip
        streams = {1: options["stdout"].fileno(), 2: options["stderr"].fileno()}
        streams |= {number: number for number in options["pass_fds"]}
        try:
            return ForkedChild(self._folder / kind, request, streams)
        except ConnectionError:  # what this kind imports has failed: a process of its own says so
            return subprocess.Popen(command, **options)


def _umask() -> int:
    """Read where that does not set it: another thread may be making a file."""
    lines = Path("/proc/self/status").read_text("ascii", "replace").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Umask:")), 8)


if __name__ == "__main__":
    from tensordiff.cli.main import run

    if FOLDER in os.environ:
        child.subprocess = ForkingSubprocess(Path(os.environ[FOLDER]))  # type: ignore[assignment, attr-defined]
    run()
