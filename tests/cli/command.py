"""Running the command: as a process of its own, or within this one where a process is not the point."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest

from tensordiff.cli.main import run
from tests import processes
from tests.making import SAMPLES

REFERENCE, CANDIDATE, MAX = (str(SAMPLES / name) for name in ("reference", "candidate", "max"))
COMMAND = (sys.executable, "-m", "tensordiff")
CAPTURING = (sys.executable, "-m", "tests.forked_children")
"""The same, but that its captures' children are forked: see there."""


class Said(NamedTuple):
    """What a command left: its status and both streams."""

    status: int
    out: str
    err: str


Call = Callable[..., Said]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without what decides on colour or characters."""
    deciding = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LANG", "PYTHONIOENCODING", "PYTHONUTF8")
    kept = {k: v for k, v in os.environ.items() if k not in deciding and not k.startswith("LC_")}
    return kept | {"LC_ALL": "C.UTF-8"} | dict(more or {})


def process(*args: str, env: Mapping[str, str] | None = None) -> Said:
    """Run the command as a process of its own, its streams being pipes."""
    done = processes.run_for_bytes([*COMMAND, *args], env=environment(env))
    return Said(done.returncode, done.stdout.decode(), done.stderr.decode())


def capturing(*args: str, env: Mapping[str, str] | None = None) -> Said:
    """Run the command as a process of its own whose captures' children are forked."""
    done = processes.run_for_bytes([*CAPTURING, *args], env=environment(env))
    return Said(done.returncode, done.stdout.decode(), done.stderr.decode())


def shell(script: str, **env: str) -> Said:
    """Run a line of shell in which ``$tensordiff`` is the command."""
    line = script.replace("$tensordiff", " ".join(COMMAND))
    done = processes.run_for_bytes(["bash", "-c", line], env=environment(env))
    return Said(done.returncode, done.stdout.decode(), done.stderr.decode())


def caller(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run the command within this process."""

    def call(*args: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["tensordiff", *map(str, args)])
        heard = signal.getsignal(signal.SIGINT)
        with pytest.raises(SystemExit) as left:
            run()
        signal.signal(signal.SIGINT, heard)  # a command that is over no longer hears Ctrl-C; a test does
        assert isinstance(left.value.code, int)
        return Said(left.value.code, *capsys.readouterr())

    return call


def assert_one_sentence(said: Said, *parts: str) -> None:
    """Status 2, nothing but one line on stderr, which has all of these parts."""
    assert said.status == 2
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    assert lines[0].startswith("tensordiff: ")
    assert lines[0].isprintable()
    for part in parts:
        assert part in lines[0]
