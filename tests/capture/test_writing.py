from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tensordiff.dump import open_dump
from tensordiff.dump.writer import DumpWriter, Place
from tensordiff.errors import CaptureError, WriteError
from tests.capture.making import run_here

torch = pytest.importorskip("torch")
from tensordiff.capture.children.estimate import check_disk, shown  # noqa: E402
from tensordiff.capture.children.tensors import copy  # noqa: E402
from tensordiff.capture.children.writing import BackgroundWriter  # noqa: E402


class Slow(DumpWriter):
    """A disk that writes when it is let."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.let = threading.Event()

    def add(self, *args: Any, **kwargs: Any) -> None:
        self.let.wait()
        super().add(*args, **kwargs)


def put_many(background: BackgroundWriter, tensor: Any) -> None:
    for k in range(20):
        background.put(f"x{k}", copy(tensor))


def test_what_waits_is_bounded_however_quick_the_model_is(tmp_path: Path) -> None:
    tensor = torch.ones(256)
    with Slow(tmp_path / "d") as writer, BackgroundWriter(writer, waiting=3 * tensor.nbytes) as background:
        putting = threading.Thread(target=put_many, args=(background, tensor))
        putting.start()
        putting.join(0.2)
        assert putting.is_alive()
        writer.let.set()
        putting.join()
    assert background.most_bytes == 3 * tensor.nbytes
    assert len(open_dump(tmp_path / "d")) == 20


def test_a_tensor_larger_than_the_bound_goes_through(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "d") as writer, BackgroundWriter(writer, waiting=10) as background:
        background.put("x", copy(torch.ones(99)))
        background.put("y", copy(torch.ones(99)))
    assert len(open_dump(tmp_path / "d")) == 2


def test_an_error_of_the_thread_is_the_model_s(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="written already"):  # noqa: SIM117 - the order is the point
        with DumpWriter(tmp_path / "d") as writer, BackgroundWriter(writer) as background:
            background.put("x", copy(torch.ones(1)))
            background.put("x", copy(torch.ones(1)))
    assert open_dump(tmp_path / "d").interrupted


def test_a_full_disk_leaves_what_was_written(small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = os.pwrite, [280_000]

    def pwrite(file: int, data: Any, offset: int) -> int:
        left[0] -= len(data)
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, data, offset)

    monkeypatch.setattr("tensordiff.dump.shards.os.pwrite", pwrite)
    with pytest.raises(WriteError, match="there is no room left"):
        run_here(small + "good", tmp_path / "d")
    monkeypatch.undo()
    dump = open_dump(tmp_path / "d")
    assert dump.interrupted
    assert dump.entries


def test_a_disk_that_is_too_small_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"about 1000.0 TB to write, .* free; write elsewhere.*--force"):
        check_disk(tmp_path / "not" / "there", 10**15, force=False)
    assert "free" in check_disk(tmp_path, 10**15, force=True)
    assert shown(12) == "12 bytes"


def test_parts_are_put_into_the_order_they_ran_in(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "d") as writer:
        for part in (("a", "d"), ("b", "c")):
            writer.begin_part()
            for name in part:
                writer.add(name, torch.ones(1).numpy())
        writer.arrange([Place(name, 0, 1) for name in "abcd"])
    dump = open_dump(tmp_path / "d")
    assert [entry.name for entry in dump.entries] == ["a", "b", "c", "d"]
    assert all(entry.read().tolist() == [1] for entry in dump.entries)
    assert not dump.interrupted
