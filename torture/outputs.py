"""What a command may leave where it writes: a file is whole, as it was, or not there, however the command ended."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from tensordiff.dump import open_dump
from tensordiff.errors import TensordiffError

_DEFECTS = ("Traceback", "Exception ignored", "a defect of tensordiff")
_PARTIAL = ("manifest.json", "entries.jsonl")


def is_defect(said: str) -> bool:
    """Whether what a command said on stderr is no sentence for a user."""
    return any(defect in said for defect in _DEFECTS)


def of_file(path: Path, before: bytes | None) -> Iterator[str]:
    """A file is whole, as it was, or not there."""
    if not path.exists():
        if before is not None:
            yield f"{path.name} is gone"
        return
    content = path.read_bytes()
    if content != before and not _is_whole(path.suffix, content):
        yield f"{path.name} is not whole: it ends with {content[-60:]!r}"


def _is_whole(suffix: str, content: bytes) -> bool:
    check = _WHOLE.get(suffix)
    try:
        return content.endswith(b"\n") if check is None else bool(check(content))
    except ValueError:
        return False


_WHOLE: dict[str, Callable[[bytes], object]] = {
    ".html": lambda content: content.rstrip().endswith(b"</html>"),
    ".json": lambda content: json.loads(content),
    ".toml": lambda content: tomllib.loads(content.decode()) is not None,
    ".png": lambda content: content.endswith(b"IEND\xaeB`\x82"),
    ".xml": lambda content: content.rstrip().endswith(b"</testsuites>"),
}


def of_folder(folder: Path) -> Iterator[str]:
    """What files it has are whole; a dump that is in it can be opened."""
    for path in sorted(folder.rglob("*")) if folder.exists() else ():
        if path.suffix in _WHOLE and path.name not in _PARTIAL and not _is_whole(path.suffix, path.read_bytes()):
            yield f"{path.relative_to(folder)} is not whole"
        if path.name in _PARTIAL:
            try:
                open_dump(path.parent)
            except TensordiffError as error:
                if path.stat().st_size:
                    yield f"{path.parent.name} cannot be opened: {error}"
