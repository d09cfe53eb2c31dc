"""Thirty visitors of ``serve`` at once, some of whom misbehave.

A case: thirty browsers connect. Those that behave see the app and press keys; others vanish, send what no page of ours
sends, or try to come in by a wrong name, origin, token or cookie. Whoever behaves is served; the others get nothing.
When all have left, no process of theirs is there, and the server has the files and memory that it had before. One
server serves all cases, so that what stays would add up.
"""

from __future__ import annotations

import asyncio
import random
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from torture.commands import COMMAND, make_samples
from torture.part import Check
from torture.processes import Case, descriptors, memory_mb, started, waited

_VISITORS = 30
_PATIENCE_S = 240.0
_MOST_GROWTH_MB = 60.0
_MOST_MORE_FILES = 4
_PAINTED = b"diverges"
_KEYS = ("n", "m", "s", "f", "j", "k", "?", "\r", "\x1b", "+", "-", "\x1b[B", "\x1b[6~", "e", "c", "i", "b")
_NONSENSE = ("x", "{}", "[]", "[" * 50_000, '["stdin", 1]', '["resize", {"width": "a"}]', '["open", "x"]', "\0")
_GONE = (aiohttp.ClientError, ConnectionError, TimeoutError)


@dataclass
class Server:
    """``tensordiff serve``, running."""

    process: subprocess.Popen[bytes]
    case: Case
    address: str
    token: str
    files: int = 0
    memory: float = 0.0

    @property
    def origin(self) -> str:
        """As its own pages say it."""
        return self.address.rstrip("/")


@contextmanager
def opened(folder: Path) -> Iterator[Check]:
    """Start a server on samples."""
    samples = folder / "samples"
    samples.mkdir()
    make_samples(samples)
    case = Case(folder / "server")
    words = [*COMMAND, "serve", "ref.safetensors", "cand.safetensors", "--port", "0", "--max-visitors", str(_VISITORS)]
    with (case.folder / "stdout").open("wb") as out, (case.folder / "stderr").open("wb") as err:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
        with started(words, case, samples, streams) as process:
            printed = case.folder / "stdout"
            waited(lambda: process.poll() is not None or printed.read_bytes().endswith(b"\n"), _PATIENCE_S)
            found = re.match(r"(http://.*/)\?token=(\S+)", printed.read_text())
            assert found, (case.folder / "stderr").read_text()  # noqa: S101 - nothing could be tried
            server = Server(process, case, found[1], found[2])

            def check(rng: random.Random) -> list[str]:
                return asyncio.run(_case(rng, server))

            yield check
            process.send_signal(signal.SIGINT)
            waited(lambda: process.poll() is not None, _PATIENCE_S)


async def _case(rng: random.Random, server: Server) -> list[str]:
    cookie = await _cookie(server)
    if not server.files:  # one visitor first: what the server loads once is loaded then
        await _behaves(random.Random(rng.random()), server, cookie)  # noqa: S311 - nothing is kept secret with them
        await _left(server)
        server.files, server.memory = descriptors(server.process.pid), memory_mb(server.process.pid)
    ways = [_behaves] * (_VISITORS - 12) + rng.choices((_vanishes, _sends_nonsense, _behaves), k=12)
    attempts = [way(random.Random(rng.random()), server, cookie) for way in ways]  # noqa: S311
    attempts += [way(random.Random(rng.random()), server, cookie) for way in (_comes_in_wrong,) * 10]  # noqa: S311
    found = [wrong for wrong in await asyncio.gather(*attempts) if wrong]
    if not await _left(server):
        found.append(f"{len(_apps(server))} processes of visitors are left")
    return found + _grown(server)


def _grown(server: Server) -> list[str]:
    if server.process.poll() is not None:
        return [f"the server ended with {server.process.returncode}"]
    found = []
    more = descriptors(server.process.pid) - server.files
    if more > _MOST_MORE_FILES:
        found.append(f"the server has {more} more files open than before")
    grown = memory_mb(server.process.pid) - server.memory
    if grown > _MOST_GROWTH_MB:
        found.append(f"the server's memory grew by {grown:.0f} MB")
    said = (server.case.folder / "stderr").read_text("utf-8", "replace")
    if "Traceback" in said or "a defect of tensordiff" in said:
        found.append(f"the server said {said[-600:]!r}")
    return found


def _apps(server: Server) -> list[int]:
    return [pid for pid in server.case.processes() if pid != server.process.pid]


async def _left(server: Server) -> bool:
    """Wait until all visitors' processes are gone."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            while _apps(server):
                await asyncio.sleep(0.2)
    return not _apps(server)


async def _cookie(server: Server) -> dict[str, str]:
    url = f"{server.address}?token={server.token}"
    async with aiohttp.ClientSession() as client, client.get(url, allow_redirects=False) as answer:
        return {name: morsel.value for name, morsel in answer.cookies.items()}


# --- ways to visit --------------------------------------------------------------------------------


@asynccontextmanager
async def _visiting(server: Server, cookie: dict[str, str], url: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    session = aiohttp.ClientSession(cookies=cookie)
    async with session as client, client.ws_connect(url, origin=server.origin) as visit:
        yield visit


async def _until_painted(visit: aiohttp.ClientWebSocketResponse) -> bool:
    painted = b""
    while _PAINTED not in painted:
        message = await visit.receive()
        if message.type not in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
            return False
        painted += message.data if isinstance(message.data, bytes) else b""
    return True


def _url(rng: random.Random, server: Server) -> str:
    return f"{server.address}ws?width={rng.randint(1, 300)}&height={rng.randint(1, 100)}"


async def _behaves(rng: random.Random, server: Server, cookie: dict[str, str]) -> str:
    try:
        url = f"{server.address}ws?width=120&height=40"
        async with asyncio.timeout(_PATIENCE_S), _visiting(server, cookie, url) as visit:
            if not await _until_painted(visit):
                return f"a visitor who behaves was not shown the app ({visit.close_code})"
            for key in rng.choices(_KEYS, k=rng.randint(0, 8)):
                await visit.send_json(["stdin", key])
                with suppress(TimeoutError):
                    await visit.receive(rng.uniform(0, 0.3))
    except TimeoutError:
        return f"a visitor who behaves was not shown the app within {_PATIENCE_S:.0f} s"
    except aiohttp.ClientError as error:
        return f"a visitor who behaves met {error!r:.200}"
    return ""


async def _vanishes(rng: random.Random, server: Server, cookie: dict[str, str]) -> str:
    with suppress(*_GONE):
        async with asyncio.timeout(rng.uniform(0.05, 20)), _visiting(server, cookie, _url(rng, server)) as visit:
            try:
                await _until_painted(visit)
            finally:
                if visit._conn is not None and visit._conn.transport is not None:
                    visit._conn.transport.abort()
    return ""


async def _sends_nonsense(rng: random.Random, server: Server, cookie: dict[str, str]) -> str:
    try:
        async with asyncio.timeout(_PATIENCE_S), _visiting(server, cookie, _url(rng, server)) as visit:
            await visit.send_str(rng.choice(_NONSENSE))
            while not visit.closed:
                await visit.receive()
    except TimeoutError:
        return "who sends nonsense is not shown out"
    except (aiohttp.ClientError, ConnectionError):
        pass
    return ""


async def _comes_in_wrong(rng: random.Random, server: Server, cookie: dict[str, str]) -> str:
    """By a wrong name, origin, token or cookie: nothing but refusals."""
    (name, value), evil = next(iter(cookie.items())), rng.choice(("evil.test", "127.0.0.2", "localhost.evil.test:1"))
    wrong_cookie = {name: value[:-1] + ("A" if value[-1] != "A" else "B")}
    way = rng.choice(("host", "origin", "cookie", "token", "site", "method"))
    headers = {"host": {"Host": evil}, "origin": {"Origin": f"http://{evil}"}, "site": {"Sec-Fetch-Site": "cross-site"}}
    path = rng.choice(("", "ws", "static/js/textual.js", "download/x", "../etc/passwd", "%2e%2e/x"))
    if way == "token":
        path = f"?token={server.token[:-1]}"
    is_out = way in ("cookie", "token")
    async with aiohttp.ClientSession(cookies=wrong_cookie if is_out else cookie) as client:
        method = rng.choice(("POST", "PUT", "DELETE", "OPTIONS")) if way == "method" else "GET"
        with suppress(ConnectionError, aiohttp.ClientError):
            async with client.request(method, server.address + path, headers=headers.get(way)) as answer:
                if answer.status < 400:
                    return f"{method} /{path} with a wrong {way} was answered with {answer.status}"
    return ""
