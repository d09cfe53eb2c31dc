"""The files that this process was made of when it ran a source: its Python modules, and what it has mapped.

Mapped are the libraries of a framework, and weights that are read where they lie. A file that was opened, read and
closed is not known to anyone, so this list is never complete.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

_MAPS = Path("/proc/self/maps")


def loaded_files(output: str) -> tuple[str, ...]:
    """Those files, links resolved, without what lies in the folder of the dump that was written."""
    found = {os.path.realpath(path) for path in (*module_files(), *_mapped())}
    written = os.path.realpath(output) + os.sep
    return tuple(sorted(path for path in found if Path(path).is_file() and not path.startswith(written)))


def module_files() -> Iterator[str]:
    """The files that the imported modules were loaded from; some may never have existed."""
    for module in list(sys.modules.values()):
        if isinstance(file := getattr(module, "__dict__", {}).get("__file__"), str):
            yield file


def _mapped() -> Iterator[str]:
    """Known on Linux alone."""
    try:
        with _MAPS.open(encoding="utf-8", errors="surrogateescape") as maps:
            for line in maps:
                fields = line.rstrip("\n").split(maxsplit=5)
                if len(fields) == 6 and fields[5].startswith(os.sep) and not fields[5].startswith("/dev/"):
                    yield fields[5]
    except OSError:
        return
