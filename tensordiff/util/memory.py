"""How much memory this process may still allocate: by the machine, its control groups and its own limit."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from tensordiff.util.sizes import format_bytes

_WORTH_ASKING = 1 << 26  # asking takes as long as filling a few megabytes
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def shortage(nbytes: int) -> str | None:
    """A text with both numbers if the process cannot have so many bytes more, else None.

    Ask before allocating: most systems promise memory that they do not have, and kill the process that uses it.
    """
    if nbytes < _WORTH_ASKING or (free := available_memory()) is None or nbytes <= free:
        return None
    return f"{format_bytes(nbytes)} ({nbytes:,} bytes), and {format_bytes(free)} of memory are available"


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can be allocated without swapping or being killed; None if nothing says. ``root`` is for tests."""
    limits = (_of_machine(root), *_of_groups(root), _of_process(root))
    return min((max(limit, 0) for limit in limits if limit is not None), default=None)


def _of_machine(root: Path) -> int | None:
    """The memory that the kernel reports as available, or all memory if it does not report that."""
    if match := re.search(r"^MemAvailable:\s*(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE):
        return int(match[1]) << 10
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _of_groups(root: Path) -> Iterator[int | None]:
    """The memory left in the control groups of this process (version 1 or 2) and in their parents."""
    mounted = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, kinds, path = line.split(":", 2) if line.count(":") >= 2 else ("", "?", "")
        if kinds == "":
            yield from (_left_in(folder, *_V2) for folder in _upwards(mounted, path))
        elif "memory" in kinds.split(","):
            yield from (_left_in(folder, *_V1) for folder in _upwards(mounted / "memory", path))


def _upwards(mounted: Path, path: str) -> Iterator[Path]:
    """The folder of a group and its parents. In a container it may be the topmost one, whatever its path says."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return (mounted.joinpath(*parts[:count]) for count in range(len(parts), -1, -1))


def _left_in(folder: Path, limit: str, usage: str, cache: str) -> int | None:
    """The limit of a group less its usage. Cached files do not count: the kernel drops them when memory is needed."""
    allowed, used = _text(folder / limit).strip(), _text(folder / usage).strip()
    if not allowed.isdecimal() or not used.isdecimal():
        return None
    cached = re.search(rf"^{cache} (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
    return int(allowed) - int(used) + (int(cached[1]) if cached else 0)


def _of_process(root: Path) -> int | None:
    """The memory that ``ulimit -v`` leaves."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    taken = _text(root / "proc/self/statm").split()
    if limit == resource.RLIM_INFINITY or not taken:
        return None
    return limit - int(taken[0]) * os.sysconf("SC_PAGE_SIZE")


def _text(path: Path) -> str:
    """The text of a system file; empty if there is none."""
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
