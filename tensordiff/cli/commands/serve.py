"""``tensordiff serve``: the app in a browser, on loopback by default, with one process for each visitor."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import click

from tensordiff.cli.options import comparison_options, take, two_sides
from tensordiff.cli.streams import echo, say
from tensordiff.errors import TensordiffError, printable
from tensordiff.tui.permissions import Permissions

_NAME = re.compile(r"(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>\d{1,5}))?", re.IGNORECASE | re.ASCII)


class ServeOptions(NamedTuple):
    """Where the server listens, and what its visitors may do."""

    host: str = "127.0.0.1"
    port: int = 8000
    allow_host: tuple[str, ...] = ()
    max_visitors: int = 8
    allow_reruns: bool = False
    allow_writes: bool = False

    @property
    def permissions(self) -> Permissions:
        """What visitors may do; a visitor who may run code may write as well."""
        return Permissions(reruns=self.allow_reruns, writes=self.allow_writes or self.allow_reruns)


@click.command("serve")
@two_sides
@comparison_options
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Where to listen. Anything but loopback lets other machines connect.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="The port; 0 picks a free one."
)
@click.option("--allow-host", multiple=True, metavar="NAME", help="Another host name for visitors; or NAME:PORT.")
@click.option("--max-visitors", type=click.IntRange(min=1), default=8, show_default=True, help="One process each.")
@click.option("--allow-reruns", is_flag=True, help="Visitors may run the models again (i, c, o), and write files.")
@click.option("--allow-writes", is_flag=True, help="Visitors may write files anywhere, as this user.")
def command(reference: Path, candidate: Path, **options: Any) -> int:
    """Show the app in a browser; each visitor gets a separate session. Prints the address; Ctrl-C ends it.

    The address contains a token, new every time: only those who have the whole address can see the two dumps. Pages
    of other sites in the same browser cannot. The connection is not encrypted, so it listens on this machine only,
    unless --host says otherwise. To use it from another machine, forward the port: ssh -L 8000:localhost:8000 HOST,
    with the same number on both sides, or give --allow-host localhost:9000.

    Visitors can look, search and edit rules; their work is saved in your state folder, and reports are downloads.
    Running models again and writing files are off unless allowed.
    """
    return serve(reference, candidate, take(options, ServeOptions), options)


def serve(reference: Path, candidate: Path, server: ServeOptions, options: Mapping[str, Any]) -> int:
    """Serve until interrupted."""
    from tensordiff.cli.serving.guard import TOKEN, Guard, host_headers, is_every_address, is_loopback
    from tensordiff.cli.serving.server import AppServer

    for path in (reference, candidate):
        if not path.exists():
            raise TensordiffError(f"{printable(path)}: is not there; give a dump (file or folder) to serve")
    _check_names(server, needs_one=is_every_address(server.host))
    sockets = _listen(server.host, server.port)
    port = int(sockets[0].getsockname()[1])
    guard = Guard(host_headers(server.host, port, server.allow_host), f"tensordiff-{port}")
    if not is_loopback(server.host):
        say(
            f"anyone who has this address can read these dumps, and the connection to {printable(server.host)} is "
            "not encrypted"
        )
    if options.get("session") is not None and not server.permissions.writes:
        say(f"{printable(options['session'])}: is read, and not written under serve unless --allow-writes")
    echo(f"http://{_name(server, port)}/?{TOKEN}={guard.token}")
    AppServer(command_line(reference, candidate, server.permissions, options), guard, server.max_visitors).serve(
        sockets
    )
    return 0


def command_line(
    reference: Path, candidate: Path, permissions: Permissions, options: Mapping[str, Any]
) -> tuple[str, ...]:
    """The command of each visitor's process: this interpreter, importing nothing from the current folder."""
    params = {param.name: param for param in command.params}
    words = (word for name, value in options.items() for word in _option_words(params[name], value))
    sides = str(reference.absolute()), str(candidate.absolute())
    return (sys.executable, "-P", "-m", "tensordiff", *sides, f"--served={permissions.spelled}", *words)


def _option_words(param: click.Parameter, value: Any) -> list[str]:
    """An option as words of a command line; a flag that is off has a word only where click knows one for it."""
    if isinstance(value, bool):
        return (param.opts if value else param.secondary_opts)[:1]
    return [] if value is None else [f"{param.opts[0]}={value}"]


def _check_names(server: ServeOptions, *, needs_one: bool) -> None:
    for name in server.allow_host:
        if not _is_name(name):
            raise TensordiffError(f"--allow-host {printable(name)}: is neither a name nor NAME:PORT, such as gpu7:8000")
    if needs_one and not server.allow_host:
        raise TensordiffError(
            f"--host {server.host}: is every address of this machine, not a name that a browser can open; say "
            f"which name visitors use, such as --allow-host {printable(socket.gethostname())}"
        )


def _is_name(text: str) -> bool:
    found = _NAME.fullmatch(text)
    return found is not None and (found["port"] is None or 0 < int(found["port"]) < 1 << 16)


def _name(server: ServeOptions, port: int) -> str:
    """Name and port of the address that is printed."""
    from tensordiff.cli.serving.guard import in_url, is_every_address

    if not is_every_address(server.host):
        return f"{in_url(server.host)}:{port}"
    name = server.allow_host[0]
    return name if urlsplit(f"//{name}").port is not None else f"{in_url(name)}:{port}"


def _listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on a host's addresses, all on one port; from now on no other program can use it."""
    try:
        found = dict.fromkeys(info[::4] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:
        raise TensordiffError(f"--host {printable(host)}: is not an address of this machine ({error})") from error
    sockets: list[socket.socket] = []
    try:
        for family, address in found:
            sockets.append(_listening_socket(family, (address[0], port, *address[2:])))
            port = int(sockets[0].getsockname()[1])
    except OSError as error:
        for one in sockets:
            one.close()
        raise TensordiffError(
            f"{printable(host)}:{port}: cannot listen there ({error.strerror or error}); try --port 0"
        ) from error
    return sockets


def _listening_socket(family: int, address: Any) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
        one.listen(128)
    except OSError:
        one.close()
        raise
    return one
