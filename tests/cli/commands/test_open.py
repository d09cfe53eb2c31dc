"""The app on a real terminal: which command opens it, and that the terminal is given back however it ends."""

from __future__ import annotations

import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import processes
from tests.cli.command import CANDIDATE, COMMAND, REFERENCE, environment
from tests.processes import Terminal, on_terminal

ALTERNATE, BACK = b"\x1b[?1049h", b"\x1b[?1049l"


class Shown(NamedTuple):
    """A command on a terminal that is all its own: input, output and error."""

    terminal: Terminal
    process: subprocess.Popen[bytes]

    @property
    def seen(self) -> bytes:
        return self.terminal.seen

    def wait_for(self, text: bytes) -> None:
        """Read until something is on the screen."""
        self.terminal.until(text)

    def type(self, text: str) -> None:
        self.terminal.type(text)

    def end(self) -> int:
        """Read on until it has ended; its status."""
        return self.terminal.read_until_ended(self.process)


@contextmanager
def terminal(*args: str, cwd: Path, **env: str) -> Iterator[Shown]:
    known = {"TERM": "xterm-256color", "XDG_STATE_HOME": str(cwd), "XDG_CONFIG_HOME": str(cwd)}
    with on_terminal([*COMMAND, *args], 120, 40, env=environment(known | env), cwd=cwd) as (made, process):
        yield Shown(made, process)


def assert_restored(made: Shown) -> None:
    assert ALTERNATE in made.seen
    assert made.seen.rindex(BACK) > made.seen.rindex(ALTERNATE)
    assert termios.tcgetattr(made.terminal.slave) == made.terminal.before
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


def test_a_signal_ends_it_though_its_terminal_takes_no_more(tmp_path: Path) -> None:
    """Nobody reads what it paints, as when a connection stalls: all of it waits, and a signal must still end it."""
    with terminal("demo", cwd=tmp_path) as made:
        made.wait_for(b"act_fn")
        blocked = made.process.pid
        for _ in range(60):
            made.type("jk")
        processes.until(lambda: waits(blocked))
        made.process.send_signal(signal.SIGTERM)
        assert processes.ended(made.process) == 143
        assert termios.tcgetattr(made.terminal.slave) == made.terminal.before


def waits(pid: int) -> bool:
    """Whether a process has done nothing for a while: it spent no time on a processor."""
    stat = Path(f"/proc/{pid}/stat")
    before = stat.read_text().split()[13:15]
    time.sleep(1)
    return stat.read_text().split()[13:15] == before


def test_a_terminal_that_goes_away_ends_it(tmp_path: Path) -> None:
    with terminal("demo", cwd=tmp_path) as made:
        made.wait_for(b"act_fn")
        made.process.send_signal(signal.SIGHUP)
        assert made.end() == 143
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
    (tmp_path / "tensordiff.toml").write_text("columns = ['layre']\n")
    with terminal(REFERENCE, CANDIDATE, cwd=tmp_path) as made:
        assert made.end() == 2
        assert b"tensordiff.toml" in made.seen
        assert b"did you mean 'layer'?" in made.seen
        assert b"Traceback" not in made.seen
