from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from tensordiff.dump import open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.errors import BadFile, NotADump
from tests.dump.file_damage import FUZZ, allocating_under, keeps_promise, mutated
from tests.dump.readers.numpy_samples import claim, craft, npy, only, refusal, same_bits, zipped

NUMBERS = [
    "?", "u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16",
    ">u2", ">i2", ">u4", ">i4", ">u8", ">i8", ">f2", ">f4", ">f8", ">c8", ">c16",
]  # fmt: skip


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("descr", NUMBERS)
def test_every_dtype_in_every_order(tmp_path: Path, descr: str, order: Any) -> None:
    dtype = np.dtype(descr)
    raw = np.random.default_rng(5).integers(0, 2 if descr == "?" else 256, 24 * dtype.itemsize, np.uint8)
    array = np.asarray(raw.view(dtype).reshape(2, 3, 4), order=order)
    for data, name in ((npy(array), "x.npy"), (zipped({"x.npy": npy(array)}, 8), "x.npz")):
        entry = only(tmp_path, data, name)
        assert same_bits(entry.read(), array)
        assert entry.spec == ((2, 3, 4), entry.read().dtype)
        assert not entry.read().flags.writeable


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 1, 3)])
def test_versions_and_shapes(tmp_path: Path, version: tuple[int, int], shape: tuple[int, ...]) -> None:
    array = np.full(shape, 1.5, np.float32)
    assert same_bits(only(tmp_path, npy(array, version)).read(), array)


def test_the_header_in_another_order_and_spacing(tmp_path: Path) -> None:
    text = '{"shape":(2,),"descr":"<i2","fortran_order":True}\n'
    assert only(tmp_path, craft(text, b"\1\0\2\0")).read().tolist() == [1, 2]


def test_a_folder_is_in_natural_order_and_read_lazily(tmp_path: Path) -> None:
    for index in (10, 9):
        np.save(tmp_path / f"layers.{index}-output.npy", np.full(2, index))
    (tmp_path / "layers.11-output.npy").write_bytes(b"not looked at yet")
    dump = open_dump(tmp_path)
    assert (dump.format, dump.ordered) == ("numpy", False)
    assert [(e.layer, e.port) for e in dump.entries] == [(f"layers.{i}", "output") for i in (9, 10, 11)]
    assert [e.read()[0] for e in dump.entries[:2]] == [9, 10]
    assert "does not begin" in refusal(dump.entries[2])


def test_a_large_file_is_mapped(tmp_path: Path) -> None:
    values = np.arange(1 << 17, dtype=np.float32)
    np.save(tmp_path / "x.npy", values)
    np.savez(tmp_path / "x.npz", x=values)
    for name in ("x.npy", "x.npz"):
        with allocating_under(1 << 17):
            array = open_dump(tmp_path / name).entries[0].read()
        assert np.array_equal(array, values)


REFUSED: dict[str, tuple[Array, str]] = {
    "float8": (np.zeros(3, ml_dtypes.float8_e4m3fn), ".safetensors"),
    "objects": (np.array([1, "a"], object), "running a pickle"),
    "structured": (np.zeros(3, [("a", "f4"), ("b", "i4")]), "structured"),
    "text": (np.array(["ab", "c"]), "'<U2'"),
    "bytes": (np.array([b"ab"]), "'|S2'"),
    "dates": (np.array(["2020-01-01"], "M8[D]"), "M8"),
    "long double": (np.zeros(2, np.longdouble), "not one of the numbers"),
}


@pytest.mark.parametrize(("array", "words"), REFUSED.values(), ids=REFUSED)
@pytest.mark.filterwarnings("ignore:Custom dtypes")
def test_what_is_no_tensor_is_refused(tmp_path: Path, array: Array, words: str) -> None:
    assert words in refusal(only(tmp_path, npy(array)))


LIES: dict[str, tuple[bytes, str]] = {
    "no magic": (b"\x93NUMPZ" + npy(np.zeros(1))[6:], "does not begin"),
    "version 4": (craft(claim("'<f4'", "()"), bytes(4), version=4), "does not begin"),
    "header longer than the file": (b"\x93NUMPY\1\0\xff\xff{", "truncated"),
    "header of gigabytes": (b"\x93NUMPY\2\0\xff\xff\xff\xff{", "truncated"),
    "header too long": (craft(claim("'<f4'", "()") + " " * 20_000, bytes(4), version=2), "too many bytes"),
    "absurd shape": (craft(claim("'<f4'", "(1 << 40,)")), "not a Python literal"),
    "more than there is": (craft(claim("'<f4'", f"({10**15},)"), bytes(8)), "truncated"),
    "past all bounds": (craft(claim("'<f4'", f"({10**30},)"), bytes(8)), "impossible shape"),
    "empty past all bounds": (craft(claim("'<f4'", f"(0, {2**63})")), "impossible shape"),
    "empty product past all bounds": (craft(claim("'<f4'", f"(0, {2**40}, {2**40})")), "impossible shape"),
    "negative dims": (craft(claim("'<f4'", "(-1, -1)"), bytes(4)), "impossible shape"),
    "bool dim": (craft(claim("'<f4'", "(True,)"), bytes(4)), "impossible shape"),
    "float dim": (craft(claim("'<f4'", "(1.0,)"), bytes(4)), "impossible shape"),
    "rank 65": (craft(claim("'<f4'", "(" + "1," * 65 + ")"), bytes(4)), "impossible shape"),
    "shape is a list": (craft(claim("'<f4'", "[1]"), bytes(4)), "without descr"),
    "fortran is a number": (craft(claim("'<f4'", "(1,)", "0"), bytes(4)), "without descr"),
    "one byte short": (craft(claim("'<f4'", "(1,)"), bytes(3)), "truncated"),
    "two arrays in one file": (npy(np.zeros(1)) + npy(np.zeros(1)), "one array a file"),
    "a call": (craft(claim("__import__('os').system('false')", "()")), "not a Python literal"),
    "missing key": (craft("{'descr': '<f4', 'shape': ()}"), "without descr"),
    "extra key": (craft("{'descr': '<f4', 'fortran_order': False, 'shape': (), 'x': 1}"), "without descr"),
    "a list": (craft("[1, 2]"), "without descr"),
    "nothing": (craft(""), "not a Python literal"),
    "zero byte": (craft(b"{\0}"), "not a Python literal"),
    "deep brackets": (craft("(" * 9000), "not a Python literal"),
    "deep lists": (craft("[" * 4000 + "]" * 4000), "not a Python literal"),
    "deep minus": (craft("-" * 9000 + "1"), "not a Python literal"),
    "deep sum": (craft("1" + "+1" * 4900), "not a Python literal"),
    "long number": (craft("9" * 9000), "not a Python literal"),
    "unhashable": (craft("{[]: 1}"), "not a Python literal"),
    "odd width": (craft(claim("'<f3'", "(1,)"), bytes(3)), "not known"),
    "sub-array": (craft(claim("'(2,)<f4'", "(1,)"), bytes(8)), "not one of the numbers"),
    "comma dtype": (craft(claim("'f4,f4'", "(1,)"), bytes(8)), "not one of the numbers"),
}


@pytest.mark.parametrize(("data", "words"), LIES.values(), ids=LIES)
def test_a_header_that_lies(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "x.npy").write_bytes(data)
    (tmp_path / "other.npy").write_bytes(npy(np.ones(1)))
    lie, good = sorted(open_dump(tmp_path).entries, key=lambda e: e.name != "x")
    with allocating_under(1 << 22):
        assert words in refusal(lie)
    assert good.read().tolist() == [1]


def test_truncation_anywhere_is_one_sentence(tmp_path: Path) -> None:
    whole = npy(np.arange(6.0).reshape(2, 3))
    for length in range(6, len(whole)):
        refusal(only(tmp_path, whole[:length]))
    for length in range(6):
        with pytest.raises(BadFile, match="does not begin"):
            only(tmp_path, whole[:length])


def test_things_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.npy")
    (tmp_path / "loop.npz").symlink_to("loop.npz")
    with pytest.raises(NotADump):
        open_dump(tmp_path)
    with pytest.raises(BadFile, match="is a pipe"):
        open_dump(tmp_path / "fifo.npy")
    os.mkfifo(tmp_path / "fifo.npz")
    with pytest.raises(BadFile, match="is a pipe"):
        open_dump(tmp_path / "fifo.npz")


VALID_NPY = npy(np.arange(12, dtype=">f4").reshape(3, 4, order="F"))


@FUZZ
@given(mutated(VALID_NPY))
def test_damaged_npy(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(data)
    keeps_promise(tmp_path / "x.npy")


def test_two_bytes_without_a_name_are_bfloat16(tmp_path: Path) -> None:
    array = np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)
    np.save(tmp_path / "a.npy", array)
    (found,) = open_dump(tmp_path / "a.npy").entries
    assert found.spec.dtype == array.dtype and found.read().tobytes() == array.tobytes()
