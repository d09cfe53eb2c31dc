"""The command, called within the test's own process."""

from __future__ import annotations

import pytest

from tests.cli.command import Call, caller


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    return caller(capsys, monkeypatch)
