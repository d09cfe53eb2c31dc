"""The formats of a report by suffix. Each format is a module of this package with a function ``render(model)``.

A module is imported only when its format is written, since some formats need large libraries.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
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
PICTURE = ".png"
_NO_PICTURE = "a picture needs matplotlib, which is not installed here: pip install 'tensordiff[png]', or write .html"
Render = Callable[[ReportModel], str | bytes]


def write_model(model: ReportModel, path: str | os.PathLike[str]) -> None:
    """Write a report in the format of the path's suffix."""
    write_file(path, render_for(path)(model), make_folders=True)


def draws_pictures() -> bool:
    """Whether matplotlib is installed; it is as large as half of all other dependencies (``tensordiff[png]``)."""
    return find_spec("matplotlib") is not None


def render_for(path: str | os.PathLike[str]) -> Render:
    """Return the ``render`` function for a file name; raises if there is none or its library is missing."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        known = " ".join(FORMATS)
        raise WriteError(f"{printable(os.fspath(path))}: no report has the suffix {suffix!r}; use one of {known}")
    if suffix == PICTURE and not draws_pictures():
        raise WriteError(f"{printable(os.fspath(path))}: {_NO_PICTURE}")
    render: Render = import_module(f"tensordiff.report.{FORMATS[suffix]}").render
    return render
