"""Progress is drawn for a person, rewritten in place, and leaves nothing behind."""

from __future__ import annotations

import io
import sys

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
