"""The session file: where what a person did with two dumps is kept, and how it comes back.

The file stands beside the candidate, or where it was told, or in the user's state folder where nothing
can be written beside the dumps. It is replaced whole or not at all. What cannot be read is never
overwritten: it is put aside under another name, and a sentence says so. A file knows which dumps it is
about and says when they changed; everything in it is by name, so it can be applied to other dumps too.
What is in it is in ``state_json``. Nothing here opens a dump.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import NamedTuple

from tensordiff.align.editing import rebased
from tensordiff.align.match import Pair
from tensordiff.align.rules_file import RulesFile
from tensordiff.errors import BadFile, WriteError, printable
from tensordiff.state_json import SCHEMA, Identity, State, state_of, state_text

__all__ = [
    "SCHEMA", "Identity", "Places", "Restored", "State",
    "identity_of", "keep", "places_for", "read_state", "restore", "row_name", "rules_of_state", "what_changed",
]  # fmt: skip

SUFFIX = ".tensordiff-session.json"
_MAX_BYTES = 1 << 26
_LONGEST_NAME = 120  # bytes; with the suffix, what every file system takes


class Places(NamedTuple):
    """Where a session may be kept: in the first place that can be written."""

    paths: tuple[Path, ...]


class Restored(NamedTuple):
    """A state, and what a person should be told about it."""

    state: State
    sentences: tuple[str, ...] = ()


def places_for(reference: Path, candidate: Path, told: Path | None = None) -> Places:
    """Where the session of two dumps is kept; where it was told, there and nowhere else."""
    if told is not None:
        return Places((told,))
    candidate, reference = candidate.absolute(), reference.absolute()
    beside = _name(candidate.name, os.path.relpath(reference, candidate.parent))
    far = _name(candidate.name, f"{reference}{os.pathsep}{candidate}", always_hashed=True)
    return Places((candidate.parent / beside, _state_folder() / far))


def _name(candidate: str, reference: str, *, always_hashed: bool = False) -> str:
    """A file's name that says which two dumps it is about; hashed where it would be too long."""
    words = "-".join(re.findall(r"[\w.+]*\w[\w.+]*", reference))
    name = f"{candidate or 'dump'}.vs.{words}"
    if not always_hashed and len(os.fsencode(name)) <= _LONGEST_NAME:
        return name + SUFFIX
    digest = hashlib.sha256(os.fsencode(reference)).hexdigest()[:12]
    return f"{candidate[:24] or 'dump'}.vs.{digest}{SUFFIX}"


def _state_folder() -> Path:
    from platformdirs import user_state_path

    return user_state_path("tensordiff", appauthor=False) / "sessions"


def read_state(path: Path) -> State:
    """Read a session file; ``BadFile`` where it is none."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise BadFile(path, f"is larger than {_MAX_BYTES >> 20} MB; is it a session file?")
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BadFile(path, f"the session cannot be read ({why!s:.120})") from error
    return state_of(text, path)


def restore(places: Places) -> Restored:
    """What was kept last; what cannot be read is put aside, and the next place looked at."""
    sentences: list[str] = []
    for path in sorted(filter(Path.exists, places.paths), key=_changed, reverse=True):
        try:
            return Restored(read_state(path), tuple(sentences))
        except BadFile as error:
            sentences.append(f"{error}; {_put_aside(path)}")
    return Restored(State(), tuple(sentences))


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns


def _put_aside(path: Path) -> str:
    """Give a file another name, that nothing be written over it."""
    free = next(name for name in _aside(path) if not name.exists())
    try:
        path.rename(free)
    except OSError as error:
        return f"it stays, and cannot be put aside ({error.strerror})"
    return f"it is put aside as {printable(free.name)}, and a new session begins"


def _aside(path: Path) -> Iterator[Path]:
    return (path.with_name(f"{path.name}.aside{k or ''}") for k in count())


def keep(places: Places, state: State) -> Path:
    """Write a session file to the first place that can be written; the file."""
    from tensordiff.align.rules_writing import put

    text = state_text(state)
    for path in places.paths[:-1]:
        try:
            put(path, text)
        except WriteError:
            continue  # the last place says why, if that cannot be written either
        return path
    last = places.paths[-1]
    try:
        last.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"cannot be made ({error.strerror}); give --session a file"
        raise WriteError(f"{printable(last.parent)}: {why}") from error
    put(last, text)
    return last


def rules_of_state(state: State, file: RulesFile | None) -> RulesFile:
    """The rules as they were edited, over what the rules file says by now; as they were where none is given."""
    if state.said is None or file is None:
        return state.said or file or RulesFile()
    said = rebased(state.said, state.said_over, file)
    sources = {rule: rule.source for rule in file.rules}
    return replace(said, rules=tuple(replace(rule, source=sources.get(rule, "")) for rule in said.rules))


def identity_of(path: Path) -> Identity:
    """Which dump this is. Looks at every file's size and date, and into none."""
    stats = [found for file in _files(path) if (found := _stat(file)) is not None]
    newest = max((one.st_mtime_ns for one in stats), default=0)
    return Identity(str(path.absolute()), len(stats), sum(one.st_size for one in stats), newest)


def _files(path: Path) -> Iterator[str | Path]:
    if not path.is_dir():
        return iter((path,))
    return (f"{folder}{os.sep}{name}" for folder, _, names in os.walk(path) for name in names)


def _stat(file: str | Path) -> os.stat_result | None:
    try:
        return os.stat(file)  # noqa: PTH116 - a dump may have a hundred thousand files
    except OSError:
        return None  # gone since the folder was listed, or a link to nowhere


def what_changed(state: State, reference: Identity, candidate: Identity) -> tuple[str, ...]:
    """A sentence for each dump that is not what it was when the session was kept."""
    if state.dumps is None:
        return ()
    sides = zip(("reference", "candidate"), state.dumps, (reference, candidate), strict=True)
    return tuple(sentence for side, then, now in sides if (sentence := _difference(side, then, now)))


def _difference(side: str, then: Identity, now: Identity) -> str:
    if then[1:] == now[1:]:
        return ""
    if then.path != now.path:
        return f"the session is of another {side}: {printable(then.path)}"
    if then[1:3] == now[1:3]:
        return f"the {side} was written again since the session was kept: {printable(now.path)}"
    was, is_now = (f"{one.files} files of {one.bytes:,} bytes" for one in (then, now))
    return f"the {side} changed since the session was kept: {printable(now.path)} had {was}, and has {is_now}"


def row_name(pair: Pair) -> str:
    """What a row is called in a session file."""
    step = f"step {pair.reference.step}: " if pair.reference.step else ""
    return f"{step}{pair.reference.name} = {pair.candidate.name}"
