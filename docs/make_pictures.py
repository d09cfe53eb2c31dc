"""Make the pictures in the docs from what the command really prints and the app really shows."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tensordiff.session.request import Request
from tensordiff.tui.app import TensordiffApp

ROOT = Path(__file__).resolve().parent.parent


def in_terminal(command: list[str], columns: int, lines: int) -> str:
    """What a command prints in a terminal of this size."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(lines)}
    process = subprocess.Popen(command, cwd=ROOT, stdout=theirs, stderr=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    printed = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            break
        if not piece:
            break
        printed += piece
    process.wait()
    return printed.decode()


SHOWN = {
    "app": ("n",),
    "layer": ("n", "enter"),
    "heatmap": ("n", "enter", "right_square_bracket", "right_square_bracket"),
    "rules": ("m",),
    "bisect": ("b",),
}
"""Pictures of the app, and the keys that lead there."""


async def picture(name: str, keys: tuple[str, ...], size: tuple[int, int] = (132, 40)) -> None:
    """The app on the samples, after these keys."""
    samples = ROOT / "sample_dumps"
    request = Request(samples / "reference", samples / "candidate", injected=samples / "candidate_injected")
    app = TensordiffApp(request, saves_state=False)
    async with app.run_test(size=size) as pilot:
        for key in ("", *keys):
            if key:
                await pilot.press(key)
            await settled(app)
            await pilot.pause()
        app.save_screenshot(f"{name}.svg", path=str(ROOT / "docs"))


async def settled(app: TensordiffApp) -> None:
    """Wait until everything asked for is read and painted."""
    for _ in range(3):
        at_work = [worker for worker in app.workers if worker.group not in ("watch", "run")]
        await app.workers.wait_for_complete(at_work)
        await asyncio.sleep(0.2)


def main() -> None:
    compared()
    for name, keys in SHOWN.items():
        asyncio.run(picture(name, keys))


def compared() -> None:
    """What ``compare`` prints."""
    command = [
        sys.executable, "-m", "tensordiff", "compare", "sample_dumps/reference", "sample_dumps/candidate",
        "--injected", "sample_dumps/candidate_injected", "--only", r"layers\.1|norm$|lm_head",
    ]  # fmt: skip
    printed = in_terminal(command, 118, 50)
    console = Console(record=True, width=118, file=io.StringIO())
    # Renderers drop spaces at the start of a line, but not ones that do not break.
    console.print(Text.from_ansi(printed.replace("\r\n", "\n").rstrip().replace(" ", "\u00a0")))
    shown = "tensordiff compare sample_dumps/reference sample_dumps/candidate --injected …"
    console.save_svg(str(ROOT / "docs" / "compare.svg"), title=shown)


if __name__ == "__main__":
    main()
