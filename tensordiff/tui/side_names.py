"""The names of the two sides of a comparison: in the header, in a report's title, and in the name of its file."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tensordiff.dump.model import Dump
from tensordiff.errors import printable
from tensordiff.session.request import Request
from tensordiff.session.rerun.reruns import is_rerun
from tensordiff.session.session import Session
from tensordiff.util.temporary_folders import is_temporary

_LONGEST = 60


def side_name(dump: Dump, request: Request) -> str:
    """The name that the user gave: a path, or the source that was run for it."""
    source, path = dump.facts.get("source"), dump.path
    is_kept = request.keep is not None and path.parent == request.keep.absolute()
    is_run = is_kept or is_temporary(path) or is_rerun(path) or str(path) == source
    if not is_run or not isinstance(source, str):
        return printable(path.name or path)
    kind, _, target = source.partition(":")
    return printable(f"{kind}:{target.rpartition('/')[2]}")


def operations_inside(session: Session) -> str:
    """The layer whose operations are compared, by both its names; empty if layers are compared."""
    layers = [_settings(dump).get("ops") for dump in (session.reference, session.candidate)]
    if not all(isinstance(layer, str) for layer in layers):
        return ""
    return " ↔ ".join(dict.fromkeys(printable(layer) for layer in layers))


def report_title(session: Session) -> str:
    """The title of a report."""
    candidate, reference = _named(session)
    inside = operations_inside(session)
    return f"{candidate} against {reference}" + (f", operations inside {inside}" if inside else "")


def file_name(session: Session) -> str:
    """A file name for a report, without a suffix."""
    sides = "-vs-".join(_plain(name) or "dump" for name in _named(session))
    inside = _plain(operations_inside(session).partition(" ")[0])
    return f"{sides}-in-{inside}" if inside else sides


def _named(session: Session) -> list[str]:
    """The candidate and the reference; for ``.``, the name of the folder it means."""
    return [
        dump.path.resolve().name if (name := side_name(dump, session.request)) == "." else name
        for dump in (session.candidate, session.reference)
    ]


def _plain(name: str) -> str:
    """A name in characters that any file system accepts."""
    return re.sub(r"[^\w.+-]+", "-", name)[:_LONGEST].strip("-.")


def _settings(dump: Dump) -> Mapping[str, object]:
    found = dump.facts.get("settings")
    return found if isinstance(found, Mapping) else {}
