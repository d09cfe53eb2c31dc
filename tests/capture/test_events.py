"""What a child process tells while it runs."""

from __future__ import annotations

import pytest

from tensordiff import secrets
from tensordiff.capture import events
from tensordiff.capture.events import Event, Failed, Progress, ThrottledProgress, decode, encode


def test_progress_of_which_nobody_knows_the_end_is_a_count_and_never_looks_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "_PROGRESS_EVERY_S", 0.0)
    told: list[Event] = []
    progress = ThrottledProgress(told.append)
    progress.advance("layers.0")
    progress.total = 2
    progress.advance("layers.1")
    progress.advance("layers.2")  # more than were expected
    assert told == [Progress(1, 0, "1 done, layers.0"), Progress(2, 2, "layers.1"), Progress(3, 3, "layers.2")]
    assert [decode(encode(event)) for event in told] == told


def test_the_log_of_a_failed_child_shows_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_secrets", secrets._KnownSecrets())
    secrets.keep_secrets("s3://reader:a-password@store/dump")
    error = Failed("it failed", "cannot open s3://reader:a-password@store/dump").error()
    assert str(error) == "it failed"
    assert str(error.__cause__) == "\ncannot open s3://reader:…@store/dump"
