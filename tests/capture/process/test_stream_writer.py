"""Listings and streams, as a child writes them and a reader takes them, in this process."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from tensordiff.capture.process.stream_writer import (
    JOURNAL,
    UNWRITTEN,
    ListingWriter,
    StreamWriter,
    Window,
    window_path,
)
from tensordiff.dump import open_dump
from tensordiff.dump.files import FileTensor
from tensordiff.dump.native.writer import DumpWriter
from tensordiff.errors import WriteError
from tests.processes import PATIENCE_S, until

KILOBYTE = np.arange(256, dtype=np.float32)


def shards(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.safetensors"))


def test_a_disk_that_is_full_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    expected = pytest.raises(WriteError, match=r"no room left for what is streamed .*--window")
    with expected, StreamWriter(tmp_path / "tensors", {}, 10_000) as writer:
        monkeypatch.setattr(os, "pwritev", full)
        writer.add("a-output", KILOBYTE)


def test_empty_tensors_and_scalars_pass(tmp_path: Path) -> None:
    with StreamWriter(tmp_path / "tensors", {}, 100) as writer:
        writer.add("a-output", np.zeros((0, 4), np.float32))
        writer.add("b-output", np.float32(3))
    assert len(shards(tmp_path / "tensors")) == 2


def test_a_writer_waits_until_there_is_room(tmp_path: Path) -> None:
    folder, window = tmp_path / "tensors", Window(window_path(tmp_path / "tensors"))

    def write() -> None:
        with StreamWriter(folder, {}, 2500) as writer:
            for number in range(4):
                writer.add(f"{number}-output", KILOBYTE)

    thread = threading.Thread(target=write)
    thread.start()
    until(lambda: window.waits_beyond == 0)
    assert len(shards(folder)) == 2 and thread.is_alive()
    assert len((folder / JOURNAL).read_bytes().splitlines()) == 3  # the facts, and a line for each of the two
    (folder / shards(folder)[0]).unlink()
    window.released = 1024
    until(lambda: window.waits_beyond == 1024)
    assert len(shards(folder)) == 2
    window.released = 2048
    thread.join(PATIENCE_S)
    assert not thread.is_alive() and window.waits_beyond == -1
    window.close()


def test_one_tensor_passes_however_large_it_is(tmp_path: Path) -> None:
    with StreamWriter(tmp_path / "tensors", {}, 10) as writer:
        writer.add("a-output", KILOBYTE)
    assert len(shards(tmp_path / "tensors")) == 1


def test_a_listing_says_what_a_dump_would_hold(tmp_path: Path) -> None:
    tensors = {
        "a-input_0": np.array([[1, 2, 3]]), "a-output": KILOBYTE, "b-output": np.zeros((2, 0), np.float16),
        "c-input_0": np.array([7]), "c-output": KILOBYTE.reshape(2, 128),
    }  # fmt: skip
    for writer in (
        ListingWriter(tmp_path / "listing", {"source": "x"}),
        DumpWriter(tmp_path / "dump", {"source": "x"}),
    ):
        with writer:
            for name, array in tensors.items():
                writer.add(name, array)
            writer.add_facts(notes=["one"])
    listing, dump = open_dump(tmp_path / "listing"), open_dump(tmp_path / "dump")
    assert [(e.key, e.spec, e.origin) for e in listing.entries] == [(e.key, e.spec, e.origin) for e in dump.entries]
    assert listing.facts == dump.facts
    assert {problem.file for problem in listing.problems} == {UNWRITTEN}
    held = [e for e in listing.entries if isinstance(e.stored, FileTensor) and e.stored.file.path.name != UNWRITTEN]
    assert {e.name: e.read().tolist() for e in held} == {"a-input_0": [[1, 2, 3]], "c-input_0": [7]}
    assert sum(path.stat().st_size for path in (tmp_path / "listing").glob("*.safetensors")) < 1 << 19
