"""The reader's end of a stream: where a window lies, and tensors that are moved out of it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tensordiff.capture import stream as streams
from tensordiff.capture.stream import KeptTensor, make_window_folder
from tensordiff.dump import open_dump
from tensordiff.dump.files import FileTensor
from tensordiff.dump.native.writer import DumpWriter, write_manifest
from tensordiff.errors import WriteError
from tensordiff.util.temporary_folders import make_claimed_folder


def tensor(folder: Path) -> KeptTensor:
    """One of a dump, with its line in the manifest."""
    with DumpWriter(folder, {"source": "x"}) as writer:
        writer.add("a-output", np.arange(4.0))
        writer.log()
        record = writer._records[0]
    (entry,) = open_dump(folder).entries
    assert isinstance(entry.stored, FileTensor)
    return KeptTensor(entry.stored, record)


def test_a_folder_without_room_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    found = tensor(tmp_path / "dump")
    monkeypatch.setattr(shutil, "move", full)
    with pytest.raises(WriteError, match=r"no space left on device.*or give --keep none"):
        found.moved(tmp_path / "kept" / "tensors-00000.safetensors")
    assert list((tmp_path / "kept").iterdir()) == []


def test_what_is_moved_is_a_dump_with_its_manifest(tmp_path: Path) -> None:
    moved = tensor(tmp_path / "dump").moved(tmp_path / "kept" / "tensors-00007.safetensors")
    write_manifest(tmp_path / "kept", {"source": "x", "no such fact": 1}, [moved.record])
    kept = open_dump(tmp_path / "kept")
    assert not kept.problems and kept.facts["source"] == "x"
    assert [entry.read().tolist() for entry in kept.entries] == [[0, 1, 2, 3]]
    assert moved.stored.read().tolist() == [0, 1, 2, 3]


def test_a_window_that_memory_has_no_room_for_lies_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    for shared, nbytes in ((tmp_path, 10**18), (tmp_path / "nothing", 10)):
        monkeypatch.setattr(streams, "_SHARED_MEMORY", shared)
        folder = make_window_folder(nbytes)
        assert folder.path.parent == tmp_path / "tmp"
        folder.remove()
        assert not folder.path.exists()


@pytest.mark.parametrize("is_spilled", [False, True])
def test_windows_of_processes_that_were_killed_are_removed(
    is_spilled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the next one lies."""
    places = tmp_path / "shared", tmp_path / "tmp"
    for place in places:
        place.mkdir()
    monkeypatch.setattr(streams, "_SHARED_MEMORY", places[0])
    monkeypatch.setattr("tempfile.tempdir", str(places[1]))
    folder = make_window_folder(10**18 if is_spilled else 1000)
    scratch = make_claimed_folder(streams.SCRATCH_PREFIX)
    assert folder.path.parent == places[is_spilled]
    other = make_window_folder(1000)
    assert folder.path.exists() and scratch.path.exists()  # they are in use
    for one in (folder, scratch):
        os.close(one.lock)
    last = make_window_folder(1000)
    assert not folder.path.exists() and not scratch.path.exists() and other.path.exists()
    for one in (other, last):
        one.remove()
