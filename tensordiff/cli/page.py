"""What lines are printed on: a terminal, which has a width, or a file or pipe, which has none."""

from __future__ import annotations

import shutil
import sys
from typing import Any, NamedTuple

import click

from tensordiff.cli.streams import echo
from tensordiff.cli.text import wrap


class Page(NamedTuple):
    """Where data is printed. Nothing is cut or wrapped where there is no terminal."""

    wide: int | None

    @classmethod
    def here(cls) -> Page:
        """As stdout is now."""
        return cls(shutil.get_terminal_size().columns if sys.stdout.isatty() else None)

    def print(self, text: str = "", first: str = "", rest: str = "  ", **style: Any) -> None:
        """Print text, on as many lines as it takes."""
        for line in wrap(text, self.wide, first, rest):
            echo(click.style(line, **style) if style else line)
