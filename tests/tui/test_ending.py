"""How the app is ended by signals: noted at any moment, and handed over when it listens."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys

import pytest

from tensordiff.tui.ending import Ending
from tests import processes


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_that_comes_before_the_app_listens_is_not_lost(number: int, status: int) -> None:
    ending = Ending(grace_s=600)
    left: list[int] = []
    before = signal.getsignal(number)

    async def listens() -> None:
        ending.listen(left.append)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    with ending.minded():
        os.kill(os.getpid(), number)  # which raises nothing
        asyncio.run(listens())
    assert left == [status]
    assert signal.getsignal(number) is before


def test_one_that_comes_later_reaches_the_loop_and_the_first_one_counts() -> None:
    ending = Ending(grace_s=600)
    left: list[int] = []

    async def listens() -> None:
        ending.listen(left.append)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.01)

    with ending.minded():
        asyncio.run(listens())
    assert set(left) == {143}


STUCK = """
import os, signal, threading
from tensordiff.tui.ending import Ending
from tensordiff.util.temporary_folders import make_temporary_folder
print(make_temporary_folder(), flush=True)
with Ending(grace_s=0.1).minded():
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait()
"""


def test_an_app_that_cannot_leave_is_ended() -> None:
    done = processes.run([sys.executable, "-c", STUCK])
    assert (done.returncode, done.stderr) == (143, "")
    assert not os.path.exists(done.stdout.strip())  # noqa: PTH110


WITHOUT_A_TERMINAL = """
import threading
from tensordiff.tui import ending
ending._LOOK_S = 0.05
with ending.Ending(grace_s=0.1).minded():
    print("ready", flush=True)
    threading.Event().wait()
"""


def test_an_app_whose_terminal_is_gone_without_a_signal_is_ended() -> None:
    master, slave = pty.openpty()  # not the terminal that controls the child: no signal comes
    with processes.started([sys.executable, "-c", WITHOUT_A_TERMINAL], stdin=slave, stdout=subprocess.PIPE) as child:
        os.close(slave)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        os.close(master)
        assert processes.ended(child) == 143
