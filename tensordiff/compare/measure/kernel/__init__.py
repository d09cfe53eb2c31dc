"""The measuring pass in C: its sources, and beside them the library that the build compiled from them.

Installation decides whether there is a library; ``why_missing`` gives the reason if there is none. Only the standard
library is imported here, since the build (``build_kernel.py``) runs this file by its path and the app calls it at
start.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = ("bytes.h", "elements.h", "float8.h", "lanes.h", "library.c", "pass.c")
LIBRARIES = {"win32": "kernel.dll", "darwin": "kernel.dylib"}
LIBRARY = Path(os.environ.get("TENSORDIFF_KERNEL") or FOLDER / LIBRARIES.get(sys.platform, "kernel.so"))
"""The library beside its sources; tests may set another one that was compiled from them."""
REASON = FOLDER / "no_kernel.txt"
"""Written by the build if it could not compile the library: a sentence with the reason."""


class NoKernel(Exception):
    """Why there is no library, as the end of a sentence."""


def digest() -> str:
    """A hash of the sources, which the library contains; a library compiled from other sources is not used."""
    total = hashlib.sha256()
    for name in SOURCES:
        total.update(hashlib.sha256((FOLDER / name).read_bytes()).digest())
    return total.hexdigest()[:32]


@cache
def library() -> ctypes.CDLL:
    """The library; raises ``NoKernel`` if this install has none that was compiled from these sources."""
    if not LIBRARY.exists():
        raise NoKernel(_reason())
    try:
        found = ctypes.CDLL(str(LIBRARY))
        found.td_digest.restype = ctypes.c_char_p
        is_of_these = found.td_digest() == digest().encode()
    except (OSError, AttributeError) as error:
        raise NoKernel(f"its library does not load: {error}") from error
    if not is_of_these:
        raise NoKernel("its library was compiled from other sources than these; install tensordiff again")
    return found


def _reason() -> str:
    try:
        return REASON.read_text("utf-8").strip().partition("\n")[0]
    except OSError:
        return "it was never compiled; install tensordiff, or run build_kernel.py"


@cache
def why_missing() -> str | None:
    """Why this install has no library, as the end of a sentence; None if it has one."""
    try:
        library()
    except NoKernel as error:
        return str(error)
    return None


def slow_notice() -> str | None:
    """What a user is told once if this install measures in numpy; None if it does not."""
    why = why_missing()
    return None if why is None else f"tensordiff measures in numpy here, right but many times slower: {why}"


def describe() -> str:
    """Which pass measures in this install, and with which instructions."""
    if why := why_missing():
        return f"numpy, as there is no compiled pass: {why}"
    level = library().td_best_level()
    return f"compiled, for {({3: 'AVX2', 4: 'AVX-512'}).get(level, 'any processor of this kind')}"
