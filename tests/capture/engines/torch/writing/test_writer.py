from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensordiff.dump import open_dump
from tensordiff.dump.model import EntryKey, Origin
from tensordiff.dump.native.writer import DumpWriter
from tensordiff.errors import CaptureError, WriteError
from tests.capture.models import run_here
from tests.processes import PATIENCE_S, until

torch = pytest.importorskip("torch")
from tensordiff.capture.engines.torch.writing.writer import BackgroundWriter, has_spare_core  # noqa: E402
from tensordiff.capture.process.disk_space import check_disk  # noqa: E402


class Slow(DumpWriter):
    """A disk that writes when it is let."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.let = threading.Event()

    def flush(self) -> None:
        assert self.let.wait(PATIENCE_S)
        super().flush()


@pytest.fixture(params=[True, False], ids=["beside", "here"])
def beside(request: pytest.FixtureRequest) -> bool:
    """Whether the thread writes beside the model, or whoever puts."""
    return bool(request.param)


def put_many(background: BackgroundWriter, tensor: Any) -> None:
    for k in range(20):
        background.put(EntryKey(f"x{k}", 0, 1), Origin(), tensor)


def test_what_waits_is_bounded_however_quick_the_model_is(tmp_path: Path, beside: bool) -> None:
    tensor = torch.ones(256)
    with Slow(tmp_path / "d") as writer, BackgroundWriter(writer, 3 * tensor.nbytes, beside=beside) as background:
        putting = threading.Thread(target=put_many, args=(background, tensor))
        putting.start()
        putting.join(0.2)
        assert putting.is_alive()
        writer.let.set()
        putting.join(PATIENCE_S)
    assert background.most_bytes == (3 if beside else 2) * tensor.nbytes
    assert len(open_dump(tmp_path / "d")) == 20


@pytest.mark.parametrize("waiting", [1, 100, 3000])
def test_a_tensor_larger_than_the_bound_goes_through_in_pieces(tmp_path: Path, waiting: int, beside: bool) -> None:
    plain, scattered = torch.arange(999.0), torch.arange(2520).reshape(5, 7, 72).permute(2, 0, 1)
    with DumpWriter(tmp_path / "d") as writer, BackgroundWriter(writer, waiting, beside=beside) as background:
        for name, tensor in (("a", plain), ("b", scattered), ("c", plain[:2])):
            background.put(EntryKey(name, 0, 1), Origin(), tensor)
    assert background.most_bytes <= waiting + 64
    a, b, c = (entry.read() for entry in open_dump(tmp_path / "d").entries)
    assert np.array_equal(a, plain.numpy())
    assert np.array_equal(b, scattered.numpy())
    assert np.array_equal(c, plain[:2].numpy())


def test_what_is_written_over_at_once_was_copied_before(tmp_path: Path, beside: bool) -> None:
    tensor = torch.zeros(4, 300)
    with Slow(tmp_path / "d") as writer, BackgroundWriter(writer, beside=beside) as background:
        for k in range(9):
            tensor.fill_(k)
            background.put(EntryKey(f"x{k}", 0, 1), Origin(), tensor.t())
        tensor.fill_(-1)
        writer.let.set()
    entries = open_dump(tmp_path / "d").entries
    assert [np.unique(entry.read()).tolist() for entry in entries] == [[k] for k in range(9)]
    assert all(entry.spec.shape == (300, 4) for entry in entries)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_and_small_stand_in_order_and_as_they_were(tmp_path: Path, beside: bool, dtype: Any) -> None:
    """A large one may be written from where it lies: not a byte of it later than its put."""
    large, small = torch.empty(3 << 18, dtype=dtype), torch.empty(50, dtype=dtype)
    scattered = torch.empty(1 << 10, 3 << 8, dtype=dtype).t()
    with DumpWriter(tmp_path / "d") as writer, BackgroundWriter(writer, beside=beside) as background:
        for k in range(20):
            for name, tensor in (("a", small), ("b", large), ("c", scattered)):
                background.put(EntryKey(f"{name}{k}", 0, 1), Origin(), tensor.fill_(k))
                tensor.fill_(-1)
    found = [(entry.name, np.unique(entry.read()).tolist()) for entry in open_dump(tmp_path / "d").entries]
    assert found == [(f"{name}{k}", [k]) for k in range(20) for name in "abc"]


def test_ctrl_c_while_a_tensor_is_written_leaves_what_is_whole(tmp_path: Path) -> None:
    """The model goes on and writes over it: what was not written when it was seen must never be."""

    class Interrupted(DumpWriter):
        flushes = 0

        def flush(self) -> None:
            self.flushes += 1
            if self.flushes == 3:
                raise KeyboardInterrupt
            super().flush()

    with pytest.raises(KeyboardInterrupt), Interrupted(tmp_path / "d") as writer:  # noqa: SIM117 - as captures do
        with BackgroundWriter(writer, beside=False) as background:
            for name in "ab":
                background.put(EntryKey(name, 0, 1), Origin(), torch.ones(1 << 18))
            with pytest.raises(KeyboardInterrupt):
                background.put(EntryKey("c", 0, 1), Origin(), (third := torch.ones(1 << 18)))
            third.fill_(-1)
            background.put(EntryKey("d", 0, 1), Origin(), third)
    dump = open_dump(tmp_path / "d")
    assert dump.interrupted
    assert [(entry.name, set(entry.read().tolist())) for entry in dump.entries] == [("a", {1}), ("b", {1})]


def test_a_core_is_left_over_where_torch_does_not_use_them_all() -> None:
    threads, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    try:
        torch.set_num_threads(cores)
        assert not has_spare_core()
        torch.set_num_threads(1)
        assert has_spare_core() == (cores > 1)
    finally:
        torch.set_num_threads(threads)


def test_pieces_of_large_tensors_stand_in_order_between_the_others(tmp_path: Path, beside: bool) -> None:
    with DumpWriter(tmp_path / "d") as writer, BackgroundWriter(writer, waiting=64, beside=beside) as background:
        for k in range(0, 8, 2):
            background.put(EntryKey(f"x{k}", 0, 1), Origin(), torch.full((3,), k))
            background.put(EntryKey(f"x{k + 1}", 0, 1), Origin(), torch.full((30,), k + 1))
    entries = open_dump(tmp_path / "d").entries
    assert [(entry.name, entry.read()[-1]) for entry in entries] == [(f"x{k}", k) for k in range(8)]


def test_what_was_put_is_soon_on_the_disk(tmp_path: Path, beside: bool) -> None:
    with DumpWriter(tmp_path / "d") as writer, BackgroundWriter(writer, beside=beside) as background:
        background.put(EntryKey("x", 0, 1), Origin(), torch.ones(3))
        until(lambda: open_dump(tmp_path / "d").entries)
        assert open_dump(tmp_path / "d").entries[0].read().tolist() == [1, 1, 1]


def test_a_put_that_is_interrupted_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """The first half of a tensor is handed over, then somebody presses Ctrl-C, and the model goes on."""

    def interrupted(array: Any, most: int) -> Any:
        yield array[: len(array) // 2]
        raise KeyboardInterrupt

    with DumpWriter(tmp_path / "d") as writer, BackgroundWriter(writer, 128, beside=beside) as background:
        background.put(EntryKey("a", 0, 1), Origin(), torch.ones(8))
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr("tensordiff.capture.engines.torch.writing.writer.pieces", interrupted)
            background.put(EntryKey("b", 0, 1), Origin(), torch.full((60,), 2.0))
        background.put(EntryKey("c", 0, 1), Origin(), torch.full((60,), 3.0))
    entries = open_dump(tmp_path / "d").entries
    assert [(entry.name, set(entry.read().tolist())) for entry in entries] == [("a", {1}), ("c", {3})]


def test_an_error_of_the_thread_is_the_model_s(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="written already"):  # noqa: SIM117 - the order is the point
        with DumpWriter(tmp_path / "d") as writer, BackgroundWriter(writer) as background:
            background.put(EntryKey("x", 0, 1), Origin(), torch.ones(1))
            background.put(EntryKey("x", 0, 1), Origin(), torch.ones(1))
    assert open_dump(tmp_path / "d").interrupted


class SmallDisk:
    """A disk that takes what it has room for, as real ones do, and says so when there is none."""

    def __init__(self, room: int) -> None:
        self.room, self.really = room, (os.pwritev, os.ftruncate)

    def pwrite(self, file: int, data: Any, offset: int) -> int:
        return self.pwritev(file, [data], offset)

    def pwritev(self, file: int, views: Any, offset: int) -> int:
        data = b"".join(views)
        size = os.fstat(file).st_size
        fits = max(size + self.room - offset, 0)
        if data and not fits:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done: int = self.really[0](file, [data[:fits]], offset)
        self.room -= max(offset + done - size, 0)
        return done

    def ftruncate(self, file: int, size: int) -> None:
        self.room += os.fstat(file).st_size - size
        self.really[1](file, size)


@pytest.mark.parametrize(("room", "least"), [(263_000, 0), (268_000, 1), (275_000, 20)])
def test_a_full_disk_leaves_what_was_written(
    small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, least: int
) -> None:
    whole = open_dump(run_here(small + "good", tmp_path / "whole").path)
    disk = SmallDisk(room)
    for call in ("pwrite", "pwritev", "ftruncate"):
        monkeypatch.setattr(f"tensordiff.dump.native.shards.os.{call}", getattr(disk, call))
    with pytest.raises(WriteError, match="there is no room left") as error:
        run_here(small + "good", tmp_path / "d")
    monkeypatch.undo()
    dump = open_dump(tmp_path / "d")
    assert dump.interrupted
    assert not dump.problems
    assert least <= len(dump) < len(whole)
    assert f"after {len(dump)} tensors" in str(error.value)
    for entry, other in zip(dump.entries, whole.entries, strict=False):
        assert entry.name == other.name
        assert np.array_equal(entry.read(), other.read())


def test_a_disk_that_is_too_small_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"about 1000.0 TB to write, .* free; write elsewhere.*--force"):
        check_disk(tmp_path / "not" / "there", 10**15, force=False)
    assert "free" in check_disk(tmp_path, 10**15, force=True)


def test_parts_are_put_into_the_order_they_ran_in(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "d") as writer:
        for part in (("a", "d"), ("b", "c")):
            writer.begin_part()
            for name in part:
                writer.add(name, torch.ones(1).numpy())
        writer.arrange([EntryKey(name, 0, 1) for name in "abcd"])
    dump = open_dump(tmp_path / "d")
    assert [entry.name for entry in dump.entries] == ["a", "b", "c", "d"]
    assert all(entry.read().tolist() == [1] for entry in dump.entries)
    assert not dump.interrupted


def test_parts_may_begin_between_what_a_thread_writes(tmp_path: Path, beside: bool) -> None:
    with DumpWriter(tmp_path / "d") as writer:
        with BackgroundWriter(writer, beside=beside) as background:
            for part in range(30):
                background.drain()
                writer.begin_part()
                for k in range(part, 90, 30):
                    background.put(EntryKey(f"x{k}", 0, 1), Origin(), torch.full((2,), k))
        writer.arrange([EntryKey(f"x{k}", 0, 1) for k in range(90)])
    entries = open_dump(tmp_path / "d").entries
    assert [(entry.name, entry.read()[0]) for entry in entries] == [(f"x{k}", k) for k in range(90)]
