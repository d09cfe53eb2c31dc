"""The command that opens a comparison again, for a person to paste and for ``Result.open`` to run.

``closing_lines`` is printed when the app ends: where everything is stored, and what is deleted now.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tensordiff.capture.settings import Settings
from tensordiff.errors import printable
from tensordiff.session.request import FILE_OPTIONS, Request
from tensordiff.session.sources import Sources, source_in
from tensordiff.util.shell_line import shell_line
from tensordiff.util.temporary_folders import is_temporary


def comparison_words(request: Request) -> list[str]:
    """The options of a request as words of a command line, without the two sides."""
    return [word for option in _options(request) for word in option]


def _options(request: Request) -> Iterator[tuple[str, ...]]:
    for name in FILE_OPTIONS:
        path: Path | None = getattr(request, name)
        if path is not None:
            yield f"--{name}", str(path)
    limits, usual = request.limits, Request(request.reference, request.candidate)
    tolerance = limits.tolerance
    numbers = (
        ("--atol", tolerance and tolerance.atol), ("--rtol", tolerance and tolerance.rtol),
        ("--threshold", limits.threshold), ("--step", request.step),
    )  # fmt: skip
    for option, value in numbers:
        if value is not None:
            yield option, f"{value!r}"
    if request.only is not None:
        yield "--only", request.only
    if request.min_coverage != usual.min_coverage:
        yield "--min-coverage", f"{request.min_coverage:g}"
    if request.allow_partial:
        yield ("--allow-partial",)
    if not request.learn:
        yield ("--no-learn",)


def settings_words(settings: Settings) -> list[str]:
    """The settings of a source as options of ``tensordiff capture``, without files that are deleted when this process
    ends."""
    words: list[str] = []
    for name, value in settings.to_json().items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, dict):
            words += [word for key, one in value.items() for word in (option, f"{key}={json.dumps(one)}")]
        elif isinstance(value, list | tuple):
            words += [option, ",".join(map(str, value))]
        elif value is True:
            words.append(option)
        elif not is_temporary(Path(str(value))):
            words += [option, str(value)]
    return words


def closing_lines(asked: Request, request: Request, session: Path | None) -> Iterator[str]:
    """Where the dumps, the session and the rules of a comparison are, and the command that opens it again.

    ``asked`` is the user's request, which may name sources; ``request`` names the dumps that were made from them.
    """
    sides = (("reference", request.reference), ("candidate", request.candidate), ("injected", request.injected))
    dumps = [(name, path) for name, path in sides if path is not None]
    for name, path in dumps:
        goes = "  (temporary, deleted now; K in the app or --keep DIR keeps it)" if is_temporary(path) else ""
        where = path if source_in(path) else path.absolute()  # a source that was compared while it ran has no dump
        yield f"{name:10} {printable(where)}{goes}"
    if session is not None and session.exists():
        yield f"{'session':10} {printable(session)}"
    if request.rules is not None:
        yield f"{'rules':10} {printable(request.rules.absolute())}"
    if any(is_temporary(path) for _, path in dumps):
        request = asked
    yield f"{'open again':10} {reopen_command(request)}"


def reopen_command(request: Request) -> str:
    """The command that opens a comparison, without the settings of sources."""
    keep = [] if Sources.of(request).side is None else ["--keep", str(request.keep or "dumps")]
    return shell_line(["tensordiff", *comparison_words(request), *keep], [request.reference, request.candidate])
