"""A session file that came with a dump: it is shown to the user and used only if they accept it.

Earlier versions kept sessions beside the candidate, and people send them along. Such a file says which tensors are the
same and how far apart they may be, so its author could make a wrong model agree. It is therefore never used without
asking, never changed or renamed, and the user is asked once about each.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import NamedTuple

from tensordiff.align.rules.file import RulesFile, rules_text
from tensordiff.errors import BadFile, WriteError, printable
from tensordiff.session.storage.state import SUFFIX, SessionState, read_state, session_path, state_folder, state_text
from tensordiff.util.atomic_write import write_file

_MOST_SHOWN = 1 << 18
_LONGEST_NAME = 120  # bytes; together with the suffix this fits every file system


class SessionOffer(NamedTuple):
    """A session file that the user has neither accepted nor declined."""

    path: Path
    state: SessionState


def find_session_offer(reference: Path, candidate: Path) -> SessionOffer | str | None:
    """The session file beside the candidate, unless the user has answered; a sentence if it cannot be read."""
    found = [path for path in _legacy_paths(reference.absolute(), candidate.absolute()) if path.is_file()]
    if not found:
        return None
    path = max(found, key=lambda one: one.stat().st_mtime_ns)
    try:
        _refuse_long(path)
        state = read_state(path)
    except BadFile as error:
        return f"{error}; it lies beside the candidate, and is left as it is"
    return None if _digest(state) == _recorded_answer(reference, candidate) else SessionOffer(path, state)


def _refuse_long(path: Path) -> None:
    if path.stat().st_size > _MOST_SHOWN:
        raise BadFile(path, f"is a session of more than {_MOST_SHOWN >> 10} kB, too long to review")


def record_answer(reference: Path, candidate: Path, offered: SessionOffer) -> None:
    """Record that the user has answered, so that they are not asked again about the same content."""
    try:
        write_file(_answer_path(reference, candidate), _digest(offered.state), make_folders=True)
    except WriteError:
        return  # the only consequence is that the user is asked again


def contents(state: SessionState) -> str:
    """Everything that a session would change, for a person to read: rules and tolerances first."""
    rules = "" if state.rules is None else rules_text(state.rules).strip()
    parts = [rules or "no rules and no tolerances"]
    if state.rules_base != RulesFile():
        parts += ["what these were edited from: what is missing above is taken out of the file given with --rules",
                  rules_text(state.rules_base).strip()]  # fmt: skip
    seen = {
        "filter": state.filter, "columns": ", ".join(state.columns or ()), "sorted by": state.sort,
        "marked rows": ", ".join(state.marks), "search": state.bisect,
        "notes": "; ".join(f"{name}: {note}" for name, note in state.notes.items()),
        "shown": " and ".join(["only what does not agree"] * state.faults + ["inputs too"] * state.inputs),
    }  # fmt: skip
    parts += ["\n".join(f"{what}: {text}" for what, text in seen.items() if text)]
    lines = "\n\n".join(filter(None, parts)).split("\n")
    return "\n".join(map(printable, lines))


def _digest(state: SessionState) -> str:
    return hashlib.sha256(state_text(state).encode("utf-8", "backslashreplace")).hexdigest()


def _answer_path(reference: Path, candidate: Path) -> Path:
    return session_path(reference, candidate).with_suffix(".answered")


def _recorded_answer(reference: Path, candidate: Path) -> str:
    try:
        return _answer_path(reference, candidate).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _legacy_paths(reference: Path, candidate: Path) -> tuple[Path, Path]:
    """Where earlier versions kept the session of two dumps: beside the candidate, or in a folder of the user."""
    beside = _legacy_name(candidate.name, os.path.relpath(reference, candidate.parent))
    far = _legacy_name(candidate.name, f"{reference}{os.pathsep}{candidate}", always_hashed=True)
    return candidate.parent / beside, state_folder() / "sessions" / far


def _legacy_name(candidate: str, reference: str, *, always_hashed: bool = False) -> str:
    """The file name made from two dumps; the reference is hashed if the name would be too long."""
    words = "-".join(re.findall(r"[\w.+]*\w[\w.+]*", reference))
    name = f"{candidate or 'dump'}.vs.{words}"
    if not always_hashed and len(os.fsencode(name)) <= _LONGEST_NAME:
        return name + SUFFIX
    digest = hashlib.sha256(os.fsencode(reference)).hexdigest()[:12]
    return f"{candidate[:24] or 'dump'}.vs.{digest}{SUFFIX}"
