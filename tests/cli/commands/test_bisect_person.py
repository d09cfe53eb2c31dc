"""The command ``bisect`` with a person on a terminal: shown a place, asked for a word, and nothing of it lost."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tensordiff.util.text_width import columns
from tests.cli.command import COMMAND, environment
from tests.cli.commands.test_bisect import dumped
from tests.processes import Terminal, on_terminal
from tests.search.test_bisect import fresh

PROMPT = "good, bad, skip, undo, log, quit? "


class Talk(NamedTuple):
    """A conversation on a terminal of 80 columns."""

    terminal: Terminal
    running: subprocess.Popen[bytes]

    def until(self, text: str) -> str:
        """Read until something is said; what was said since the last time."""
        return self.terminal.until(text)

    def answer(self, *words: str) -> None:
        """Answer the questions that come."""
        for word in words:
            self.until(PROMPT)
            self.say(f"{word}\n")

    def say(self, text: str | bytes) -> None:
        """Answer a question that was heard already."""
        self.terminal.type(text)

    def end(self) -> tuple[int, str]:
        """Wait for the end; the status, and all that was said."""
        return self.terminal.read_until_ended(self.running), self.terminal.text


@contextmanager
def talking(*args: str, **streams: int) -> Iterator[Talk]:
    """The command, with a person to ask."""
    env = environment({"TERM": "xterm-256color", "NO_COLOR": "1"})
    with on_terminal([*COMMAND, "bisect", *args], env=env, **streams) as (terminal, running):
        yield Talk(terminal, running)


def test_a_person_judges(tmp_path: Path) -> None:
    dumps, log = dumped(tmp_path, "......xxxx"), tmp_path / "log"
    with talking(*dumps, "--log", str(log)) as talk:
        first = talk.until(PROMPT)
        assert "probe 5  layers.5\n  shape [4], float32\n  max|Δ| 0  rel_l2 0\n  ····\n  ✓ agrees: equal\n" in first
        assert "10 suspects, roughly 4 steps left\n" in first
        talk.say("g\n")
        assert "4 suspects, roughly 3 steps left" in talk.until(PROMPT)
        talk.say("bad\n")
        talk.answer("b", "b")
        status, seen = talk.end()
    assert status == 1
    assert "first bad: layers.6\n" in seen
    assert seen.endswith("verdict: diverges\n")
    assert "good 5 layers.5\nbad 8 layers.8\nbad 7 layers.7\nbad 6 layers.6\n" in log.read_text()
    assert max(map(columns, seen.split("\n"))) <= 80


def test_a_person_beats_the_numbers(tmp_path: Path) -> None:
    with talking(*dumped(tmp_path, "....")) as talk:
        talk.answer("good", "bad")
        status, seen = talk.end()
    assert status == 1
    assert "first bad: layers.3\n  marked bad by hand; equal\n" in seen


def test_words_that_are_no_marks(tmp_path: Path) -> None:
    with talking(*dumped(tmp_path, "....")) as talk:
        talk.answer("u", "maybe", "", "gut", "G", "undo", "l", "s")
        talk.until(PROMPT)
        talk.say(b"\xff\xfe\n")
        talk.answer("log", "q")
        status, seen = talk.end()
    assert status == 2
    assert "there is no mark to take back" in seen
    assert seen.count("answer with one of good, bad, skip, undo, log, quit, or its first letter") == 4
    assert seen.count("probe 2 ") == 2
    assert "skip 2 layers.2\n" in seen
    assert "good 2" not in seen
    assert "stopped with 4 suspects left; save the marks shown above, and go on with --replay" in seen


def test_the_end_of_the_input_is_a_way_to_quit(tmp_path: Path) -> None:
    with talking(*dumped(tmp_path, "....")) as talk:
        talk.until(PROMPT)
        talk.say("\x04")
        status, seen = talk.end()
    assert status == 2
    assert seen.endswith("tensordiff: stopped with 4 suspects left\n")


def test_json_goes_apart_from_the_talk(tmp_path: Path) -> None:
    with talking(*dumped(tmp_path, "..xx"), "--json", stdout=subprocess.PIPE) as talk:
        talk.answer("b", "g")
        assert talk.end()[0] == 1
        assert talk.running.stdout is not None
        found = json.loads(talk.running.stdout.read())
    assert (found["first_bad"]["index"], found["monotone"]) == (2, None)
    assert [(probe["index"], probe["mark"]) for probe in found["probes"]] == [(2, "bad"), (1, "good")]


@pytest.mark.parametrize("has_log", [True, False])
def test_ctrl_c_loses_nothing(tmp_path: Path, has_log: bool) -> None:
    dumps, log = dumped(tmp_path, "......xxxx"), tmp_path / "log"
    with talking(*dumps, *(["--log", str(log)] if has_log else [])) as talk:
        talk.answer("g")
        talk.until(PROMPT)
        talk.running.send_signal(signal.SIGINT)
        status, seen = talk.end()
    assert (status, seen.endswith("interrupted\n")) == (130, True)
    assert "good 5 layers.5\n" in (log.read_text() if has_log else seen)
    assert "verdict" not in seen
    if has_log:
        with talking(*dumps, "--replay", str(log)) as talk:
            assert "probe 8 " in talk.until(PROMPT)


def test_a_person_goes_on_from_a_log(tmp_path: Path) -> None:
    dumps, log = dumped(tmp_path, "......xxxx"), tmp_path / "log"
    log.write_text(fresh(10).log() + "good 5\nbad 7 layers.7\n")
    with talking(*dumps, "--replay", str(log)) as talk:
        talk.answer("b")
        status, seen = talk.end()
    assert (status, "first bad: layers.6\n" in seen) == (1, True)
