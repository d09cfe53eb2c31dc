"""How much memory this process may still take: what the machine has, what control groups and its own limit allow."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from tensordiff.util.sizes import format_bytes

_WORTH_ASKING = 1 << 26  # to ask takes as long as to fill a few megabytes
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def shortage(nbytes: int) -> str | None:
    """Both numbers, where a process cannot have so many bytes more: to be found out before they are taken.

    Most systems promise memory that they do not have, and end the process that comes to use it.
    """
    if nbytes < _WORTH_ASKING or (free := available_memory()) is None or nbytes <= free:
        return None
    return f"{format_bytes(nbytes)} ({nbytes:,} bytes), and {format_bytes(free)} of memory are available"


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can be taken without swapping or being killed; None where nothing says. ``root`` is for tests."""
    limits = (_of_machine(root), *_of_groups(root), _of_process(root))
    return min((max(limit, 0) for limit in limits if limit is not None), default=None)


def _of_machine(root: Path) -> int | None:
    """What the kernel holds to be available, or all there is where it does not say."""
    if found := re.search(r"^MemAvailable:\s*(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE):
        return int(found[1]) << 10
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _of_groups(root: Path) -> Iterator[int | None]:
    """What is left in the control groups of this process, of either version, and in those around them."""
    mounted = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, kinds, path = line.split(":", 2) if line.count(":") >= 2 else ("", "?", "")
        if kinds == "":
            yield from (_left_in(folder, *_V2) for folder in _upwards(mounted, path))
        elif "memory" in kinds.split(","):
            yield from (_left_in(folder, *_V1) for folder in _upwards(mounted / "memory", path))


def _upwards(mounted: Path, path: str) -> Iterator[Path]:
    """A group's folder and those above it. In a container it may be the topmost, whatever its path says."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return (mounted.joinpath(*parts[:count]) for count in range(len(parts), -1, -1))


def _left_in(folder: Path, limit: str, usage: str, cache: str) -> int | None:
    """What a group allows beside what it uses; files that are only cached are given up when memory is wanted."""
    allowed, used = _text(folder / limit).strip(), _text(folder / usage).strip()
    if not allowed.isdecimal() or not used.isdecimal():
        return None
    cached = re.search(rf"^{cache} (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
    return int(allowed) - int(used) + (int(cached[1]) if cached else 0)


def _of_process(root: Path) -> int | None:
    """What ``ulimit -v`` leaves."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    taken = _text(root / "proc/self/statm").split()
    if limit == resource.RLIM_INFINITY or not taken:
        return None
    return limit - int(taken[0]) * os.sysconf("SC_PAGE_SIZE")


def _text(path: Path) -> str:
    """What a file of the system says; nothing where there is no such file."""
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
