"""The app in a real browser, where one is installed: the table is painted, and a key moves in it."""

from __future__ import annotations

import asyncio
import base64
import io
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from PIL import Image

from tests.cli.commands.test_serve import address

__all__ = ["address"]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SIZE = "1280,800"
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")


class Page:
    """One page, driven over the browser's own protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket, self.asked = socket, 0

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self.asked += 1
        await self.socket.send_json({"id": self.asked, "method": method, "params": params})
        while True:
            answer = await self.socket.receive_json(timeout=60)
            if answer.get("id") == self.asked:
                assert "result" in answer, answer
                return dict(answer["result"])

    async def picture(self) -> np.ndarray:
        shot = await self.ask("Page.captureScreenshot")
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")).astype(int)

    async def click(self, x: int, y: int) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            await self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def press(self, key: str) -> None:
        await self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        await self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)


@asynccontextmanager
async def page_at(url: str, profile: Path) -> AsyncIterator[Page]:
    assert BROWSER
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
               f"--user-data-dir={profile}", f"--window-size={SIZE}", "about:blank"]  # fmt: skip
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = await _port(profile / "DevToolsActivePort")
        async with aiohttp.ClientSession() as client:
            async with client.get(f"http://127.0.0.1:{port}/json") as tabs:
                target = next(tab for tab in await tabs.json() if tab["type"] == "page")
            async with client.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                await page.ask("Page.enable")
                await page.ask("Emulation.setFocusEmulationEnabled", enabled=True)
                await page.ask("Page.navigate", url=url)
                while (await socket.receive_json(timeout=60)).get("method") != "Page.loadEventFired":
                    pass
                yield page
    finally:
        browser.terminate()
        browser.wait(30)


async def _port(written: Path) -> int:
    for _ in range(600):
        if written.exists() and (lines := written.read_text().splitlines()):
            return int(lines[0])
        await asyncio.sleep(0.1)
    raise AssertionError("the browser did not start")


def _lines(picture: np.ndarray) -> int:
    """How many lines of pixels have text on them."""
    return int(((picture.sum(axis=2) > 300).sum(axis=1) > 20).sum())


async def _settled(page: Page, unlike: np.ndarray | None = None) -> np.ndarray:
    """The page once it is full of text, differs from another picture, and no longer changes."""
    before = await page.picture()
    for _ in range(120):
        await asyncio.sleep(0.5)
        now = await page.picture()
        is_new = unlike is None or not np.array_equal(now, unlike)
        if np.array_equal(now, before) and is_new and _lines(now) > 120:
            return now
        before = now
    raise AssertionError("the page did not come to rest")


async def test_the_table_is_painted_and_a_key_opens_the_rules(address: str, tmp_path: Path) -> None:
    async with page_at(address, tmp_path / "profile") as page:
        await _settled(page)
        await page.click(300, 100)  # any line of the table, once it is painted
        table = await _settled(page)
        await page.press("m")
        opened = await _settled(page, unlike=table)
        Image.fromarray(opened.astype(np.uint8)).save(tmp_path / "serve.png")
        left = slice(0, 400)
        assert (np.abs(opened[:, left] - table[:, left]).sum(axis=2) > 60).sum() > 2000  # the rules stand at the side
