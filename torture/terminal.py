"""A terminal that the app is shown on: what it writes is read as it comes, and how it leaves the terminal is seen."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time

_ON_OFF = {
    "the other screen": (b"\x1b[?1049h", b"\x1b[?1049l"),
    "the mouse": (b"\x1b[?1000h", b"\x1b[?1000l"),
    "bracketed paste": (b"\x1b[?2004h", b"\x1b[?2004l"),
    "the cursor": (b"\x1b[?25l", b"\x1b[?25h"),
}
"""What a program switches on, and off again."""
_POLL_S = 0.02


class Terminal:
    """The keyboard and the screen of one process."""

    def __init__(self, columns: int, lines: int) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(columns, lines)
        self._before = termios.tcgetattr(self.slave)
        self.seen = b""
        """All that was written so far."""

    @property
    def text(self) -> str:
        """The same as text."""
        return self.seen.decode("utf-8", "replace")

    def resize(self, columns: int, lines: int) -> None:
        """Change its size."""
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, text: bytes) -> None:
        """Press keys."""
        os.write(self.master, text)

    def read_for(self, seconds: float, process: subprocess.Popen[bytes]) -> None:
        """Read what comes, for so long or until the process ends."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and process.poll() is None:
            self._read(min(_POLL_S, max(end - time.monotonic(), 0.0)))

    def read_until(self, text: bytes, process: subprocess.Popen[bytes], patience_s: float) -> bool:
        """Read until something is written; whether it was in time."""
        end, start = time.monotonic() + patience_s, len(self.seen)
        while text not in self.seen[start:]:
            if time.monotonic() > end or process.poll() is not None:
                return False
            self._read(_POLL_S)
        return True

    def read_until_ended(self, process: subprocess.Popen[bytes], patience_s: float) -> bool:
        """Read on, for a process may wait for somebody to; whether it ended in time."""
        end = time.monotonic() + patience_s
        while process.poll() is None:
            if time.monotonic() > end:
                return False
            self._read(_POLL_S)
        while self._read(0):
            pass
        return True

    def why_not_restored(self) -> str:
        """What is not as it was before; nothing where all is."""
        if self.slave >= 0 and termios.tcgetattr(self.slave) != self._before:
            return "the terminal's modes are not as they were"
        for name, (on, off) in _ON_OFF.items():
            if self.seen.rfind(on) > self.seen.rfind(off):
                return f"{name} was not given back"
        return ""

    def hang_up(self) -> None:
        """Close it, as a lost connection does."""
        os.close(self.slave)
        os.close(self.master)
        self.master = self.slave = -1

    def close(self) -> None:
        """Take it away."""
        if self.master >= 0:
            self.hang_up()

    def _read(self, patience_s: float) -> bool:
        if self.master < 0:
            time.sleep(patience_s)
            return False
        if not select.select([self.master], [], [], patience_s)[0]:
            return False
        self.seen += os.read(self.master, 1 << 16)
        return True
