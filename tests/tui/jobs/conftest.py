"""What the tests of runs in the app share."""

from __future__ import annotations

import pytest

from tensordiff.capture.runner import Run
from tensordiff.tui.jobs.job_line import JobLine, Purpose


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """All runs that are started; on the line itself a quick one may be over before it is looked at."""
    runs: list[Run] = []
    start = JobLine.start

    def remember(line: JobLine, run: Run, title: str, purpose: Purpose) -> None:
        runs.append(run)
        start(line, run, title, purpose)

    monkeypatch.setattr(JobLine, "start", remember)
    return runs
