"""The command: it prints an address with a token, listens there, and ends with all its visitors."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tensordiff.cli.commands.serve import ServeOptions, command_line
from tensordiff.tui.permissions import Permissions
from tests.cli.command import CANDIDATE, COMMAND, REFERENCE, Call, assert_one_sentence, environment
from tests.cli.serving.here import seen, until
from tests.processes import PATIENCE_S, children, ended, is_there, started

INTERRUPTED = 130
"""Where Ctrl-C comes in the moment between the address and the first visitor."""


@dataclass
class Served:
    """A server of its own process."""

    address: str
    """As it was printed."""
    process: subprocess.Popen[bytes]
    is_interrupted: bool = False

    def interrupt(self) -> None:
        """Ctrl-C, once."""
        if not self.is_interrupted:
            self.is_interrupted = True
            self.process.send_signal(signal.SIGINT)


@contextmanager
def serve(folder: Path, *options: str) -> Iterator[Served]:
    """A server, ended as Ctrl-C would."""
    env = environment({"XDG_STATE_HOME": str(folder), "PYTHONUNBUFFERED": "1"})
    command = [*COMMAND, "serve", REFERENCE, CANDIDATE, "--port", "0", *options]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=folder) as serving:
        assert serving.stdout and serving.stderr
        served = Served(serving.stdout.readline().decode().strip(), serving)
        yield served
        served.interrupt()
        assert ended(serving) in (0, INTERRUPTED, -signal.SIGKILL)
        assert serving.stdout.read() == b""  # nothing but the address
        assert b"Traceback" not in serving.stderr.read()


async def test_a_visitor_sees_the_table_and_ctrl_c_ends_both(tmp_path: Path) -> None:
    with serve(tmp_path) as served:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", served.address)
        base = served.address.partition("?")[0]
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
            async with client.get(served.address) as page:
                assert (page.status, str(page.url)) == (200, base)
                assert "tensordiff" in await page.text()
            visit = await client.ws_connect(f"{base}ws?width=120&height=40", origin=base.rstrip("/"))
            await seen(visit, b"act_fn")
            apps = children(served.process.pid)
            assert apps
            served.interrupt()
            while not visit.closed:
                await visit.receive(PATIENCE_S)
            await until(lambda: not any(map(is_there, apps)))


async def test_visitors_of_a_server_that_is_killed_go_too(tmp_path: Path) -> None:
    with serve(tmp_path) as served:
        base = served.address.partition("?")[0]
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
            await client.get(served.address)
            visit = await client.ws_connect(f"{base}ws", origin=base.rstrip("/"))
            await seen(visit, b"act_fn")
            apps = children(served.process.pid)
            served.is_interrupted = True
            served.process.kill()
            await until(lambda: not any(map(is_there, apps)))


def test_it_listens_by_the_time_the_address_is_printed(tmp_path: Path) -> None:
    with serve(tmp_path) as served:
        found = re.match(r"http://(.+):(\d+)/", served.address)
        assert found is not None
        socket.create_connection((found[1], int(found[2]))).close()


async def test_localhost_is_both_addresses_of_this_machine(tmp_path: Path) -> None:
    with serve(tmp_path, "--host", "localhost") as served:
        assert served.address.startswith("http://localhost:")
        found = {str(info[4][0]) for info in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)}
        for name in found:
            shown = f"[{name}]" if ":" in name else name
            url, jar = served.address.replace("localhost", shown), aiohttp.CookieJar(unsafe=True)
            async with aiohttp.ClientSession(cookie_jar=jar) as client, client.get(url) as page:
                assert page.status == 200


async def test_everywhere_it_goes_by_the_names_it_was_given(tmp_path: Path) -> None:
    with serve(tmp_path, "--host", "0.0.0.0", "--allow-host", "gpu7.test") as served:
        found = re.fullmatch(r"http://gpu7\.test:(\d+)/\?(token=.+)", served.address)
        assert found is not None
        async with aiohttp.ClientSession() as client:
            url = f"http://127.0.0.1:{found[1]}/?{found[2]}"
            for name, status in (("gpu7.test", 303), ("evil.test", 421)):
                said = {"Host": f"{name}:{found[1]}"}
                async with client.get(url, headers=said, allow_redirects=False) as page:
                    assert page.status == status
        assert served.process.stderr is not None
        assert b"is not encrypted" in served.process.stderr.readline()


def test_what_visitors_may_do_is_said_to_their_process() -> None:
    def words(**options: Any) -> tuple[str, ...]:
        how = ServeOptions(**options)
        return command_line(Path("r"), Path("c"), how.permissions, {"only": "-x", "step": None})

    assert "--served=looks" in words() and "--only=-x" in words()
    assert "--served=writes" in words(allow_writes=True)
    assert "--served=runs" in words(allow_reruns=True)
    assert ServeOptions(allow_reruns=True).permissions == Permissions()
    assert words()[1] == "-P" and Path(words()[4]).is_absolute()
    no_learning = command_line(Path("r"), Path("c"), Permissions(), {"learn": False, "allow_partial": False})
    assert no_learning[-1] == "--no-learn" and "--allow-partial" not in no_learning


@pytest.mark.parametrize("name", ["", "a/b", "a b", "http://a", "a:b", "a@b", "a:0", ":80", "a:99999"])
def test_a_name_that_is_none(call: Call, name: str) -> None:
    assert_one_sentence(call("serve", REFERENCE, CANDIDATE, "--allow-host", name), "neither a name nor NAME:PORT")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_every_address_needs_a_name(call: Call, host: str) -> None:
    assert_one_sentence(call("serve", REFERENCE, CANDIDATE, "--host", host), "--allow-host", "every address")


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a" * 300, "\x1b[31m"])
def test_a_host_that_is_not_here(call: Call, host: str) -> None:
    assert_one_sentence(call("serve", REFERENCE, CANDIDATE, "--host", host), "is not an address of this machine")


def test_what_is_not_there_is_not_served(call: Call) -> None:
    assert_one_sentence(call("serve", "./nothing", CANDIDATE), "nothing: is not there")


def test_a_port_that_is_taken(call: Call) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = call("serve", REFERENCE, CANDIDATE, "--port", str(taken.getsockname()[1]))
        assert_one_sentence(said, "cannot listen there", "--port 0")
