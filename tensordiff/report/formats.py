"""The formats of a report, by suffix. A format is a module of this package with a function ``render(model)``.

A module is imported when its format is written, since some of them load large libraries.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from tensordiff.errors import WriteError, printable
from tensordiff.report.model import ReportModel
from tensordiff.util.atomic_write import write_file

FORMATS = {
    ".md": "markdown",
    ".html": "html",
    ".json": "report_json",
    ".txt": "text",
    ".csv": "csv",
    ".png": "plot",
}
Render = Callable[[ReportModel], str | bytes]


def write_model(model: ReportModel, path: str | os.PathLike[str]) -> None:
    """Write a report in the format of the path's suffix."""
    write_file(path, render_for(path)(model), make_folders=True)


def render_for(path: str | os.PathLike[str]) -> Render:
    """The ``render`` of the format that a file of this name has; raises where no format has its suffix."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        known = " ".join(FORMATS)
        raise WriteError(f"{printable(os.fspath(path))}: no report has the suffix {suffix!r}; use one of {known}")
    render: Render = import_module(f"tensordiff.report.{FORMATS[suffix]}").render
    return render
