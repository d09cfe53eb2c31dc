"""Disks that are full or cannot be written, for one process: mounts in a namespace of its own.

Permissions do not bind root, under which suites often run; a mount does. Where no mount can be made, a test skips.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

_NAMESPACE = ("unshare", "--map-root-user", "--mount")


@cache
def _can_mount() -> bool:
    try:
        done = subprocess.run([*_NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def read_only(command: Sequence[str | Path], *folders: Path) -> list[str]:
    """The command, for which nothing below these folders can be written."""
    return _mounted(command, *(f"mount --bind {at} {at} && mount -o remount,bind,ro {at}" for at in _quoted(folders)))


def on_small_disk(command: Sequence[str | Path], folder: Path, size: str) -> list[str]:
    """The command, for which a folder is an empty disk of this size."""
    [at] = _quoted([folder])
    return _mounted(command, f"mount -t tmpfs -o size={size} tmpfs {at}")


def _quoted(folders: Sequence[Path]) -> list[str]:
    return [shlex.quote(str(folder)) for folder in folders]


def _mounted(command: Sequence[str | Path], *mounts: str) -> list[str]:
    if not _can_mount():
        pytest.skip("mounts cannot be made here")
    script = " && ".join([*mounts, f"exec {shlex.join(map(str, command))}"])
    return [*_NAMESPACE, "sh", "-c", script]
