"""``tensordiff convert``: writes any dump in tensordiff's own format, or as a safetensors file."""

from __future__ import annotations

from pathlib import Path

import click

from tensordiff.cli.options import PATH
from tensordiff.cli.progress import Progress
from tensordiff.cli.streams import echo, say
from tensordiff.cli.upload import path_to_write, upload
from tensordiff.dump import Problem, open_dump
from tensordiff.dump.native.convert import convert
from tensordiff.errors import printable
from tensordiff.util.sizes import format_bytes

_SHOWN = 5


@click.command("convert")
@click.argument("dump", type=PATH)
@click.option(
    "-o", "--output", type=PATH, required=True, metavar="DIR", help="A new folder or FILE.safetensors; or a URL."
)
@click.option("--force", is_flag=True, help="Replace an earlier dump of tensordiff, or the file.")
def command(dump: Path, output: Path, force: bool) -> int:
    """Write any dump as tensordiff's own format, or as safetensors if the name ends in that.

    Layer, port, call and step are written as tensordiff understood them; ranks are put together, quantized weights are
    dequantized. One tensor is in memory at a time. Exit status: 0 everything was written, 2 something was left out,
    which is listed.
    """
    opened = open_dump(dump)
    written = nbytes = 0
    local = path_to_write(output, overwrite=force)
    left = list(opened.unread)
    with Progress("writing", len(opened)) as progress:
        for item in progress.over(convert(opened, local, overwrite=force)):
            if isinstance(item, Problem):
                left.append(f"{item.file}: {item.sentence}")
            else:
                written, nbytes = written + 1, nbytes + item.spec.nbytes
    upload(local, output)
    echo(f"{printable(output)}  {written} tensors, {format_bytes(nbytes)}, from {opened.format}")
    for sentence in left[:_SHOWN]:
        say(f"left out: {printable(sentence)}")
    if len(left) > _SHOWN:
        say(f"left out: {len(left) - _SHOWN} more")
    return 2 if left else 0
