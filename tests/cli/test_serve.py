"""The app in a browser: the address is printed, the page is there, and a visitor sees the table."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from tests.cli.running import CANDIDATE, COMMAND, REFERENCE, Call, assert_one_sentence, environment


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A server, ended as Ctrl-C would."""
    serving = subprocess.Popen(
        [*COMMAND, "serve", REFERENCE, CANDIDATE, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment({"XDG_STATE_HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}), cwd=tmp_path,
    )  # fmt: skip
    assert serving.stdout and serving.stderr
    try:
        said = serving.stdout.readline().decode().strip()
        _wait_for(said)
        yield said
        serving.send_signal(signal.SIGINT)
        serving.wait(30)
        assert b"Traceback" not in serving.stderr.read()
    finally:
        serving.kill()
        serving.communicate()


def _wait_for(address: str) -> None:
    """The address is printed a moment before anyone listens there."""
    host, port = address.removeprefix("http://").rstrip("/").split(":")
    for _ in range(300):
        with suppress(ConnectionRefusedError), socket.create_connection((host, int(port)), timeout=1):
            return
        time.sleep(0.1)


async def test_a_visitor_sees_the_table(address: str) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
    async with aiohttp.ClientSession() as client:
        async with client.get(address) as page:
            assert page.status == 200
            assert "tensordiff" in await page.text()
        async with client.ws_connect(f"{address}ws?width=120&height=40") as socket:
            seen = b""
            while b"act_fn" not in seen:
                message = await socket.receive(60)
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
