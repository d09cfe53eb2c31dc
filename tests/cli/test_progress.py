"""Progress is drawn for a person, rewritten in place, and leaves nothing behind."""

from __future__ import annotations

import io
import sys
import time

import pytest

from tensordiff.cli import progress
from tensordiff.cli.progress import Bar, Progress
from tensordiff.util.text_width import columns


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(progress, "_EVERY_S", 0.0)


def test_every_item_is_counted_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress("measuring", 4) as shown:
        assert list(shown.over("abcd")) == list("abcd")
    assert isinstance(sys.stderr, Terminal)
    written = sys.stderr.getvalue()
    assert "\rmeasuring 2/4 ━━━━━━━━━━────────── (Ctrl-C stops)\x1b[K" in written
    assert [f"{k}/4" in written for k in range(1, 6)] == [True] * 4 + [False]
    assert "\n" not in written
    assert written.endswith("\r\x1b[K")


def test_an_interruption_wipes_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(KeyboardInterrupt), Progress("measuring", 4) as shown:
        for _ in shown.over("abcd"):
            raise KeyboardInterrupt
    assert isinstance(sys.stderr, Terminal)
    assert sys.stderr.getvalue().endswith("\r\x1b[K")


def test_nothing_is_drawn_where_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with Progress("measuring", 4) as shown:
        list(shown.over("abcd"))
    assert isinstance(sys.stderr, io.StringIO)
    assert sys.stderr.getvalue() == ""


def test_nothing_is_drawn_for_what_is_soon_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PATIENCE_S", 3600.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress("measuring", 4) as shown:
        list(shown.over("abcd"))
    assert isinstance(sys.stderr, Terminal)
    assert sys.stderr.getvalue() == ""


@pytest.mark.parametrize("width", [20, 80, 200])
def test_a_line_is_never_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "_terminal_columns", lambda: width)
    with Bar("candidate") as shown:
        shown.show("model.model.layers.2.self_attn.o_proj", 33, 58)
        shown.show("層" * 60, 58, 58)
        shown.show("loading", 0, 0)
    assert isinstance(sys.stderr, Terminal)
    drawn = [text.replace("\x1b[K", "") for text in sys.stderr.getvalue().split("\r")]
    assert max(map(columns, drawn)) < width
    assert ("(Ctrl-C stops)" in drawn[1]) == (width == 200)
    assert "33/58" in drawn[1] or width == 20


def test_the_seconds_go_on_while_a_child_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "_TICK_S", 0.01)

    def wait_for(text: str) -> None:
        until = time.monotonic() + 60
        while text not in terminal.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
        assert text in terminal.getvalue()

    with Bar("candidate") as shown:
        wait_for("\rcandidate: 0 s starting (Ctrl-C stops)\x1b[K")  # before it has said anything
        shown.show("loading", 0, 0)
        shown.began -= 50
        wait_for("\rcandidate: 50 s loading (Ctrl-C stops)\x1b[K")
        with shown.hidden():
            assert terminal.getvalue().endswith("\r\x1b[K")
            terminal.write("a note\n")
            time.sleep(0.05)
            assert terminal.getvalue().endswith("a note\n"), "nothing is drawn meanwhile"
        assert "s loading" in terminal.getvalue().rpartition("a note\n")[2], "and it is there again"
    assert terminal.getvalue().endswith("\r\x1b[K")
    said = terminal.getvalue()
    time.sleep(0.05)
    assert terminal.getvalue() == said


def test_a_terminal_that_goes_ends_the_seconds_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(Terminal):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(sys, "stderr", Gone())
    monkeypatch.setattr(progress, "_TICK_S", 0.001)
    with Bar("candidate"):
        time.sleep(0.05)
