"""The app in a real browser: an ordinary visit works; pages of others get nothing while that browser holds the cookie.

Where no Chromium is installed these are skipped. Each attack is seen from both sides: what the page of the attacker
learned, and what the server answered.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from PIL import Image

from tests.cli.serving.browser import BROWSER, EVIL, REBOUND, Page, browsing
from tests.cli.serving.here import PAINTED, Answered, Serving, running, serving, until

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed; apt-get install chromium")
REFUSED = {403, 421}
CTRL = 2


# --- ordinary visits -----------------------------------------------------------------------------


async def test_the_printed_address_shows_the_app_and_a_key_opens_the_rules(tmp_path: Path) -> None:
    async with serving() as here, browsing(tmp_path / "profile") as page:
        await page.visit(here.with_token)
        assert await page.run("location.href") == here.address
        assert await page.run("document.cookie") == ""  # no script sees it
        await page.shows(PAINTED)
        await page.click(300, 100)  # any line of the table
        table = await page.settled()
        await page.press("m")
        await page.shows(b"on/off")
        opened = await page.settled(unlike=table)
        Image.fromarray(opened.astype(np.uint8)).save(tmp_path / "serve.png")
        left = slice(0, 400)
        assert (np.abs(opened[:, left] - table[:, left]).sum(axis=2) > 60).sum() > 2000  # the rules stand at the side
        assert {one.status for one in here.answered} <= {101, 200, 303}
        await page.visit(here.address)  # again, without the token
        await page.shows(PAINTED)


async def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    async with serving() as here, browsing(tmp_path / "profile") as page:
        await page.visit(here.with_token)
        await page.shows(PAINTED)
        asked = [event["request"]["url"] for event in page.events("Network.requestWillBeSent")]
        urls = {url for url in asked if not url.startswith("data:")}
        assert urls and all(url.startswith(here.address) for url in urls)
        assert not page.events("Network.loadingFailed")


async def test_a_link_in_a_page_of_another_site_leads_in(tmp_path: Path) -> None:
    async with serving() as here, browsing(tmp_path / "profile") as page:
        link = f'<a href="{here.with_token}">look at this</a>'
        async with site(link) as port:
            await page.visit(f"http://{EVIL}:{port}/")
            await page.run("document.querySelector('a').click()")
            await page.until(
                f"location.href === {json.dumps(here.address)} && document.querySelector('.xterm') !== null"
            )
            await page.shows(PAINTED)


async def test_a_report_is_downloaded(tmp_path: Path) -> None:
    async with serving() as here, browsing(tmp_path / "profile") as page:
        folder = str(tmp_path / "kept")
        await page.ask("Browser.setDownloadBehavior", behavior="allow", downloadPath=folder, eventsEnabled=True)
        await page.visit(here.with_token)
        await page.shows(PAINTED)
        await page.click(300, 100)
        await page.press("e")
        await page.shows(b"as a download")
        await page.press("s", modifiers=CTRL, windowsVirtualKeyCode=83, text="")
        await page.event("Browser.downloadProgress", state="completed")
        kept = tmp_path / "kept" / "candidate-vs-reference.md"
        assert "layers.1.mlp.act_fn" in kept.read_text("utf-8")
        assert await page.run("location.href") == here.address


async def test_one_visitor_too_many_reads_a_sentence(tmp_path: Path) -> None:
    async with serving(most_visitors=1) as here, browsing(tmp_path / "profile") as page:
        await page.visit(here.with_token)
        await page.shows(PAINTED)
        async with browsing(tmp_path / "other") as other:
            await other.visit(here.with_token)
            assert "1 visitors are connected" in await other.run("document.body.innerText")
        for _ in range(2):  # who reloads is refused at first, since they have not left, and is let in soon
            await page.visit(here.address)
            await page.shows(PAINTED)


# --- pages of others -----------------------------------------------------------------------------


@asynccontextmanager
async def site(html: str = "<p>nothing to see</p>", address: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    """A page of somebody else, at whatever path; its port."""

    async def page(_: web.Request) -> web.Response:
        return web.Response(text=f"<!doctype html><body>{html}", content_type="text/html")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", page)
    sock = socket.socket()
    sock.bind((address, port))
    async with running(app, sock):
        yield sock.getsockname()[1]


ATTACKS = """
(async () => {
  const target = %(target)s, learned = {};
  const attempt = async (name, work) => {
    try { learned[name] = await work(); } catch (error) { learned[name] = "failed: " + error.name; }
  };
  const settled = (node, attach) => new Promise((done) => {
    node.onload = () => done("loaded");
    node.onerror = () => done("failed");
    attach(node);
  });
  const add = (node) => document.body.append(node);
  const element = (name, set) => Object.assign(document.createElement(name), set);
  await attempt("fetch", async () => (await fetch(target, {credentials: "include"})).status);
  await attempt("fetch static", async () => (await (await fetch(target + "static/js/textual.js")).text()).length);
  await attempt("fetch no-cors", async () => {
    const answer = await fetch(target, {mode: "no-cors", credentials: "include"});
    return answer.type + " " + (await answer.text()).length;
  });
  await attempt("post", async () => (await fetch(target, {method: "POST", credentials: "include", body: "x"})).status);
  await attempt("preflight", async () => (await fetch(target, {headers: {"X-A": "b"}, credentials: "include"})).status);
  await attempt("image", () => settled(new Image(), (node) => { node.src = target + "static/images/background.png"; }));
  await attempt("script", () => settled(element("script", {src: target + "static/js/textual.js"}), add));
  await attempt("style", () => settled(element("link", {rel: "stylesheet", href: target + "static/css/xterm.css"}),
    add));
  await attempt("socket", () => new Promise((done) => {
    const socket = new WebSocket(target.replace("http", "ws") + "ws?width=80&height=24");
    socket.onopen = () => done("opened");
    socket.onmessage = () => done("heard");
    socket.onerror = () => done("failed");
  }));
  const framed = element("iframe", {src: target, name: "framed"});
  await attempt("frame", () => settled(framed, add));
  await attempt("frame read", async () => framed.contentWindow.document.body.innerText);
  for (const method of ["POST", "GET"]) {
    const form = element("form", {method, action: target, target: "framed"});
    add(form);
    await attempt("form " + method, () => settled(framed, () => form.submit()));
  }
  await attempt("download", () => settled(new Image(), (node) => { node.src = target + "download/0"; }));
  return learned;
})()
"""


async def attack(page: Page, here: Serving, target: str) -> tuple[dict[str, object], list[Answered]]:
    """All attacks from the page that is shown; what it learned, and what the server answered."""
    here.answered.clear()
    learned = await page.run(ATTACKS % {"target": json.dumps(target)})
    assert isinstance(learned, dict)
    return learned, list(here.answered)


@asynccontextmanager
async def visited(tmp_path: Path) -> AsyncIterator[tuple[Serving, Page]]:
    """A browser that has been in the app, and so holds the cookie."""
    async with serving() as here, browsing(tmp_path / "profile") as page:
        await page.visit(here.with_token)
        await page.shows(PAINTED)
        yield here, page


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", EVIL], ids=["another port", "another name", "another site"])
async def test_a_page_of_another_origin_gets_nothing(tmp_path: Path, name: str) -> None:
    async with visited(tmp_path) as (here, page), site() as port:
        await page.visit(f"http://{name}:{port}/")
        await until(lambda: here.server.visits == 0)
        learned, answered = await attack(page, here, here.address)
        assert learned.pop("fetch no-cors") in ("failed: TypeError", "opaque 0")
        assert learned.pop("frame") in ("loaded", "failed")  # a browser says "loaded" of its own error page too
        assert learned.pop("frame read") in ("failed: SecurityError", "failed: TypeError")  # not there, or not ours
        forms = {learned.pop(f"form {method}") for method in ("POST", "GET")}
        assert forms <= {"loaded", "failed"}  # a frame loads whatever it is shown: the refusal
        assert set(learned.values()) <= {"failed", "failed: TypeError"}, learned
        assert len(answered) >= 12 and {one.status for one in answered} == {403}
        assert "/ws" in {one.path for one in answered} and here.server.visits == 0
        if name == "127.0.0.1":  # cookies know no ports: the browser does send it
            assert any(one.has_cookie for one in answered)
        await page.visit(here.address)  # the visitor's own page works as before
        await page.shows(PAINTED)


async def test_a_name_that_leads_here_is_not_ours(tmp_path: Path) -> None:
    async with visited(tmp_path) as (here, page):
        for path in ("", f"?token={here.guard.token}", "static/js/textual.js"):
            await page.visit(f"http://{EVIL}:{here.port}/{path}")
            assert "does not go by that name" in await page.run("document.body.innerText")
        assert here.answered[-1].status == 421


@asynccontextmanager
async def name_that_changes(port: int) -> AsyncIterator[asyncio.Event]:
    """What an attacker's name leads to: their page at first, and once the event is set this server, on the same port.

    For a browser that is DNS rebinding: the same origin, at another address from one moment to the next.
    """
    has_changed = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:  # a browser connects ahead, and may not need it
            writer.close()
            return
        if has_changed.is_set():  # asked after the request: a connection made ahead counts as made now
            theirs = await asyncio.open_connection("127.0.0.1", port)
            try:
                theirs[1].write(request)
                await asyncio.gather(_pump(reader, theirs[1]), _pump(theirs[0], writer), return_exceptions=True)
            finally:  # also where the browser is gone in the middle, or the test is over
                theirs[1].close()
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n<!doctype html><body>")
        writer.close()

    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await answer(reader, writer)
        finally:
            writer.close()
            connections.discard(task)

    server = await asyncio.start_server(connected, "127.0.0.2", port)
    async with server:
        try:
            yield has_changed
        finally:  # a browser keeps connections for later: they would outlive the loop
            for task in connections:
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


async def test_dns_rebinding_meets_a_refusal(tmp_path: Path) -> None:
    async with visited(tmp_path) as (here, page), name_that_changes(here.port) as has_changed:
        own = f"http://{REBOUND}:{here.port}/"
        await page.visit(own)
        await until(lambda: here.server.visits == 0)
        has_changed.set()
        learned, answered = await attack(page, here, own)
        # To the browser it is one origin now, so the page reads what it gets: a refusal, whatever it asks for.
        assert learned["fetch"] == learned["post"] == learned["preflight"] == 421
        assert "does not go by that name" in str(await page.run(f"fetch({json.dumps(own)}).then((a) => a.text())"))
        assert learned["socket"] == learned["image"] == "failed"
        assert {one.status for one in answered} == {421} and not any(one.has_cookie for one in answered)
        token = json.dumps(f"{own}?token={here.guard.token}")
        assert await page.run(f"fetch({token}).then((answer) => answer.status)") == 421
        assert here.server.visits == 0
