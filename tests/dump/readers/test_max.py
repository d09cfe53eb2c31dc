from __future__ import annotations

import os
import resource
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from tensordiff.dump import Entry, open_dump
from tensordiff.dump.dtypes import DTYPES
from tensordiff.errors import BadFile, NotADump
from tests.dump.file_damage import FUZZ, allocating_under, keeps_promise, mutated
from tests.dump.readers.max_samples import FLOAT32, MAGIC, max_bytes

REAL = Path(__file__).parents[2] / "data" / "max"
CODES = {
    1: "bool", 134: "uint8", 135: "int8", 136: "uint16", 137: "int16", 138: "uint32", 139: "int32",
    140: "uint64", 141: "int64", 79: "float16", 80: "bfloat16", 81: "float32", 82: "float64",
    73: "float8_e8m0fnu", 75: "float8_e4m3fn", 76: "float8_e4m3fnuz", 77: "float8_e5m2",
    78: "float8_e5m2fnuz",
}  # fmt: skip


def only(tmp_path: Path, data: bytes) -> Entry:
    path = tmp_path / "x.max"
    path.write_bytes(data)
    [entry] = open_dump(path).entries
    return entry


def open_files() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def refusal(tmp_path: Path, data: bytes) -> str:
    entry = only(tmp_path, data)
    with pytest.raises(BadFile) as caught:
        entry.read()
    with pytest.raises(BadFile, match=r"x\.max"):
        _ = entry.spec
    return caught.value.problem


def test_files_that_max_wrote() -> None:
    dump = open_dump(REAL)
    assert (dump.format, dump.ordered, dump.problems) == ("max", False, ())
    tokens, layer, norm_in, norm_out = dump.entries
    assert (tokens.name, tokens.layer, tokens.port) == (
        "model.embed_tokens-input_0",
        "model.embed_tokens",
        "input_0",
    )
    assert tokens.read().dtype.name == "int64"
    assert tokens.read().tolist() == [263, 307, 296, 294, 293, 311, 287, 313, 309]
    assert (layer.spec.shape, layer.read().dtype.name, int(layer.read())) == ((), "uint32", 1)
    assert (norm_in.spec.shape, norm_out.spec.shape) == ((1, 64), (1, 64))
    assert norm_in.read()[0, :3].tolist() == pytest.approx([0.02542452, -0.03400179, 0.0081603], rel=1e-6)
    assert norm_out.read().dtype.name == "bfloat16"
    assert norm_out.read()[0, :4].astype(np.float32).tolist() == [
        0.95703125,
        -1.59375,
        0.365234375,
        0.96484375,
    ]


@pytest.mark.parametrize("name", [path.name for path in sorted(REAL.iterdir())])
def test_real_files_are_read_bit_for_bit(name: str) -> None:
    [entry] = open_dump(REAL / name).entries
    array = entry.read()
    assert entry.name == name.removesuffix(".max")
    assert array.tobytes() == (REAL / name).read_bytes()[-array.nbytes :]
    assert not array.flags.writeable


@pytest.mark.parametrize(("code", "name"), CODES.items(), ids=CODES.values())
def test_every_dtype(tmp_path: Path, code: int, name: str) -> None:
    dtype = DTYPES[name]
    raw = np.random.default_rng(3).integers(0, 2 if name == "bool" else 256, 6 * dtype.itemsize, np.uint8).tobytes()
    entry = only(tmp_path, max_bytes("odd", code, (2, 3), raw))
    assert (entry.spec.shape, entry.spec.dtype) == ((2, 3), dtype)
    assert entry.read().tobytes() == raw


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 4), (2, 0, 3), (1,) * 64, (2, 3, 4, 5)])
def test_shapes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    assert only(tmp_path, max_bytes(shape=shape)).read().shape == shape


def test_a_folder_in_natural_order_reads_nothing_on_opening(tmp_path: Path) -> None:
    for name in ("layers.10-output", "layers.9(2)-output_1", "layers.9-input_x"):
        (tmp_path / f"{name}.max").write_bytes(b"not looked at yet")
    dump = open_dump(tmp_path)
    assert [(e.layer, e.port, e.call) for e in dump.entries] == [
        ("layers.9", "output_1", 2),
        ("layers.9", "input_x", 1),
        ("layers.10", "output", 1),
    ]
    with pytest.raises(BadFile, match="does not begin"):
        _ = dump.entries[0].spec


def test_one_bad_file_leaves_the_rest(tmp_path: Path) -> None:
    (tmp_path / "a.max").write_bytes(max_bytes(shape=(2,), data=struct.pack("<2f", 1, 2)))
    (tmp_path / "b.max").write_bytes(max_bytes(shape=(2,))[:-1])
    good, bad = open_dump(tmp_path).entries
    assert good.read().tolist() == [1, 2]
    with pytest.raises(BadFile, match=r"b\.max"):
        bad.read()


def test_a_file_is_known_by_its_magic_or_refused_by_its_suffix(tmp_path: Path) -> None:
    (tmp_path / "tensor").write_bytes(max_bytes(shape=(1,)))
    assert open_dump(tmp_path / "tensor").entries[0].name == "tensor"
    (tmp_path / "raw.max").write_bytes(bytes(64))
    with pytest.raises(BadFile, match="BINARY_MAX_CHECKPOINT"):
        open_dump(tmp_path / "raw.max")


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "newer": ({"version": (0, 2)}, "version 0.2"),
    "much newer": ({"version": (1, 1)}, "version 1.1"),
    "float4": ({"code": 64}, "float4_e2m1fn"),
    "float6": ({"code": 65}, "float6_e2m3fn"),
    "unknown dtype": ({"code": 7}, "code 7"),
    "key too long": ({"key_length": 5}, "contradicts|truncated"),
    "key absurd": ({"key_length": 0xFFFFFFFF}, "truncated"),
    "metadata too long": ({"metadata_size": 1 << 40}, "contradicts"),
    "metadata too short": ({"metadata_size": 0}, "contradicts"),
    "offset past the end": ({"offset": 1 << 40}, "contradicts"),
    "offset in the header": ({"offset": 8}, "contradicts"),
    "offset absurd": ({"offset": (1 << 64) - 1}, "contradicts"),
    "rank 65": ({"shape": (1,) * 65}, "65 dimensions"),
    "rank 255": ({"shape": (1,) * 255}, "255 dimensions"),
    "absurd shape": ({"shape": (0xFFFFFFFF,) * 4, "data": bytes(8)}, "truncated"),
    "one byte short": ({"shape": (2,), "data": bytes(7)}, "takes 8 bytes, and 7 are there"),
    "one byte more": ({"shape": (2,), "data": bytes(9)}, "takes 8 bytes, and 9 are there"),
    "empty and absurd": ({"shape": (0, *(0xFFFFFFFF,) * 3), "data": b""}, "impossible shape"),
}


@pytest.mark.parametrize(("lie", "words"), LIES.values(), ids=LIES)
def test_a_header_that_lies(tmp_path: Path, lie: dict[str, Any], words: str) -> None:
    entry = only(tmp_path, max_bytes(**lie))
    with allocating_under(1 << 20), pytest.raises(BadFile, match=words):
        entry.read()


def test_truncation_anywhere_is_one_sentence(tmp_path: Path) -> None:
    whole = max_bytes("a.b-output", FLOAT32, (2, 3))
    for length in range(len(MAGIC), len(whole)):
        refusal(tmp_path, whole[:length])
    for length in range(len(MAGIC)):
        with pytest.raises(BadFile, match="does not begin"):
            only(tmp_path, whole[:length])


def test_a_large_file_is_mapped_and_let_go_with_its_array(tmp_path: Path) -> None:
    values = np.arange(1 << 16, dtype=np.float32)
    path = tmp_path / "x.max"
    path.write_bytes(max_bytes(shape=(1 << 16,), data=values.tobytes()))
    [entry] = open_dump(path).entries
    before = open_files()
    with allocating_under(1 << 16):
        array = entry.read()
    assert np.array_equal(array, values)
    del array
    assert open_files() == before


def test_more_files_than_may_be_open(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    data = max_bytes(shape=(1 << 15,))
    for index in range(40):
        (tmp_path / f"{index}.max").write_bytes(data)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files() + 20, hard))
    try:
        assert all(not entry.read().any() for entry in open_dump(tmp_path).entries)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_strange_names(tmp_path: Path) -> None:
    for name in ("[0]-output", "[red]bold", "\x1b[31mred", "..", "a b", "x" * 250, "\udcff"):
        (tmp_path / f"{name}.max").write_bytes(max_bytes(shape=(1,))[:-1])
    for entry in open_dump(tmp_path).entries:
        with pytest.raises(BadFile) as caught:
            entry.read()
        assert str(caught.value).isprintable()


def test_things_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.max")
    (tmp_path / "folder.max").mkdir()
    (tmp_path / "loop.max").symlink_to("loop.max")
    (tmp_path / "out.max").symlink_to("/etc/passwd")
    with pytest.raises(NotADump):
        open_dump(tmp_path)
    with pytest.raises(BadFile, match="is a pipe"):
        open_dump(tmp_path / "fifo.max")
    (tmp_path / "ok.max").write_bytes(max_bytes(shape=(1,)))
    dump = open_dump(tmp_path)
    assert [e.name for e in dump.entries] == ["ok"]
    assert [(p.file, p.is_unread) for p in dump.problems] == [
        ("fifo.max", True),
        ("loop.max", True),
        ("out.max", True),
    ]


def test_names_that_differ_in_their_case_alone(tmp_path: Path) -> None:
    for name, value in (("a.max", 1), ("a.MAX", 2), ("b.MAX", 3)):
        (tmp_path / name).write_bytes(max_bytes(shape=(1,), data=np.float32(value).tobytes()))
    found = {entry.name: entry.read().item() for entry in open_dump(tmp_path).entries}
    assert found == {"a.max": 1, "a.MAX": 2, "b": 3}


def test_a_file_gone_after_opening(tmp_path: Path) -> None:
    entry = only(tmp_path, max_bytes(shape=(1,)))
    (tmp_path / "x.max").unlink()
    with pytest.raises(BadFile, match="no such file"):
        entry.read()
    os.mkfifo(tmp_path / "x.max")
    with pytest.raises(BadFile, match="is a pipe"):
        entry.read()


@FUZZ
@given(mutated(max_bytes("a.b-output", 80, (3, 2), bytes(range(12)))))
def test_damage(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.max"
    path.write_bytes(data)
    keeps_promise(path)
