"""Mapped files that become shorter while they are read: in any thread, with and without the GIL, never a signal."""

from __future__ import annotations

import os
import signal
import sys
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tensordiff.compare.measure.dispatch import measure
from tensordiff.dump.dtypes import Array
from tensordiff.errors import BadFile
from tensordiff.util.mappings import (
    Mapping,
    compare_sizes,
    count_losses,
    install_handler,
    loss_of,
    map_pages,
    raise_if_lost,
    raise_losses,
    raise_unclaimed,
)
from tests import processes

SIZE = 1 << 24
PAGE = os.sysconf("SC_PAGESIZE")


def mapped(path: Path, size: int = SIZE) -> Mapping:
    path.write_bytes(b"\x3f" * size)  # 0.747 as float32
    install_handler()
    handle = os.open(path, os.O_RDONLY)
    try:
        return map_pages(handle, size, path)
    finally:
        os.close(handle)


def floats(mapping: Mapping) -> Array:
    return np.ndarray((len(mapping) // 4,), np.float32, mapping)


READS: dict[str, Callable[[Mapping], object]] = {
    "bytes, with the GIL": lambda m: m[:],
    "last byte": lambda m: m[len(m) - 1],
    "search": lambda m: m.find(b"\x00\x01\x02"),
    "numpy, without the GIL": lambda m: float(floats(m).sum()),
    "backwards": lambda m: float(floats(m)[::-1].sum()),
    "copy": lambda m: floats(m).copy(),
    "checksum": lambda m: zlib.crc32(m),
    "numpy pass": lambda m: measure(floats(m), floats(m), compiled=False),
    "compiled pass": lambda m: measure(floats(m), floats(m), compiled=True),
}


@pytest.mark.parametrize("left", [0, 1, PAGE, SIZE // 2, SIZE - PAGE])
@pytest.mark.parametrize("how", READS)
def test_what_is_gone_is_zeros_and_noted(tmp_path: Path, how: str, left: int) -> None:
    before = count_losses()
    mapping = mapped(tmp_path / "x")
    READS[how](mapping)
    assert count_losses() == before
    os.truncate(tmp_path / "x", left)
    READS[how](mapping)
    assert count_losses() > before
    whole = -(-left // PAGE) * PAGE
    assert set(mapping[:left]) <= {0x3F}
    assert not any(mapping[whole:])
    error = loss_of([floats(mapping)], before, "a")
    assert f"x: became shorter while its tensor 'a' was read: {left:,} of {SIZE:,} bytes are left" in str(error)


def test_one_fault_is_enough_however_it_is_read(tmp_path: Path) -> None:
    before = count_losses()
    mapping = mapped(tmp_path / "x")
    os.truncate(tmp_path / "x", 0)
    for at in range(SIZE - 1, 0, -PAGE):
        assert mapping[at] == 0
    assert count_losses() == before + 1


def test_a_file_that_shrinks_again_and_again(tmp_path: Path) -> None:
    before = count_losses()
    mapping = mapped(tmp_path / "x")
    for number, left in enumerate((SIZE // 2, SIZE // 4, 0), 1):
        os.truncate(tmp_path / "x", left)
        assert not any(mapping[left:])
        assert count_losses() == before + number


def test_the_thread_that_lost_something_is_told(tmp_path: Path) -> None:
    before = count_losses()
    mapping = mapped(tmp_path / "x")
    os.truncate(tmp_path / "x", 0)
    mapping[:]
    with pytest.raises(BadFile, match="its tensor 'a' was read: 0 of"):
        raise_losses(before, "a")
    raise_losses(count_losses())


def test_several_files_and_all_threads_at_once(tmp_path: Path) -> None:
    before = count_losses()
    mappings = [mapped(tmp_path / str(i), 1 << 20) for i in range(8)]
    for i in range(8):
        os.truncate(tmp_path / str(i), 0)
    start = threading.Barrier(8)

    def read(mapping: Mapping) -> float:
        start.wait(processes.PATIENCE_S)
        return sum(float(floats(other).sum()) for other in (mapping, *mappings))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, mappings)) == [0] * 8
    assert count_losses() >= before + 8
    assert all(mapping.loss is not None for mapping in mappings)
    raise_losses(before)  # this thread lost nothing
    with pytest.raises(BadFile, match="became shorter while it was read"):
        raise_unclaimed(before)


def test_what_was_lost_is_refused_from_then_on(tmp_path: Path) -> None:
    mapping, other = mapped(tmp_path / "x"), mapped(tmp_path / "y")
    array = floats(mapping)
    os.truncate(tmp_path / "x", 0)
    array.sum()
    for _ in range(2):
        with pytest.raises(BadFile, match="became shorter"):
            raise_if_lost(mapping)
    raise_if_lost(other)
    for view in (array, array[5:9], array.reshape(2, -1)[:, ::3].T, array.view(np.uint8)):
        assert "became shorter" in str(loss_of([floats(other), view], 0))
    assert loss_of([floats(other), array.copy(), np.zeros(3)], 0) is None


def test_zeros_in_the_last_page_are_no_fault_and_noted_by_the_size(tmp_path: Path) -> None:
    before = count_losses()
    mapping = mapped(tmp_path / "x")
    array = floats(mapping)
    os.truncate(tmp_path / "x", SIZE - 8)
    assert array[-1] == 0
    assert count_losses() == before
    compare_sizes([array[3:], np.zeros(3)])
    assert (count_losses(), "16,777,208 of" in str(loss_of([array], 0))) == (before + 1, True)


def test_what_nobody_noticed_is_told_once(tmp_path: Path) -> None:
    raise_unclaimed(count_losses())
    before = count_losses()
    mapping = mapped(tmp_path / "x")
    os.truncate(tmp_path / "x", 1)
    mapping[:]
    with pytest.raises(BadFile, match="became shorter"):
        raise_unclaimed(before)
    raise_unclaimed(before)


def test_what_somebody_noticed_is_not_told_again(tmp_path: Path) -> None:
    before = count_losses()
    mapping = mapped(tmp_path / "x")
    os.truncate(tmp_path / "x", 1)
    mapping[:]
    assert loss_of([floats(mapping)], before) is not None
    raise_unclaimed(before)


def test_a_mapping_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    from tensordiff.util import mappings

    before = len(mappings._mappings)
    kept = [mapped(tmp_path / str(i), 1 << 17) for i in range(4)]
    assert len(mappings._mappings) == before + 4
    del kept
    assert len(mappings._mappings) == before


# --- signals that are not ours --------------------------------------------------------------------

BEGIN = """
import faulthandler, mmap, os, signal, sys, threading
from tensordiff.util.mappings import count_losses, map_pages, install_handler
path = sys.argv[1]
def filled(name):
    with open(path + name, "wb") as file:
        file.write(b"7" * (1 << 20))
    return os.open(path + name, os.O_RDWR)
def lose_ours():
    handle = filled("ours")
    mapping = map_pages(handle, 1 << 20, path + "ours")
    os.truncate(path + "ours", 0)
    print(mapping[5000], flush=True)
def lose_another():
    handle = filled("other")
    mapping = mmap.mmap(handle, 1 << 20)
    os.truncate(path + "other", 0)
    print(mapping[5000], flush=True)
"""
ENDS: dict[str, tuple[str, str]] = {
    "a mapping of somebody else": ("lose_ours(); lose_another()", ""),
    "sent from outside": ("lose_ours(); os.kill(os.getpid(), signal.SIGBUS)", ""),
    "raised": ("lose_ours(); signal.raise_signal(signal.SIGBUS)", ""),
    "faulthandler before us": ("faulthandler.enable(); lose_ours(); lose_another()", "Fatal Python error: Bus error"),
    "faulthandler after us": (
        "lose_ours(); faulthandler.enable(); install_handler(); lose_ours(); lose_another()",
        "Fatal Python error: Bus error",
    ),
    "in a thread": (
        "lose_ours(); t = threading.Thread(target=lose_another); t.start(); t.join()",
        "",
    ),
}


@pytest.mark.parametrize("what", ENDS)
def test_other_faults_end_the_process_as_they_would_without_us(tmp_path: Path, what: str) -> None:
    code, said = ENDS[what]
    ran = processes.run([sys.executable, "-c", BEGIN + code, f"{tmp_path}/"])
    assert ran.returncode == -signal.SIGBUS, ran.stderr
    assert set(ran.stdout.split()) == {"0"}
    assert said in ran.stderr
    assert ran.stderr.count("Fatal") == bool(said)


def test_a_handler_of_the_users_own_gets_what_is_sent(tmp_path: Path) -> None:
    code = (
        "signal.signal(signal.SIGBUS, lambda *_: print('heard', flush=True)); lose_ours()\n"
        "os.kill(os.getpid(), signal.SIGBUS); lose_ours(); print(count_losses())"
    )
    ran = processes.run([sys.executable, "-c", BEGIN + code, f"{tmp_path}/"])
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.split() == ["0", "heard", "0", "2"]


def test_a_fault_while_ctrl_c_waits(tmp_path: Path) -> None:
    """The signal came during a call into C that does not look at signals, as a pass over a large tensor."""
    code = """
import _thread, functools, operator
handle = filled("ours")
mapping = map_pages(handle, 1 << 20, path + "ours")
os.truncate(path + "ours", 0)
print(list(map(operator.call, [_thread.interrupt_main, functools.partial(operator.getitem, mapping, 5000)])))
print(count_losses())
"""
    code = f"signal.signal(signal.SIGINT, signal.default_int_handler)\n{code}"
    ran = processes.run([sys.executable, "-c", BEGIN + code, f"{tmp_path}/"])
    assert (ran.returncode, ran.stdout.splitlines()) == (0, ["[None, 0]", "1"])
