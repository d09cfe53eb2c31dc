"""The server behind ``tensordiff serve``: its routes, the page, and the limit on visitors."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from string import Template
from typing import Any, ClassVar

from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp.http_exceptions import HttpProcessingError
from textual_serve.download_manager import DownloadManager

from tensordiff.cli.serving.guard import Guard
from tensordiff.cli.serving.visitor import Visitor, clamp

_FONT_SIZES = range(4, 101)
_FONT_SIZE, _WIDTH, _HEIGHT = 16, 80, 24
_HEARTBEAT_S, _CLOSE_S = 15.0, 3.0
_WRITE_TIMEOUT_S = 60.0
"""How long a process may leave input unread."""
_RETRY_S = 2
"""When a browser asks again if the server was full.

On a reload, the old visit ends only after the new one is answered.
"""
_SHUTDOWN_S = 15.0
"""How long to wait for visitors when the server ends."""
_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self' ws://{host} wss://{host}; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'"
)


class AppServer:
    """Serves the app: ``words`` is the command of a visitor's process."""

    _STATIC: ClassVar[Any] = files("textual_serve") / "static"

    def __init__(self, words: Sequence[str], guard: Guard, most_visitors: int) -> None:
        self.words, self.guard, self.most_visitors = words, guard, most_visitors
        self._downloads = DownloadManager()
        self._visits: set[web.WebSocketResponse] = set()
        """Visits whose visitor has not left."""

    def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Serve until interrupted, on sockets that already listen."""
        logging.getLogger("aiohttp.server").addFilter(_is_defect)
        web.run_app(self.application(), sock=sockets, print=None, access_log=None, shutdown_timeout=_SHUTDOWN_S)

    async def application(self) -> web.Application:
        """All routes, behind the guard."""
        app = web.Application()
        self._processes = asyncio.Semaphore(self.most_visitors)
        app.add_routes(
            [
                web.get("/", self._page),
                web.get("/ws", self._visit, allow_head=False),
                web.get("/download/{key}", self._download, allow_head=False),
                web.static("/static", str(self._STATIC)),
            ]
        )
        app.on_shutdown.append(self._close_visits)
        self.guard.protect(app)
        return app

    async def _close_visits(self, _: web.Application) -> None:
        """Close all visits when the server ends."""
        closing = [visit.close(code=WSCloseCode.GOING_AWAY) for visit in self._visits if visit.prepared]
        await asyncio.gather(*closing, return_exceptions=True)

    @property
    def visits(self) -> int:
        """The number of current visitors."""
        return len(self._visits)

    @property
    def _is_full(self) -> bool:
        return self.visits >= self.most_visitors

    # --- the page --------------------------------------------------------------------------------

    async def _page(self, request: web.Request) -> web.Response:
        if self._is_full:
            return self._refuse_full()
        size = _number(request.query.get("fontsize"), _FONT_SIZE)
        text = Template((files(__package__) / "page.html").read_text("utf-8"))
        policy = {"Content-Security-Policy": _POLICY.format(host=request.headers["Host"])}
        shown = size if size in _FONT_SIZES else _FONT_SIZE
        return web.Response(text=text.substitute(font_size=shown), content_type="text/html", headers=policy)

    def _refuse_full(self) -> web.Response:
        sentence = (
            f"{self.most_visitors} visitors are connected, which is the limit; this page tries again by itself. "
            "Close another window, or start tensordiff serve with --max-visitors"
        )
        return web.Response(text=f"{sentence}\n", status=503, headers={"Refresh": str(_RETRY_S)})

    # --- a visit ---------------------------------------------------------------------------------

    async def _visit(self, request: web.Request) -> web.StreamResponse:
        """Run the app for a visitor, until either of them leaves."""
        if self._is_full:
            return self._refuse_full()
        visit = web.WebSocketResponse(heartbeat=_HEARTBEAT_S, timeout=_CLOSE_S)
        self._visits.add(visit)
        try:
            async with self._processes:  # the process of a visitor who has just left is about to end
                await visit.prepare(request)
                await self._run_app(request, visit)
        finally:
            self._visits.discard(visit)
        return visit

    async def _run_app(self, request: web.Request, visit: web.WebSocketResponse) -> None:
        size = [_number(request.query.get(name), usual) for name, usual in (("width", _WIDTH), ("height", _HEIGHT))]
        visitor = Visitor(
            self.words, write_bytes=visit.send_bytes, write_str=visit.send_str, close=visit.close,
            download_manager=self._downloads,
        )  # fmt: skip
        try:
            await visitor.start(*size)
            with suppress(TimeoutError):
                await _follow(visit, visitor)
        finally:
            self._visits.discard(visit)
            await visitor.stop()
            await visit.close()

    # --- downloads -------------------------------------------------------------------------------

    async def _download(self, request: web.Request) -> web.StreamResponse:
        key = request.match_info["key"]
        try:
            file = await self._downloads.get_download_metadata(key)
        except KeyError:
            return web.Response(text="there is no such file, or it was fetched already\n", status=404)
        response = web.StreamResponse()
        response.content_type = "application/octet-stream"  # so that it is saved, never shown as a page of this server
        response.headers["Content-Disposition"] = f'attachment; filename="{file_name(file.file_name)}"'
        await response.prepare(request)
        async for chunk in self._downloads.download(key):
            await response.write(chunk)
        await response.write_eof()
        return response


def file_name(name: str) -> str:
    """A name of characters that a header and every file system accept."""
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII) or "report"


def _is_defect(record: logging.LogRecord) -> bool:
    """Whether a log record is about a failure here, and not about an unreadable request."""
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


async def _follow(visit: web.WebSocketResponse, visitor: Visitor) -> None:
    """Pass on what the browser sends; raises ``TimeoutError`` if the process does not read it."""
    async for message in visit:
        if message.type is WSMsgType.TEXT:
            async with asyncio.timeout(_WRITE_TIMEOUT_S):
                await _take(_parsed(message.data), visit, visitor)


async def _take(message: object, visit: web.WebSocketResponse, visitor: Visitor) -> None:
    match message:
        case ["stdin", str(text)]:
            await visitor.send_bytes(text.encode("utf-8", "replace"))
        case ["resize", {"width": int(width), "height": int(height)}]:
            await visitor.set_terminal_size(clamp(width), clamp(height))
        case ["ping", value]:
            await visit.send_json(["pong", value])
        case ["blur" | "focus" as what]:
            await visitor.send_meta({"type": what})
        case _:
            await visit.close(code=WSCloseCode.POLICY_VIOLATION)  # not sent by our page


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _number(text: str | None, usual: int) -> int:
    return int(text) if text is not None and re.fullmatch(r"\d{1,6}", text, re.ASCII) else usual
