"""One visitor: the process that runs the app for them, and the traffic between it and their browser.

The process speaks textual-serve's protocol: packets of a type, a length and a payload. It has a process group of its
own, and is ended after the visitor has left. Its stderr is printed by the server.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from textual_serve.app_service import AppService

from tensordiff.cli.streams import say
from tensordiff.errors import printable

_READY = b"__GANGLION__\n"
_LINES_BEFORE_READY = 10
_HEAD_BYTES = 5
_MOST_SAID = 1 << 16
"""Bytes of stderr that are kept."""
_GRACE_S = 5.0
"""How long a process may take to end by itself after its visitor has left."""
_LARGEST = (1, 1000)
"""The least and most columns and lines of a terminal: the app holds a cell for each position."""
_TO_BROWSER = ("exit", "deliver_file_start")
"""Messages of the app that are passed on; it may not open pages in the browser."""


class Visitor(AppService):  # type: ignore[misc]
    """A process of the app, run with the command ``words``."""

    def __init__(self, words: Sequence[str], **links: Any) -> None:
        super().__init__("", **links)
        self._words = words
        self._process: Any = None
        self._task: asyncio.Task[None] | None = None
        self._said = b""

    async def _open_app_process(self, width: int = 80, height: int = 24) -> asyncio.subprocess.Process:
        """Start the process, without a shell."""
        columns, lines = clamp(width), clamp(height)
        self._process = process = await asyncio.create_subprocess_exec(
            *self._words,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=self._build_environment(width=columns, height=lines), start_new_session=True,
        )  # fmt: skip
        self._stdin = process.stdin
        return process

    async def run(self) -> None:
        """Pass on what the app writes, until it ends; then tell the browser."""
        stdout, stderr = self._process.stdout, self._process.stderr
        errors = asyncio.create_task(self._keep_errors(stderr))
        with suppress(asyncio.IncompleteReadError):
            if await _is_ready(stdout):
                while True:
                    await self._pass_on(stdout)
        await errors
        await self._process.wait()
        await self.remote_close()

    async def _pass_on(self, stdout: asyncio.StreamReader) -> None:
        head = await stdout.readexactly(_HEAD_BYTES)
        payload = await stdout.readexactly(int.from_bytes(head[1:], "big"))
        take = {b"D": self.on_data, b"M": self.on_meta, b"P": self.on_packed}[head[:1]]
        with suppress(ConnectionError):  # the browser is gone; the app ends sooner if it can write its last frames
            await take(payload)

    async def _keep_errors(self, stderr: asyncio.StreamReader) -> None:
        while data := await stderr.read(1 << 12):
            self._said = (self._said + data)[-_MOST_SAID:]

    async def on_meta(self, data: bytes) -> None:
        """Pass a message on to the browser, if it is one of the few that are allowed."""
        if json.loads(data)["type"] in _TO_BROWSER:
            await super().on_meta(data)

    async def stop(self) -> None:
        """End the process after the visitor left: ask it, then kill it, and wait for it."""
        if self._task is None:
            return
        task, self._task = self._task, None
        await self._download_manager.cancel_app_downloads(app_service_id=self.app_service_id)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_S):
                    await self.send_meta({"type": "quit"})
                    await asyncio.wait({task})
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        task.cancel()
        await asyncio.wait({task})
        for line in self._said.decode("utf-8", "replace").splitlines():
            say(f"a visitor's process: {printable(line)}")


async def _is_ready(stdout: asyncio.StreamReader) -> bool:
    for _ in range(_LINES_BEFORE_READY):
        line = await stdout.readline()
        if line in (_READY, b""):
            return line == _READY
    return False


def clamp(size: int) -> int:
    """A number of columns or lines, within limits."""
    return max(_LARGEST[0], min(size, _LARGEST[1]))
