"""``tensordiff serve``: the app in a browser, on loopback unless told otherwise; one process a visitor."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tensordiff.cli.options import comparison_options, two_sides
from tensordiff.cli.streams import echo, say
from tensordiff.errors import TensordiffError, printable


@click.command("serve")
@two_sides
@comparison_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen. Others can connect elsewhere.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
def command(reference: Path, candidate: Path, host: str, port: int, **options: Any) -> int:
    """Show the app in a browser: each visitor gets one of their own. Prints the address, and ends with Ctrl-C.

    There is no password: whoever can connect can read the two dumps and whatever the app can write. That is why
    it listens on this machine alone unless --host says otherwise.
    """
    return serve(reference, candidate, host, port, options)


_LOOPBACK = ("localhost", "127.", "::1")
_LOOK_S, _PATIENCE = 0.02, 150


def serve(reference: Path, candidate: Path, host: str, port: int, options: Mapping[str, Any]) -> int:
    """Serve until interrupted."""
    for path in (reference, candidate):
        if not path.exists():
            raise TensordiffError(f"{printable(path)}: is not there; give a dump (file or folder) to serve")
    port = _free(host, port)
    server = _server(command_line(reference, candidate, options), host, port)
    if not host.startswith(_LOOPBACK):
        say(f"anyone who can reach {host}:{port} can read these dumps; there is no password")
    echo(f"http://{f'[{host}]' if ':' in host else host}:{port}/")
    server.serve()
    return 0


def command_line(reference: Path, candidate: Path, options: Mapping[str, Any]) -> str:
    """What each visitor's process runs: this interpreter, whatever is on the path."""
    said = [str(part) for key, value in options.items() if value is not None for part in (f"--{key}", value)]
    words = [sys.executable, "-m", "tensordiff", str(reference.absolute()), str(candidate.absolute()), *said]
    return shlex.join(words)


def _free(host: str, port: int) -> int:
    """The port, or a free one for 0; says so before anything is started where it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise TensordiffError(
                f"{printable(host)}:{port}: cannot listen there ({error.strerror or error}); try --port 0"
            ) from error
        return int(probe.getsockname()[1])


def _server(command: str, host: str, port: int) -> Any:
    from textual_serve.server import Server

    class Quiet(Server):  # type: ignore[misc]
        """Without a banner: stdout is the address and nothing else."""

        def initialize_logging(self) -> None:
            """Warnings alone, to stderr."""
            logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)

        async def on_startup(self, app: Any) -> None:
            """Say nothing; and at the end, see all visitors off."""
            app.on_cleanup.append(_see_off)

    return Quiet(command, host=host, port=port, title="tensordiff")


async def _see_off(_: object) -> None:
    """Wait until every visitor's process has ended and was heard of: asyncio complains where its loop is gone."""
    for _ in range(_PATIENCE):
        if not _has_children():
            break
        await asyncio.sleep(_LOOK_S)
    await asyncio.sleep(_LOOK_S)


def _has_children() -> bool:
    """Whether a process of ours still runs, or ended without being heard of."""
    if not hasattr(os, "waitid"):
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
