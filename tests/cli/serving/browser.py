"""A real browser, driven over its own protocol; where none is installed the tests that need it are skipped."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from PIL import Image

from tests.processes import PATIENCE_S

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SIZE = "1280,800"
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
EVIL, REBOUND = "evil.test", "rebound.test"
"""Names of an attacker: one leads to this machine, one to another address of it."""
_BINARY = 2
"""The kind of a frame of a websocket that holds bytes: here, what the app paints."""
_NAMES = f"MAP {EVIL} 127.0.0.1, MAP {REBOUND} 127.0.0.2"


class Page:
    """One page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._asked = socket, 0
        self._events: list[dict[str, Any]] = []

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Have the browser do something; its answer."""
        self._asked += 1
        await self._socket.send_json({"id": self._asked, "method": method, "params": params})
        async with asyncio.timeout(PATIENCE_S):
            while True:
                answer = await self._socket.receive_json()
                if answer.get("id") == self._asked:
                    assert "result" in answer, answer
                    return dict(answer["result"])
                self._events.append(answer)

    def events(self, method: str) -> list[dict[str, Any]]:
        """What has happened since the last visit."""
        return [event["params"] for event in self._events if event["method"] == method]

    async def event(self, method: str, **values: Any) -> dict[str, Any]:
        """Wait for something to happen, or to have happened since the last visit."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for params in self.events(method):
                    if values.items() <= params.items():
                        return params
                self._events.append(await self._socket.receive_json())

    async def shows(self, *texts: bytes) -> None:
        """Wait until the app has painted all of these since the last visit, and the browser has got them."""
        async with asyncio.timeout(PATIENCE_S):
            while not all(text in self._painted() for text in texts):
                self._events.append(await self._socket.receive_json())

    def _painted(self) -> bytes:
        frames = [event["response"] for event in self.events("Network.webSocketFrameReceived")]
        return b"".join(base64.b64decode(frame["payloadData"]) for frame in frames if frame["opcode"] == _BINARY)

    async def visit(self, url: str) -> None:
        """Type an address, and wait until it is there."""
        self._events.clear()
        await self.ask("Page.navigate", url=url)
        await self.event("Page.loadEventFired")

    async def run(self, script: str) -> Any:
        """The value of a script in the page, awaited where it is a promise."""
        done = await self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    async def until(self, script: str) -> None:
        """Ask the page again and again until something is so."""
        async with asyncio.timeout(PATIENCE_S):
            while not await self.run(script):
                await asyncio.sleep(0.1)

    async def picture(self) -> np.ndarray:
        shot = await self.ask("Page.captureScreenshot")
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")).astype(int)

    async def settled(self, unlike: np.ndarray | None = None, lines: int = 120) -> np.ndarray:
        """The page once it is full of text, differs from another picture, and no longer changes.

        ``lines`` of pixels have bright text on them; behind a dialog it is dimmed.
        """
        before = await self.picture()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await asyncio.sleep(0.5)
                now = await self.picture()
                is_new = unlike is None or not np.array_equal(now, unlike)
                if np.array_equal(now, before) and is_new and _lines(now) > lines:
                    return now
                before = now

    async def click(self, x: int, y: int) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            await self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def press(self, key: str, **more: Any) -> None:
        await self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, **({"text": key} | more))
        await self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, **more)


def _lines(picture: np.ndarray) -> int:
    """How many lines of pixels have text on them."""
    return int(((picture.sum(axis=2) > 300).sum(axis=1) > 20).sum())


@asynccontextmanager
async def browsing(profile: Path) -> AsyncIterator[Page]:
    """A browser with an empty page."""
    assert BROWSER
    command = [BROWSER, *_FLAGS, "--remote-debugging-port=0", f"--user-data-dir={profile}",
               f"--window-size={SIZE}", f"--host-resolver-rules={_NAMES}", "about:blank"]  # fmt: skip
    browser = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )  # its helpers end with it
    try:
        port = await _port(browser, profile / "DevToolsActivePort")
        async with aiohttp.ClientSession() as client:
            async with client.get(f"http://127.0.0.1:{port}/json") as tabs:
                target = next(tab for tab in await tabs.json() if tab["type"] == "page")
            async with client.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Page", "Network"):
                    await page.ask(f"{domain}.enable")
                await page.ask("Emulation.setFocusEmulationEnabled", enabled=True)
                yield page
    finally:
        os.killpg(browser.pid, signal.SIGKILL)
        browser.wait(PATIENCE_S)


async def _port(browser: subprocess.Popen[bytes], written: Path) -> int:
    async with asyncio.timeout(PATIENCE_S):
        while not (written.exists() and (lines := written.read_text().splitlines())):
            assert browser.poll() is None, f"{BROWSER} ended by itself: {browser.returncode}"
            await asyncio.sleep(0.1)
        return int(lines[0])
