"""A person as the oracle of a search: shown one place at a time, asked for one word.

All of it is talk and goes to stderr, so that what the search came to can be piped.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import click

from tensordiff.cli.streams import ask, say
from tensordiff.cli.table import COLOURS
from tensordiff.cli.text import wrap
from tensordiff.compare.engine import Row
from tensordiff.errors import printable
from tensordiff.report.sparkline import sparkline
from tensordiff.report.words import GLYPHS, label, number
from tensordiff.search.bisect import Bisect
from tensordiff.search.oracle import Answer, VerdictOracle

ANSWERS: dict[str, Answer] = {"good": "good", "bad": "bad", "skip": "skip", "undo": "undo"}
_WORDS = (*ANSWERS, "log", "quit")
_PROMPT = f"{', '.join(_WORDS)}? "
_BARS = 32


@dataclass(frozen=True)
class Person:
    """Whoever sits at the terminal."""

    oracle: VerdictOracle
    """What measures the place that is shown."""

    def ask(self, bisect: Bisect) -> Answer | None:
        """Show the probe until it is judged."""
        if bisect.probe is None:
            return None
        _show(self.oracle.row(bisect.probe), bisect)
        while (word := _word(ask(_PROMPT))) != "quit":
            if word == "log":
                say(bisect.log().rstrip())
            elif word == "undo" and not bisect.marks:
                say("there is no mark to take back")
            elif word in ANSWERS:
                return ANSWERS[word]
            else:
                say(f"answer with one of {', '.join(_WORDS)}, or its first letter")
        return None


def _word(said: str | None) -> str:
    """The word that was meant; the end of the input is a way to quit."""
    if said is None:
        return "quit"
    said = said.lower()
    return next((word for word in _WORDS if said in (word, word[0])), "")


def _show(row: Row, bisect: Bisect) -> None:
    wide = shutil.get_terminal_size().columns
    say("")
    for line in wrap(label(row.pair), wide, f"probe {row.pair.index}  ", "  "):
        say(click.style(line, bold=True))
    for text in _numbers(row):
        say(f"  {text}")
    glyph, colour = GLYPHS[row.verdict.name], COLOURS[row.verdict.name]
    for line in wrap(f"{row.verdict.name}: {printable(row.verdict.why)}", wide, f"  {glyph} ", "    "):
        say(click.style(line, fg=colour))
    say(f"{len(bisect.suspects)} suspects, roughly {bisect.steps} steps left")


def _numbers(row: Row) -> Iterator[str]:
    if row.diff is None:
        return
    yield f"shape {list(row.shape or ())}, {' against '.join(dict.fromkeys(row.dtypes or ()))}"
    yield f"max|Δ| {number(row.diff.max_abs)}  rel_l2 {number(row.diff.rel_l2)}"
    yield sparkline(row.diff.profile, _BARS)
