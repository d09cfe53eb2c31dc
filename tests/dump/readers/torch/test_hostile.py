from __future__ import annotations

import contextlib
import io
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given

from tensordiff.dump import open_dump
from tensordiff.dump.readers.torch.pickle import unpickle
from tensordiff.dump.readers.torch.tensors import BadPickle
from tensordiff.errors import BadFile, DumpError
from tests.dump.file_damage import FUZZ, allocating_under, ask, keeps_promise, mutated
from tests.dump.readers.torch.torch_samples import bits, opened, pickled, saved, tensor, torch_zip, zipped

NESTED = {
    "a": torch.arange(6.0).reshape(2, 3).T,
    "b": [torch.ones(2, dtype=torch.uint16)],
    "c": {"d": torch.ones(1).to(torch.bfloat16)},
}
ZIP, LEGACY = saved(NESTED), saved(NESTED, _use_new_zipfile_serialization=False)


# What a zip may claim


def patched(data: bytes, at: int, form: str, *values: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(form, changed, at, *values)
    return bytes(changed)


def row(data: bytes, name: bytes) -> int:
    """Where the table of contents describes a member."""
    return data.rindex(name) - 46


TRUE = torch_zip({"a": tensor()}, np.arange(4, dtype=np.float32).tobytes(), byteorder=b"little")
END = len(TRUE) - 22
STORAGE, PICKLE = row(TRUE, b"a/data/0"), row(TRUE, b"a/data.pkl")
LIES = {
    "no members": patched(TRUE, END + 10, "<H", 0),
    "fewer members": patched(TRUE, END + 10, "<H", 1),
    "more members": patched(TRUE, END + 10, "<H", 4),
    "many members": patched(TRUE, END + 10, "<H", 0xFFFF),
    "table past the end": patched(TRUE, END + 16, "<I", len(TRUE)),
    "table at the start": patched(TRUE, END + 16, "<I", 0),
    "table without size": patched(TRUE, END + 12, "<I", 0),
    "table too large": patched(TRUE, END + 12, "<I", 0xFFFFFFFE),
    "table in 64 bits": patched(TRUE, END + 12, "<II", 0xFFFFFFFF, 0xFFFFFFFF),
    "comment": patched(TRUE, END + 20, "<H", 9)[:-1],
    "encrypted": patched(TRUE, STORAGE + 8, "<H", 1),
    "compressed": patched(TRUE, STORAGE + 10, "<H", 8),
    "compressed pickle": patched(TRUE, PICKLE + 10, "<H", 8),
    "storage too small": patched(TRUE, STORAGE + 20, "<II", 15, 15),
    "storage too large": patched(TRUE, STORAGE + 20, "<II", 1 << 30, 1 << 30),
    "sizes that differ": patched(TRUE, STORAGE + 20, "<II", 16, 17),
    "storage in 64 bits": patched(TRUE, STORAGE + 20, "<II", 0xFFFFFFFF, 0xFFFFFFFF),
    "storage elsewhere": patched(TRUE, STORAGE + 42, "<I", 0),
    "storage past the end": patched(TRUE, STORAGE + 42, "<I", len(TRUE) - 3),
    "storage in 64 bits elsewhere": patched(TRUE, STORAGE + 42, "<I", 0xFFFFFFFF),
    "name past the table": patched(TRUE, STORAGE + 28, "<H", 0xFFFF),
    "extra past the table": patched(TRUE, STORAGE + 30, "<H", 0xFFFF),
    "pickle elsewhere": patched(TRUE, PICKLE + 42, "<I", len(TRUE) // 2),
    "pickle too large": patched(TRUE, PICKLE + 20, "<II", len(TRUE), len(TRUE)),
    "name of the header differs": TRUE.replace(b"a/data/0", b"a/data/1", 1),
}


@pytest.mark.parametrize("lie", LIES)
def test_zips_that_lie(tmp_path: Path, lie: str) -> None:
    assert LIES[lie] != TRUE
    with allocating_under(1 << 20), pytest.raises(BadFile, match=r"t\.pt: "):
        opened(tmp_path, LIES[lie]).entries[0].read()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ["a/data.pkl", "a/data/0"])
def test_a_member_that_stands_twice(tmp_path: Path, name: str) -> None:
    target = io.BytesIO(TRUE)
    with zipfile.ZipFile(target, "a") as archive:
        archive.writestr(name, pickled({"b": tensor()}) if name.endswith("pkl") else bytes(range(16)))
    with pytest.raises(BadFile, match="twice"):
        opened(tmp_path, target.getvalue())


def test_members_with_names_that_lead_elsewhere(tmp_path: Path) -> None:
    names = ("../../etc/passwd", "/etc/passwd", "a/../../b", "a/\x1b[31m", "a/data/" + "x" * 60_000)
    more = dict.fromkeys(names, b"x")
    data = zipped({"a/data.pkl": pickled({"a": tensor()}), "a/data/0": bytes(16)} | more)
    (found,) = opened(tmp_path, data).entries
    assert found.read().shape == (4,)
    outside = zipped({"../data.pkl": pickled({"a": tensor()}), "../data/0": bytes(16)})
    assert len(opened(tmp_path, outside)) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.pt"]


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    for large in ("a/data.pkl", "a/data/0"):
        members = {"a/data.pkl": pickled({"a": tensor()}), "a/data/0": bytes(16)} | {large: bytes(1 << 25)}
        data = zipped(members, zipfile.ZIP_DEFLATED)
        assert len(data) < 1 << 17
        with allocating_under(1 << 20), pytest.raises(BadFile, match="compressed"):
            opened(tmp_path, data).entries[0].read()


# What a file may be


@pytest.mark.parametrize("data", [ZIP, LEGACY, TRUE, saved(torch.ones(3))], ids=["zip", "legacy", "small", "bare"])
def test_cut_short_anywhere(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "t.pt"
    for length in sorted({*range(0, len(data), 13), *range(200), *range(len(data) - 300, len(data))}):
        path.write_bytes(data[:length])
        with pytest.raises(DumpError):
            opened(tmp_path, data[:length])
    opened(tmp_path, data)


def test_bytes_before_and_after(tmp_path: Path) -> None:
    with pytest.raises(DumpError):
        opened(tmp_path, b"x" + ZIP)
    with pytest.raises(DumpError):
        opened(tmp_path, ZIP + b"x")


def test_a_folder_named_like_a_file(tmp_path: Path) -> None:
    (tmp_path / "x.pt").mkdir()
    (tmp_path / "y.pt").write_bytes(TRUE)
    assert [e.name for e in open_dump(tmp_path).entries] == ["y"]
    with pytest.raises(DumpError):
        open_dump(tmp_path / "x.pt")


def test_a_fifo_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.pt")
    with pytest.raises(DumpError, match="is a pipe"):
        open_dump(tmp_path / "x.pt")
    (tmp_path / "y.pt").write_bytes(TRUE)
    assert [e.name for e in open_dump(tmp_path).entries] == ["y"]


def test_links_that_lead_nowhere_or_away(tmp_path: Path) -> None:
    folder, outside = tmp_path / "dump", tmp_path / "outside.pt"
    folder.mkdir()
    outside.write_bytes(TRUE)
    (folder / "loop.pt").symlink_to("loop.pt")
    (folder / "away.pt").symlink_to(outside)
    (folder / "gone.pt").symlink_to("nothing.pt")
    (folder / "y.pt").write_bytes(TRUE)
    dump = open_dump(folder)
    assert [e.name for e in dump.entries] == ["y"]
    assert sorted(p.file for p in dump.problems) == ["away.pt", "gone.pt", "loop.pt"]
    with pytest.raises(DumpError):
        open_dump(folder / "loop.pt")


def test_a_file_that_goes_away_after_opening(tmp_path: Path) -> None:
    for name in ("a.pt", "b.pt"):
        (tmp_path / name).write_bytes(TRUE)
    dump = open_dump(tmp_path)
    (tmp_path / "b.pt").unlink()
    with pytest.raises(BadFile, match=r"b\.pt: cannot be opened"):
        dump.entries[1].read()


def test_a_list_of_names_may_hold_anything(tmp_path: Path) -> None:
    (tmp_path / "y.pt").write_bytes(TRUE)
    (tmp_path / "tensor_names.txt").write_bytes(
        b"\xff\xfe\x00\n../../etc/passwd\n/\n\x1b[2J\n" + b"x" * 9000 + b"\ny\n"
    )
    dump = open_dump(tmp_path)
    assert [e.name for e in dump.entries] == ["y"]
    assert len(dump.problems) == 5
    assert all(len(p.file) < 200 for p in dump.problems)


@pytest.mark.parametrize("name", ["blocks[/0]".replace("/", "_"), "a\nb", "\x1b[2J", "-output", "é", "x" * 240])
def test_any_file_name_is_a_name(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.pt").write_bytes(TRUE)
    (tmp_path / f"{name}.bad.pt").write_bytes(b"no")
    dump = open_dump(tmp_path)
    assert {e.name for e in dump.entries} == {name, f"{name}.bad"}
    for found in dump.entries:
        ask(found)


def test_a_file_name_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff\xfe.pt")).write_bytes(b"no")
    with pytest.raises(BadFile) as error:
        open_dump(tmp_path).entries[0].read()
    assert str(error.value).isprintable()


# Anything at all


@FUZZ
@given(mutated(ZIP))
def test_damaged_zips(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t.pt").write_bytes(data)
    keeps_promise(tmp_path / "t.pt")


@FUZZ
@given(mutated(LEGACY))
def test_damaged_legacy_files(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t.pt").write_bytes(data)
    keeps_promise(tmp_path / "t.pt")


@FUZZ
@given(mutated(TRUE))
def test_damaged_folders(tmp_path: Path, data: bytes) -> None:
    folder = tmp_path / "dump"
    folder.mkdir(exist_ok=True)
    (folder / "a.pt").write_bytes(data)
    (folder / "b.pt").write_bytes(TRUE)
    dump = keeps_promise(folder)
    assert dump is not None
    assert dump.entries[1].read().tolist() == [0, 1, 2, 3]


with zipfile.ZipFile(io.BytesIO(ZIP)) as _archive:
    INSIDE = {name: _archive.read(name) for name in _archive.namelist()}
    (PICKLED,) = (data for name, data in INSIDE.items() if name.endswith("data.pkl"))


def as_torch_loads(path: Path) -> dict[str, torch.Tensor] | None:
    try:
        value = torch.load(path, weights_only=True)
        return {"a": value["a"], "b_0": value["b"][0], "c.d": value["c"]["d"]}
    except Exception:  # torch fails in every way there is
        return None


@FUZZ
@given(mutated(PICKLED))
def test_damaged_pickles_in_sound_zips(tmp_path: Path, data: bytes) -> None:
    """Where torch reads a tensor and so do we, it is the same one."""
    changed = {name: data if name.endswith("data.pkl") else member for name, member in INSIDE.items()}
    path = tmp_path / "t.pt"
    path.write_bytes(zipped(changed))
    dump, expected = keeps_promise(path), as_torch_loads(path)
    for found in dump.entries if dump and expected else ():
        with contextlib.suppress(BadFile):
            array, meant = found.read(), (expected or {}).get(found.name)
            assert meant is None or (array.shape, array.tobytes()) == (tuple(meant.shape), bits(meant))


@FUZZ
@given(mutated(PICKLED))
def test_a_damaged_pickle_is_a_pickle_to_python_if_it_is_to_us(data: bytes) -> None:
    """What we read without an error, Python's own unpickler reads as well."""
    try:
        unpickle(data)
    except BadPickle:
        return

    class Made(dict[object, object]):
        __hash__ = object.__hash__  # type: ignore[assignment]  # a tensor may be a key

    class Lenient(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> object:
            return lambda *args: Made()

        def persistent_load(self, pid: object) -> object:
            return pid

    Lenient(io.BytesIO(data)).load()
