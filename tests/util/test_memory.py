"""How much memory there is, by what a system says of it: this one's, and some that are made up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tensordiff.util.memory import available_memory, shortage
from tests import processes

GB = 1 << 30


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = {"proc/meminfo": f"MemTotal: {64 << 20} kB\nMemFree: 1 kB\nMemAvailable:   {20 << 20} kB\n"}
SYSTEMS: dict[str, tuple[dict[str, str], int]] = {
    "no groups": ({}, 20 * GB),
    "version 2": (
        {
            "proc/self/cgroup": "0::/user/job\n",
            "sys/fs/cgroup/user/job/memory.max": f"{8 * GB}\n",
            "sys/fs/cgroup/user/job/memory.current": f"{5 * GB}\n",
            "sys/fs/cgroup/user/job/memory.stat": f"anon 1\ninactive_file {2 * GB}\n",
        },
        5 * GB,
    ),
    "without a limit": (
        {
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/job/memory.max": "max\n",
            "sys/fs/cgroup/job/memory.current": "5\n",
        },
        20 * GB,
    ),
    "a limit above": (
        {
            "proc/self/cgroup": "0::/user/job\n",
            "sys/fs/cgroup/user/job/memory.max": "max\n",
            "sys/fs/cgroup/user/job/memory.current": "5\n",
            "sys/fs/cgroup/user/memory.max": f"{3 * GB}\n",
            "sys/fs/cgroup/user/memory.current": f"{GB}\n",
        },
        2 * GB,
    ),
    "a container, whose group is the topmost": (
        {
            "proc/self/cgroup": "0::/../../docker/0f3a\n",
            "sys/fs/cgroup/memory.max": f"{GB}\n",
            "sys/fs/cgroup/memory.current": "0\n",
        },
        GB,
    ),
    "version 1": (
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{4 * GB}\n",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{4 * GB}\n",
            "sys/fs/cgroup/memory/job/memory.stat": f"inactive_file 7\ntotal_inactive_file {GB}\n",
        },
        GB,
    ),
    "more used than allowed": (
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "5\n",
            "sys/fs/cgroup/memory.current": "9\n",
        },
        0,
    ),
    "nonsense": ({"proc/self/cgroup": "what\n:\n0::\n", "sys/fs/cgroup/memory.max": "\xff"}, 20 * GB),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_what_systems_say(tmp_path: Path, name: str) -> None:
    files, expected = SYSTEMS[name]
    assert available_memory(system(tmp_path, MEMINFO | files)) == expected


def test_this_system_says_something() -> None:
    free = available_memory()
    assert free is not None
    assert 1 << 20 < free < 1 << 50
    assert shortage(1 << 20) is None
    assert "1152921.5 TB (1,152,921,504,606,846,976 bytes), and " in str(shortage(1 << 60))


def test_the_limit_of_the_process_itself() -> None:
    code = (
        "import resource; from tensordiff.util.memory import available_memory, shortage\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "print(0 < available_memory() < 1 << 30, shortage(1 << 30) is not None)"
    )
    assert processes.run([sys.executable, "-c", code], check=True).stdout.split() == ["True", "True"]
