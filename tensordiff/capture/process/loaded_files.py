"""The files that this process was made of when it ran a source: its Python modules, and what it has mapped.

Mapped files are a framework's libraries, and weights that are read in place. Files that were opened, read and closed
cannot be found, so this list is never complete.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

_MAPS = Path("/proc/self/maps")


def loaded_files(output: str) -> tuple[str, ...]:
    """These files with links resolved, except those in the folder of the written dump."""
    found = {os.path.realpath(path) for path in (*module_files(), *_mapped())}
    written = os.path.realpath(output) + os.sep
    return tuple(sorted(path for path in found if Path(path).is_file() and not path.startswith(written)))


def module_files() -> Iterator[str]:
    """The files that the imported modules were loaded from; some may never have existed."""
    for module in list(sys.modules.values()):
        if isinstance(file := getattr(module, "__dict__", {}).get("__file__"), str):
            yield file


def _mapped() -> Iterator[str]:
    """The files that are mapped; known only on Linux."""
    try:
        with _MAPS.open(encoding="utf-8", errors="surrogateescape") as maps:
            for line in maps:
                fields = line.rstrip("\n").split(maxsplit=5)
                if len(fields) == 6 and fields[5].startswith(os.sep) and not fields[5].startswith("/dev/"):
                    yield fields[5]
    except OSError:
        return
