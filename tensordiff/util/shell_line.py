"""Commands for a person to paste into a shell.

Words in them are from outside, so each is quoted, and those that could be taken for options come last, after ``--``.
The line is one printable line: a control character is written as an escape within ``$'…'``, which bash, zsh and ksh
turn back into the character, so the command is about the very name it shows.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def shell_line(words: Iterable[object], positional: Iterable[object] = ()) -> str:
    """A command of words, which are ours or values of options, and positional arguments; no word can hold a NUL."""
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
    # What a name on disk has that is no UTF-8 is a surrogate here.
    as_bytes = character.encode("utf-8", "surrogateescape" if "\udc80" <= character <= "\udcff" else "backslashreplace")
    return "".join(f"\\x{byte:02x}" for byte in as_bytes)
