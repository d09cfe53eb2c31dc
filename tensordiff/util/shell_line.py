"""Command lines for a person to paste into a shell.

The words come from outside, so each is quoted, and words that could be taken for options come last, after ``--``. The
result is one printable line: a control character becomes an escape within ``$'…'``, which bash, zsh and ksh turn back
into the character, so the command refers to exactly the name that it shows.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def shell_line(words: Iterable[object], positional: Iterable[object] = ()) -> str:
    """A command line from words (ours, or values of options) and positional arguments; no word can hold a NUL."""
    last = [str(word) for word in positional]
    dashes = ["--"] * any(word.startswith("-") for word in last)
    return " ".join(_quoted(str(word)) for word in (*words, *dashes, *last))


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    return f"$'{''.join(map(_escaped, word))}'"


def _escaped(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    # Bytes of a file name that are not valid UTF-8 arrive here as surrogates.
    as_bytes = character.encode("utf-8", "surrogateescape" if "\udc80" <= character <= "\udcff" else "backslashreplace")
    return "".join(f"\\x{byte:02x}" for byte in as_bytes)
