"""Commands to paste: what a shell makes of them is what was meant, whatever the words are."""

from __future__ import annotations

import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensordiff.util.shell_line import shell_line
from tests.processes import run_for_bytes

WORDS = [
    "plain", "", "two words", "it's", '"', "$(touch owned)", "`touch owned`", "a;b", "a\nb", "\x1b[31m", "\\",
    "a\\'b\n", "語", "\u2028", "\u202e", "\udcff", "*", "~", "!!", "#", "\x01f", "\x7f0", "&", "-o",
    "--source=py:evil.py:f",
]  # fmt: skip


def as_read(line: str) -> list[bytes]:
    """The words that bash finds in a line."""
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("there is no bash")
    script = f"set -f +H; print() {{ printf '%s\\0' \"$@\"; }}; print {line}"
    done = run_for_bytes([shell, "--norc", "-c", script])
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.split(b"\0")[:-1]


def test_every_word_arrives_as_it_was() -> None:
    line = shell_line(WORDS)
    assert line.isprintable()
    assert as_read(line) == [os.fsencode(word) for word in WORDS]


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=40))
def test_any_word_is_one_printable_word(words: list[str]) -> None:
    line = shell_line(words)
    assert line.isprintable()
    assert as_read(line) == [word.encode() for word in words]


def test_what_looks_like_an_option_is_not_taken_for_one() -> None:
    assert shell_line(["tensordiff", "lint"], ["a", "-b"]) == "tensordiff lint -- a -b"
    assert shell_line(["tensordiff", "lint"], ["a", "b"]) == "tensordiff lint a b"


def test_what_no_command_line_can_hold_is_spelled_out() -> None:
    assert shell_line(["\ud800"]) == r"$'\x5c\x75\x64\x38\x30\x30'"
