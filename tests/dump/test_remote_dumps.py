"""Dumps in a store: every format reads the same there, in few requests, and nothing in a dump names a store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tensordiff.dump import open_dump
from tensordiff.dump.native.convert import convert
from tensordiff.dump.native.publish import publish, refuse_occupied
from tensordiff.errors import BadFile, NotADump, StoreError, WriteError
from tensordiff.util.remote import RemotePath, ranges, user_path
from tests.making import SAMPLES, numbers, save, save_npy, write
from tests.stores import S3, WebServer, s3_server

TENSORS = {f"layers.{k}.mlp-output": numbers(3, 5, seed=k) for k in range(6)}


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


def remote(url: str) -> RemotePath:
    path = user_path(url)
    assert isinstance(path, RemotePath)
    return path


@pytest.mark.parametrize("key", ["nothing/here", "nothing.safetensors", "../x"])
def test_nothing_is_there(s3: S3, key: str) -> None:
    with pytest.raises(NotADump, match="no such file or folder"):
        open_dump(remote(f"s3://dumps/{key}"))


def test_a_bucket_that_is_not_there(s3: S3) -> None:
    with pytest.raises(BadFile, match="has no bucket no-such-bucket-here; check the URL"):
        open_dump(remote("s3://no-such-bucket-here/dump"))


def test_a_kind_of_store_that_nobody_knows() -> None:
    with pytest.raises(StoreError, match="not a kind of store"):
        open_dump(remote("nosuch://x/y"))


def test_a_truncated_file_says_what_a_local_one_says(s3: S3, tmp_path: Path) -> None:
    whole = save(tmp_path / "a.safetensors", TENSORS).read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:-20])
    said = []
    for path in (tmp_path / "cut.safetensors", remote(s3.put(tmp_path / "cut.safetensors", "cut.safetensors"))):
        with pytest.raises(BadFile) as caught:
            open_dump(path)
        said.append(caught.value.problem)
    assert said[0] == said[1]


def test_a_url_in_a_dump_is_never_followed(s3: S3, tmp_path: Path) -> None:
    with WebServer(tmp_path / "bait") as bait:
        manifest = json.loads((write(tmp_path / "dump", TENSORS) / "manifest.json").read_text())
        manifest["entries"][0]["shard"] = f"{bait.address}/tensors-00000.safetensors"
        (tmp_path / "dump" / "manifest.json").write_text(json.dumps(manifest))
        for path in (tmp_path / "dump", remote(s3.put(tmp_path / "dump", "hostile"))):
            with pytest.raises(BadFile, match="no shard of this dump"):
                open_dump(path)
        assert bait.paths == []


def dumps(folder: Path) -> dict[str, Path]:
    (folder / "torch").mkdir()
    for name, array in TENSORS.items():
        torch.save(torch.from_numpy(array), folder / "torch" / f"{name}.pt")
    torch.save({name: torch.from_numpy(array) for name, array in TENSORS.items()}, folder / "one.pt")
    torch.save(torch.arange(9.0), folder / "old.pt", _use_new_zipfile_serialization=False)
    np.savez(folder / "plain.npz", **TENSORS)  # type: ignore[arg-type]
    np.savez_compressed(folder / "packed.npz", **TENSORS)  # type: ignore[arg-type]
    return {
        "native": write(folder / "native", TENSORS),
        "safetensors": save(folder / "one.safetensors", TENSORS),
        "npy": save_npy(folder / "npy", TENSORS),
        "npz": folder / "plain.npz",
        "packed npz": folder / "packed.npz",
        "torch": folder / "torch",
        "torch, one file": folder / "one.pt",
        "old torch": folder / "old.pt",
        "steps": SAMPLES / "reference",
        "MAX": SAMPLES / "max",
    }


def test_every_format_reads_the_same(s3: S3, tmp_path: Path) -> None:
    for name, local in dumps(tmp_path).items():
        here, there = open_dump(local), open_dump(remote(s3.put(local, f"all/{local.name}")))
        assert (here.format, here.ordered, len(here)) == (there.format, there.ordered, len(there)), name
        assert [problem.sentence for problem in here.problems] == [problem.sentence for problem in there.problems]
        for ours, theirs in zip(here.entries, there.entries, strict=True):
            assert (ours.name, ours.spec) == (theirs.name, theirs.spec), name
            assert ours.read().tobytes() == theirs.read().tobytes(), (name, ours.name)
            assert not theirs.read().flags.writeable


def test_a_tensor_kept_on_disk_while_it_is_read(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PIECE": 10_000, "_LARGE": 20_000, "_ON_DISK": 30_000}.items():
        monkeypatch.setattr(ranges, name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    large = {"a-output": numbers(300, 100), "b-output": numbers(4)}
    (entry, _) = open_dump(remote(s3.put(write(tmp_path / "dump", large), "large"))).entries
    np.testing.assert_array_equal(entry.read(), large["a-output"])
    assert list((tmp_path / "cache" / "tensordiff").iterdir()) == [], "it has no name"


def test_ten_thousand_entries_take_a_handful_of_requests(s3: S3, tmp_path: Path) -> None:
    many = {f"layers.{k}.mlp-output": numbers(4, seed=k) for k in range(10_000)}
    url = s3.put(write(tmp_path / "many", many), "many")
    before = len(s3.requests())
    dump = open_dump(remote(url))
    assert len(dump) == 10_000
    opened = s3.requests()[before:]
    assert len(opened) <= 4, opened
    assert all(np.array_equal(entry.read(), many[entry.name]) for entry in dump.entries)
    assert len(s3.requests()) - before <= 12, "values come in blocks"


def test_a_dump_on_a_web_server(tmp_path: Path) -> None:
    write(tmp_path / "dump", TENSORS)
    with WebServer(tmp_path) as server:
        dump = open_dump(remote(f"{server.address}/dump"))
        assert [entry.name for entry in dump.entries] == list(TENSORS)
        assert all(np.array_equal(entry.read(), TENSORS[entry.name]) for entry in dump.entries)
        assert dump.problems == ()


def test_memory_is_a_store_too(tmp_path: Path) -> None:
    target = remote("memory://dumps/a")
    list(publish(write(tmp_path / "a", TENSORS), target))
    assert [entry.name for entry in open_dump(target).entries] == list(TENSORS)


def test_what_is_there_is_not_written_over(s3: S3, tmp_path: Path) -> None:
    target = remote(s3.put(write(tmp_path / "a", TENSORS), "occupied"))
    with pytest.raises(WriteError, match="holds a dump already"):
        refuse_occupied(target, overwrite=False)
    others = remote(s3.put(save_npy(tmp_path / "b", TENSORS), "others"))
    with pytest.raises(WriteError, match="holds other files"):
        refuse_occupied(others, overwrite=True)


def test_a_dump_is_converted_into_a_store_and_over_another(s3: S3, tmp_path: Path) -> None:
    target = remote(s3.put(write(tmp_path / "a", {f"old.{k}-output": numbers(2) for k in range(9)}), "target"))
    refuse_occupied(target, overwrite=True)
    list(convert(open_dump(save(tmp_path / "b.safetensors", TENSORS)), tmp_path / "b"))
    assert [file.name for file in publish(tmp_path / "b", target)][-1] == "manifest.json"
    dump = open_dump(target)
    assert [entry.name for entry in dump.entries] == list(TENSORS)
    assert not dump.problems
