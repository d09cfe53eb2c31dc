"""The app on a real terminal: which command opens it, and that the terminal is given back however it ends."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cli.running import CANDIDATE, COMMAND, REFERENCE, environment

ALTERNATE, BACK = b"\x1b[?1049h", b"\x1b[?1049l"
_PATIENCE_S = 60


class Terminal:
    """A terminal that is all the command's: input, output and error."""

    def __init__(self, *args: str, cwd: Path, **env: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        known = {"TERM": "xterm-256color", "XDG_STATE_HOME": str(cwd), "XDG_CONFIG_HOME": str(cwd)}
        self.process = subprocess.Popen(
            [*COMMAND, *args], stdin=slave, stdout=slave, stderr=slave, env=environment(known | env), cwd=cwd,
            start_new_session=True,
        )  # fmt: skip
        os.set_blocking(self.master, False)
        self.seen = b""

    def wait_for(self, text: bytes) -> None:
        """Read until something is on the screen."""
        end = time.monotonic() + _PATIENCE_S
        while text not in self.seen:
            assert time.monotonic() < end, self.seen[-2000:]
            self._read()

    def _read(self) -> None:
        time.sleep(0.02)
        with suppress(OSError):  # nothing there yet, or the other end is closed
            while got := os.read(self.master, 1 << 16):
                self.seen += got

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def end(self) -> int:
        """Read on until it has ended, or it would wait for somebody to read."""
        end = time.monotonic() + _PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < end, self.seen[-2000:]
            self._read()
        self._read()
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.slave)
        os.close(self.master)


@contextmanager
def terminal(*args: str, cwd: Path, **env: str) -> Iterator[Terminal]:
    made = Terminal(*args, cwd=cwd, **env)
    try:
        yield made
    finally:
        made.close()


def assert_restored(made: Terminal) -> None:
    assert ALTERNATE in made.seen
    assert made.seen.rindex(BACK) > made.seen.rindex(ALTERNATE)
    assert termios.tcgetattr(made.slave) == made.before
    assert b"Traceback" not in made.seen


def test_two_dumps_open_the_app_and_q_leaves_it(tmp_path: Path) -> None:
    with terminal(REFERENCE, CANDIDATE, cwd=tmp_path) as made:
        made.wait_for(b"act_fn")
        made.type("q")
        assert made.end() == 0
        assert_restored(made)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_restores_the_terminal(tmp_path: Path, number: int, status: int) -> None:
    with terminal("demo", cwd=tmp_path) as made:
        made.wait_for(b"act_fn")
        made.process.send_signal(number)
        assert made.end() == status
        assert_restored(made)


def test_what_cannot_be_opened_is_one_sentence_on_the_terminal(tmp_path: Path) -> None:
    with terminal("./nothing", CANDIDATE, cwd=tmp_path) as made:
        assert made.end() == 2
        assert_restored(made)
        assert b"nothing: no such file or folder" in made.seen[made.seen.rindex(BACK) :]


def test_an_option_of_compare_alone_asks_for_compare(tmp_path: Path) -> None:
    with terminal(REFERENCE, CANDIDATE, "--json", cwd=tmp_path) as made:
        made.wait_for(b'"culprit"')
        assert made.end() == 1
        assert ALTERNATE not in made.seen


def test_nothing_at_all_opens_the_start_screen(tmp_path: Path) -> None:
    with terminal(cwd=tmp_path) as made:
        made.wait_for(b"samples")
        made.type("q")
        assert made.end() == 0
        assert_restored(made)


def test_wrong_settings_name_file_and_word(tmp_path: Path) -> None:
    (tmp_path / "tensordiff.toml").write_text("[keys]\n'table.opne' = 'x'\n")
    with terminal(REFERENCE, CANDIDATE, cwd=tmp_path) as made:
        assert made.end() == 2
        assert b"tensordiff.toml" in made.seen
        assert b"'table.open' is meant" in made.seen
        assert b"Traceback" not in made.seen
