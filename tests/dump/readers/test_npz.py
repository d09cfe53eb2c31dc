from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tensordiff.dump import Dump, open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.errors import BadFile
from tests.dump.file_damage import FUZZ, allocating_under, keeps_promise, mutated
from tests.dump.readers.numpy_samples import claim, craft, npy, only, refusal, same_bits, zipped


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_keeps_its_order_and_does_not_call_it_execution(tmp_path: Path, save: Any) -> None:
    tensors = {
        "b-output": np.arange(6.0),
        "a/b": np.ones((2, 3), order="F"),
        "10": np.float32(3),
        "2": np.zeros((0, 2)),
    }
    save(tmp_path / "x.npz", **tensors)
    dump = open_dump(tmp_path / "x.npz")
    assert (dump.format, dump.ordered, dump.problems) == ("npz", False, ())
    assert [e.name for e in dump.entries] == list(tensors)
    assert all(same_bits(e.read(), np.asarray(tensors[e.name])) for e in dump.entries)


@settings(max_examples=50, deadline=None)
@given(
    data=arrays.arrays(arrays.scalar_dtypes(), arrays.array_shapes(min_dims=0, min_side=0)),
    packed=st.booleans(),
)
def test_npz_of_any_array(tmp_path_factory: pytest.TempPathFactory, data: Array, packed: bool) -> None:
    path = tmp_path_factory.mktemp("any") / "x.npz"
    (np.savez_compressed if packed else np.savez)(path, x=data)
    [entry] = open_dump(path).entries
    if data.dtype.kind in "biufc" and data.dtype.itemsize <= 16 and data.dtype.newbyteorder("=") != np.longdouble:
        assert same_bits(entry.read(), data)
    else:
        assert "save it" in refusal(entry)


def test_a_folder_of_npz_is_one_dump(tmp_path: Path) -> None:
    np.savez(tmp_path / "1.npz", a=np.ones(1), b=np.ones(1))
    np.savez(tmp_path / "2.npz", b=np.zeros(1), c=np.zeros(1))
    (tmp_path / "3.npz").write_bytes(b"PK\3\4")
    dump = open_dump(tmp_path)
    assert [(e.name, e.read().item()) for e in dump.entries] == [("a", 1), ("b", 1), ("c", 0)]
    assert sorted(p.file for p in dump.problems) == ["2.npz", "3.npz"]


def test_members_that_are_no_arrays_are_problems(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(zipped({"README": b"hello", "a.npy": npy(np.ones(2))}))
    dump = open_dump(tmp_path / "x.npz")
    assert [e.name for e in dump.entries] == ["a"]
    assert [(p.file, p.is_unread) for p in dump.problems] == [("README", False)]


def test_members_that_may_be_tensors_are_unread(tmp_path: Path) -> None:
    members = {"a.npy": npy(np.ones(2)), "b.pt": b"x", "c": b"raw floats", "d.npy.gz": b"x", "folder/": b""}
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x.npz").write_bytes(zipped(members))
    dump = open_dump(tmp_path / "d" / "x.npz")
    assert [e.name for e in dump.entries] == ["a"]
    assert [(p.file, p.is_unread) for p in dump.problems] == [("b.pt", True), ("c", True), ("d.npy.gz", True)]
    assert dump.unread[0] == f"{tmp_path}/d/x.npz/b.pt: is not a .npy array"
    assert [p.file for p in open_dump(tmp_path / "d").problems] == ["x.npz/b.pt", "x.npz/c", "x.npz/d.npy.gz"]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_arrays_of_any_name_are_read_as_numpy_reads_them(tmp_path: Path, method: int) -> None:
    members = {"a.npy": npy(np.ones(2)), "b": npy(np.zeros(3)), "C.NPY": npy(np.full(1, 7.0)), "/abs": npy(np.ones(1))}
    (tmp_path / "x.npz").write_bytes(zipped(members, method))
    dump = open_dump(tmp_path / "x.npz")
    assert {e.name: e.read().tolist() for e in dump.entries} == {"a": [1, 1], "b": [0, 0, 0], "C": [7], "/abs": [1]}
    assert dump.problems == ()


def test_two_members_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(
        zipped({"a.npy": npy(np.ones(2)), "a": npy(np.zeros(3)), "a.NPY": npy(np.ones(1))})
    )
    dump = open_dump(tmp_path / "x.npz")
    assert [(e.name, e.read().tolist()) for e in dump.entries] == [("a", [1, 1])]
    assert [(p.file, p.is_unread) for p in dump.problems] == [("x.npz", True)] * 2
    assert dump.unread[0] == f"{tmp_path}/x.npz: has tensor 'a' twice; only the first is read"


def bomb(claimed: int, real: int) -> bytes:
    """A zip whose member claims one size and unpacks to another."""
    header = craft(claim("'|u1'", f"({claimed},)"))
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = (
        packer.compress(header) + b"".join(packer.compress(bytes(1 << 20)) for _ in range(real >> 20)) + packer.flush()
    )
    size = len(header) + claimed
    sizes = struct.pack("<III", 0, len(packed), size % (1 << 32))
    local = b"PK\3\4" + struct.pack("<HHHHH", 20, 0, 8, 0, 0) + sizes + struct.pack("<HH", 5, 0) + b"x.npy"
    central = (
        b"PK\1\2" + struct.pack("<HHHHHH", 20, 20, 0, 8, 0, 0) + sizes
        + struct.pack("<HHHHHII", 5, 0, 0, 0, 0, 0, 0) + b"x.npy"
    )  # fmt: skip
    start = len(local) + len(packed)
    return local + packed + central + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), start, 0)


def test_a_bomb_is_cut_off_at_what_it_claims(tmp_path: Path) -> None:
    entry = only(tmp_path, bomb(claimed=1000, real=256 << 20), "x.npz")
    assert entry.spec.shape == (1000,)
    with allocating_under(1 << 21), pytest.raises(BadFile, match="more than the 1"):
        entry.read()


def test_a_claim_that_so_few_bytes_cannot_keep_is_not_allocated(tmp_path: Path) -> None:
    entry = only(tmp_path, bomb(claimed=4 << 30, real=0), "x.npz")
    with allocating_under(1 << 20), pytest.raises(BadFile, match=r"cannot unpack|truncated"):
        entry.read()
    entry = only(tmp_path, bomb(claimed=1 << 30, real=0), "x.npz")
    with allocating_under(1 << 20), pytest.raises(BadFile, match="cannot unpack"):
        entry.read()


def test_packed_bytes_that_changed_are_noticed(tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(0, 256, 4000, np.uint8)
    data = bytearray(zipped({"x.npy": npy(values)}, zipfile.ZIP_DEFLATED, level=0))
    at = data.index(values[100:120].tobytes())
    data[at] ^= 1
    entry = only(tmp_path, bytes(data), "x.npz")
    with pytest.raises(BadFile, match="not what was packed"):
        entry.read()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_packings_are_refused(tmp_path: Path, method: int) -> None:
    assert "packed in a way" in refusal(only(tmp_path, zipped({"x.npy": npy(np.ones(9))}, method), "x.npz"))


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    data = bytearray(zipped({"x.npy": npy(np.ones(9))}))
    data[data.index(b"PK\1\2") + 8] |= 1
    assert "encrypted" in refusal(only(tmp_path, bytes(data), "x.npz"))


@pytest.mark.parametrize("data", [b"", b"PK", b"PK\3\4" + bytes(100), b"hello" * 20, npy(np.ones(3))])
def test_an_npz_that_is_no_zip(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(BadFile, match=r"x\.npz"):
        only(tmp_path, data, "x.npz")


def test_a_name_twice_in_a_zip(tmp_path: Path) -> None:
    data = zipped({"a.npy": npy(np.ones(1)), "b.npy": npy(np.zeros(1))}).replace(b"b.npy", b"a.npy")
    with pytest.raises(BadFile, match="twice"):
        only(tmp_path, data, "x.npz")


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "[/0]-output", "\x1b[31m", "x" * 8_000, "é"], ids=range(6))
def test_strange_names_in_a_zip(tmp_path: Path, name: str) -> None:
    entry = only(tmp_path, zipped({f"{name}.npy": npy(np.ones(2))}), "x.npz")
    assert entry.read().tolist() == [1, 1]
    message = refusal(only(tmp_path, zipped({f"{name}.npy": npy(np.ones(2))[:-1]}), "x.npz"))
    assert len(message) < 500


VALID_NPZ = zipped({"a-output.npy": npy(np.arange(6.0)), "b.npy": npy(np.ones((2, 2), np.int16))})
VALID_PACKED = zipped({"a-output.npy": npy(np.arange(6.0)), "b.npy": npy(np.ones((2, 2)))}, zipfile.ZIP_DEFLATED)


@FUZZ
@given(st.sampled_from([VALID_NPZ, VALID_PACKED]).flatmap(mutated))
def test_damaged_npz(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.npz").write_bytes(data)
    keeps_promise(tmp_path / "x.npz")


@pytest.mark.parametrize("data", [VALID_NPZ, VALID_PACKED], ids=["stored", "packed"])  # zips hold the time of day
def test_the_files_that_are_damaged_are_whole(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.npz").write_bytes(data)
    dump: Dump = open_dump(tmp_path / "x.npz")
    assert [e.read().size for e in dump.entries] == [6, 4]
