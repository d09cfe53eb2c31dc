"""pytest plugin: a failing ``assert_agrees`` writes a report, and the terminal summary names the culprit.

pytest loads this in every run, so nothing heavy is imported here: a test suite that compares nothing pays nothing.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Generator, Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from tensordiff.disagreement import Disagreement, report_path

_OPTION, _PROPERTY = "--tensordiff-reports", "tensordiff"
_LONGEST_NAME = 150


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the folder of reports."""
    group = parser.getgroup("tensordiff", "comparing tensors")
    group.addoption(_OPTION, metavar="DIR", default=None, help="Keep reports of failing assert_agrees in this folder.")


def pytest_configure(config: pytest.Config) -> None:
    """Keep tensordiff's own notices as warnings, even if the user turns warnings into errors."""
    config.addinivalue_line("filterwarnings", "default:tensordiff measures in numpy:RuntimeWarning")
    config.addinivalue_line("filterwarnings", "default:--[a-z, -]+ (it is|they are) for .* alone:UserWarning")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Tell ``assert_agrees`` where to write a report while a test runs."""
    token = report_path.set(lambda: _report_path(item))
    try:
        return (yield)
    finally:
        report_path.reset(token)


def _report_path(item: pytest.Item) -> Path:
    """A new file for a report of this test; a test may fail more than once."""
    folder = Path(item.config.getoption(_OPTION) or _temporary_folder())
    name = re.sub(r"[^\w.-]+", "-", item.nodeid).strip("-")[-_LONGEST_NAME:]
    return next(path for path in _paths(folder, name) if not path.exists())


def _paths(folder: Path, name: str) -> Iterator[Path]:
    yield folder / f"{name}.html"
    yield from (folder / f"{name}-{k}.html" for k in range(2, 1 << 20))


@lru_cache(maxsize=1)
def _temporary_folder() -> str:
    return tempfile.mkdtemp(prefix="tensordiff-reports-")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the culprit to the report of a failed test, in a property that also reaches us from xdist workers."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, Disagreement):
        kept = f" Report: {error.report}" if error.report else ""
        report.user_properties.append((_PROPERTY, f"{error.sentence}{kept}"))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name every culprit at the end, where people look first."""
    failed = terminalreporter.getreports("failed")
    lines = [(report.nodeid, text) for report in failed for name, text in report.user_properties if name == _PROPERTY]
    if not lines:
        return
    terminalreporter.section("tensordiff: culprits")
    for test, text in dict.fromkeys(lines):
        terminalreporter.line(f"{test}: {text}")
