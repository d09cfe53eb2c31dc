"""``tensordiff serve``: the app in a browser, on loopback unless told otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tensordiff.cli.options import comparison


@click.command("serve", short_help="Open two dumps in the app, in a browser.")
@comparison
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen. Others can connect elsewhere.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
def command(reference: Path, candidate: Path, host: str, port: int, **options: Any) -> int:
    """Show the app in a browser: each visitor gets one of their own. Prints the address, and ends with Ctrl-C.

    There is no password: whoever can connect can read the two dumps and whatever the app can write. That is why
    it listens on this machine alone unless --host says otherwise.
    """
    from tensordiff.cli.serving import serve

    return serve(reference, candidate, host, port, options)
