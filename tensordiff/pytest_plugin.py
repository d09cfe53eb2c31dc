"""pytest, where tensors are compared: a failing ``assert_agrees`` keeps its report, and the summary names the culprit.

Loaded in every run, so nothing heavy is imported here; a test that compares nothing pays nothing.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Generator, Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from tensordiff.disagreement import Disagreement, place_for_report

_OPTION, _PROPERTY = "--tensordiff-reports", "tensordiff"
_LONGEST = 150


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where reports go."""
    group = parser.getgroup("tensordiff", "comparing tensors")
    group.addoption(_OPTION, metavar="DIR", default=None, help="Keep reports of failing assert_agrees in this folder.")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """While a test runs, a report has a place to go to."""
    token = place_for_report.set(lambda: _place(item))
    try:
        return (yield)
    finally:
        place_for_report.reset(token)


def _place(item: pytest.Item) -> Path:
    """A file for this test's report; another one where a test fails twice."""
    folder = Path(item.config.getoption(_OPTION) or _temporary())
    name = re.sub(r"[^\w.-]+", "-", item.nodeid).strip("-")[-_LONGEST:]
    return next(path for path in _paths(folder, name) if not path.exists())


def _paths(folder: Path, name: str) -> Iterator[Path]:
    yield folder / f"{name}.html"
    yield from (folder / f"{name}-{k}.html" for k in range(2, 1 << 20))


@lru_cache(maxsize=1)
def _temporary() -> str:
    return tempfile.mkdtemp(prefix="tensordiff-reports-")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the culprit beside the failure."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, Disagreement):
        kept = f" Report: {error.report}" if error.report else ""
        report.user_properties.append((_PROPERTY, f"{error.sentence}{kept}"))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name every culprit once more, at the end, where people look first."""
    failed = terminalreporter.getreports("failed")
    told = [(report.nodeid, text) for report in failed for name, text in report.user_properties if name == _PROPERTY]
    if not told:
        return
    terminalreporter.section("tensordiff: culprits")
    for place, text in dict.fromkeys(told):
        terminalreporter.line(f"{place}: {text}")
