"""Progress is drawn for a person, rewritten in place, and leaves nothing behind."""

from __future__ import annotations

import io
import sys

import pytest

from tensordiff.cli import progress
from tensordiff.cli.progress import Progress


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
