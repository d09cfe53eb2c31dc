"""A server of the app in this process, on a free port; its visitors are real processes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web

from tensordiff.cli.commands.serve import command_line
from tensordiff.cli.serving.guard import Guard, host_headers
from tensordiff.cli.serving.server import AppServer
from tensordiff.tui.permissions import SPELLINGS
from tests.cli.command import CANDIDATE, REFERENCE
from tests.processes import PATIENCE_S

PAINTED = b"diverges first at"
"""Said once all is measured."""


class Answered(NamedTuple):
    """A request that the server has answered."""

    path: str
    origin: str | None
    has_cookie: bool
    status: int


@dataclass
class Serving:
    """A server that runs."""

    server: AppServer
    port: int
    answered: list[Answered] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def guard(self) -> Guard:
        return self.server.guard

    @property
    def with_token(self) -> str:
        """The address as it is printed."""
        return f"{self.address}?token={self.guard.token}"

    @property
    def cookies(self) -> dict[str, str]:
        """What a browser holds that has been here."""
        return {self.guard.cookie_name: self.guard.cookie}

    async def note(self, request: web.Request, response: web.StreamResponse) -> None:
        has_cookie = self.guard.cookie_name in request.cookies
        self.answered.append(Answered(request.path, request.headers.get("Origin"), has_cookie, response.status))


@asynccontextmanager
async def serving(most_visitors: int = 8, may: str = "looks", candidate: str = CANDIDATE) -> AsyncIterator[Serving]:
    """Serve the samples until it is over, and see all visitors off."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    words = command_line(Path(REFERENCE), Path(candidate), SPELLINGS[may], {})
    server = AppServer(words, Guard(host_headers("127.0.0.1", port), f"tensordiff-{port}"), most_visitors)
    here = Serving(server, port)
    app = await server.application()
    app.on_response_prepare.append(here.note)
    async with running(app, sock):
        yield here


@asynccontextmanager
async def running(app: web.Application, sock: socket.socket) -> AsyncIterator[None]:
    """An application that answers on a socket."""
    runner = web.AppRunner(app, shutdown_timeout=PATIENCE_S)
    await runner.setup()
    try:
        await web.SockSite(runner, sock).start()
        yield
    finally:
        await runner.cleanup()


@asynccontextmanager
async def visiting(here: Serving) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A visitor with the cookie, as our own page would connect."""
    async with aiohttp.ClientSession(cookies=here.cookies) as client:
        url = f"{here.address}ws?width=120&height=40"
        async with client.ws_connect(url, origin=here.address.rstrip("/")) as visit:
            yield visit


async def seen(visit: aiohttp.ClientWebSocketResponse, *texts: bytes) -> bytes:
    """Read until all of these were painted."""
    painted = b""
    try:
        async with asyncio.timeout(PATIENCE_S):  # in all: an app that blinks paints for ever
            while not all(text in painted for text in texts):
                message = await visit.receive()
                assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), message
                painted += message.data if isinstance(message.data, bytes) else b""
    except (TimeoutError, AssertionError) as error:
        raise AssertionError(f"{texts!r} was not painted: {error!r}, but {painted[-4000:]!r}") from error
    return painted


async def ended(visit: aiohttp.ClientWebSocketResponse) -> None:
    """Wait until the server has ended a visit."""
    async with asyncio.timeout(PATIENCE_S):
        while not visit.closed:
            await visit.receive()


async def until(is_so: Callable[[], Any]) -> None:
    """Ask again and again until something is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.02)
