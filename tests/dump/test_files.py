"""The only code that opens files: what it maps, what it refuses, where it does not go."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensordiff.dump.dtypes import DTYPES, Array
from tensordiff.dump.files import FileTensor, MappedFile, map_file, version_of, view_buffer
from tensordiff.dump.model import Spec
from tensordiff.errors import BadFile
from tests.dump.file_damage import allocating_under

F32 = DTYPES["float32"]


def test_a_small_file_is_read_and_a_large_one_mapped(tmp_path: Path) -> None:
    for size, kind in ((0, bytes), (65_535, bytes), (65_536, mmap.mmap)):
        (tmp_path / "x").write_bytes(b"\x07" * size)
        found = map_file(tmp_path / "x")
        assert isinstance(found, kind)
        assert len(found) == size
        assert found[:1] in (b"", b"\x07")


def test_a_mapped_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(1 << 17))
    array = view_buffer(map_file(tmp_path / "x"), "x", 0, Spec((4,), F32))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "is a directory"),
        (lambda path: path.symlink_to(path), "symbolic links"),
    ],
    ids=["nothing", "folder", "loop"],
)
def test_what_cannot_be_opened(tmp_path: Path, make: object, reason: str) -> None:
    assert callable(make)
    make(tmp_path / "x")
    with pytest.raises(BadFile, match=reason) as caught:
        map_file(tmp_path / "x")
    assert caught.value.path == str(tmp_path / "x")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    with pytest.raises(BadFile, match="is a pipe"):
        map_file(tmp_path / "x")
    writer = os.open(tmp_path / "x", os.O_RDWR | os.O_NONBLOCK)  # one that is there and writes nothing
    try:
        with pytest.raises(BadFile, match="is a pipe"):
            map_file(tmp_path / "x")
    finally:
        os.close(writer)


def test_a_device_is_refused() -> None:
    with pytest.raises(BadFile, match="a device"):
        map_file("/dev/null")


def test_a_file_that_shrinks_between_two_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fstat
    for size, left in ((1 << 20, 0), (1 << 20, 100), (40_000, 100)):
        path = tmp_path / "x"
        path.write_bytes(bytes(size))

        def shrinks(handle: int, path: Path = path, left: int = left) -> os.stat_result:
            found = real(handle)
            os.truncate(path, left)
            return found

        monkeypatch.setattr(os, "fstat", shrinks)
        try:
            found = map_file(path)
        except BadFile as error:
            assert size == 1 << 20, error
        else:
            assert len(found) < size
        monkeypatch.setattr(os, "fstat", real)


def test_another_file_in_the_place_of_one_that_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(1 << 17))
    file = MappedFile(path, version_of(path))
    (tmp_path / "y").write_bytes(b"\x01" * (1 << 17))
    os.utime(tmp_path / "y", ns=(1, 1))
    (tmp_path / "y").replace(path)
    with pytest.raises(BadFile, match="replaced after it was opened"):
        _ = file.buffer


def test_a_mapped_file_that_is_replaced_stays_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\x07" * (1 << 17))
    found = map_file(path)
    (tmp_path / "y").write_bytes(b"")
    (tmp_path / "y").replace(path)
    assert set(found[:]) == {7}


def test_a_name_with_a_null(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="null"):
        map_file(str(tmp_path / "a\0b"))


def test_many_files_do_not_stay_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - what matters is how many
    for i in range(200):
        path = tmp_path / str(i)
        path.write_bytes(bytes(1 << 17))
        assert FileTensor(MappedFile(path), 0, Spec((4,), F32)).read().shape == (4,)
    assert len(os.listdir("/proc/self/fd")) - before < 100  # noqa: PTH208


# --- what a header claims -----------------------------------------------------------------------

DATA = np.arange(24, dtype=np.float32).tobytes()


def seen(shape: tuple[int, ...], offset: int = 0, strides: tuple[int, ...] | None = None) -> Array:
    return view_buffer(DATA, "x.bin", offset, Spec(shape, F32), strides)


def test_contiguous_and_strided() -> None:
    assert seen((2, 3), 4).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert seen((3, 2), 0, (1, 6)).tolist() == [[0, 6], [1, 7], [2, 8]]
    assert seen((4,), 0, (0,)).tolist() == [0, 0, 0, 0]
    assert seen((), 8).tolist() == 2
    assert seen((1,) * 64, 8).size == 1


def test_a_tensor_may_reach_to_the_last_byte_and_no_further() -> None:
    assert seen((23,), 4)[-1] == 23
    assert seen((2, 2), 0, (22, 1)).tolist() == [[0, 1], [22, 23]]
    with pytest.raises(BadFile, match="does not fit in 96 bytes"):
        seen((2, 2), 0, (23, 1))


def test_nothing_needs_no_bytes() -> None:
    assert seen((0, 1000), 96).shape == (0, 1000)
    assert seen((1 << 40, 0), 96).shape == (1 << 40, 0)


@pytest.mark.parametrize(
    ("shape", "offset", "strides"),
    [
        ((25,), 0, None),
        ((24,), 4, None),
        ((1,), 97, None),
        ((1 << 40,), 0, None),
        ((1 << 62, 4), 0, None),
        ((1 << 40, 1 << 40, 0), 0, None),
        ((-1,), 0, None),
        ((-1, -24), 0, None),
        ((4,), -4, None),
        ((1,) * 65, 0, None),
        ((2, 2), 0, (24, 1)),
        ((2,), 0, (-1,)),
        ((2, 2), 0, (1,)),
    ],
)
def test_claims_that_cannot_be_true(shape: tuple[int, ...], offset: int, strides: tuple[int, ...] | None) -> None:
    with allocating_under(1 << 20), pytest.raises(BadFile, match=r"^x\.bin: "):
        seen(shape, offset, strides)


def test_one_element_seen_often_is_no_lie_and_costs_nothing() -> None:
    with allocating_under(1 << 20):
        assert seen((1 << 40,), 0, (0,)).shape == (1 << 40,)


@given(
    st.lists(st.integers(-2, 30), max_size=4).map(tuple),
    st.integers(-8, 120),
    st.none() | st.lists(st.integers(-2, 30), max_size=4).map(tuple),
)
def test_no_claim_leads_outside(shape: tuple[int, ...], offset: int, strides: tuple[int, ...] | None) -> None:
    try:
        array = seen(shape, offset, strides)
    except BadFile:
        return
    assert array.shape == shape
    low, high = np.lib.array_utils.byte_bounds(array)
    if array.size:
        start = np.frombuffer(DATA, np.uint8).ctypes.data
        assert start <= low < high <= start + len(DATA)
    array.copy()
