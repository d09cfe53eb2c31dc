"""The app in a browser: the address is printed, the page is there, and a visitor sees the table."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.cli.command import CANDIDATE, COMMAND, REFERENCE, Call, assert_one_sentence, environment
from tests.processes import PATIENCE_S, ended, started, until


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A server, ended as Ctrl-C would."""
    env = environment({"XDG_STATE_HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"})
    command = [*COMMAND, "serve", REFERENCE, CANDIDATE, "--port", "0"]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=tmp_path) as serving:
        assert serving.stdout and serving.stderr
        said = serving.stdout.readline().decode().strip()
        until(lambda: _is_listening(said))
        yield said
        serving.send_signal(signal.SIGINT)
        ended(serving)
        assert b"Traceback" not in serving.stderr.read()


def _is_listening(address: str) -> bool:
    """The address is printed a moment before anyone listens there."""
    host, port = address.removeprefix("http://").rstrip("/").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE_S).close()
    except ConnectionRefusedError:
        return False
    return True


async def test_a_visitor_sees_the_table(address: str) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
    async with aiohttp.ClientSession() as client:
        async with client.get(address) as page:
            assert page.status == 200
            assert "tensordiff" in await page.text()
        async with client.ws_connect(f"{address}ws?width=120&height=40") as socket:
            seen = b""
            while b"act_fn" not in seen:
                message = await socket.receive(PATIENCE_S)
                assert message.type is aiohttp.WSMsgType.BINARY
                seen += message.data
            await socket.send_json(["stdin", "q"])


def test_what_is_not_there_is_not_served(call: Call) -> None:
    assert_one_sentence(call("serve", "./nothing", CANDIDATE), "nothing: is not there")


def test_a_port_that_is_taken(call: Call) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = call("serve", REFERENCE, CANDIDATE, "--port", str(taken.getsockname()[1]))
        assert_one_sentence(said, "cannot listen there", "--port 0")
