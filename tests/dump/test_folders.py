"""Folders of a dump: what is listed, which links are followed, and what readers are shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tensordiff.dump.folders import DumpPath, list_folder, member_path
from tensordiff.dump.readers import readers
from tensordiff.errors import BadFile, NotADump
from tests.making import numbers, save_npy

A = numbers(4)


def test_files_in_natural_order_without_folders(tmp_path: Path) -> None:
    for name in ("a10", "a9", "b"):
        (tmp_path / name).touch()
    (tmp_path / "c").mkdir()
    assert list_folder(tmp_path)[0::2] == (["a9", "a10", "b"], [])


def test_links_within_a_folder_are_followed(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "b").symlink_to("a")
    assert list_folder(tmp_path)[0::2] == (["a", "b"], [])


def test_the_hugging_face_cache_is_followed(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "0f3a").touch()
    snapshot = tmp_path / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to("../../blobs/0f3a")
    assert list_folder(snapshot)[0::2] == (["model.safetensors"], [])


@pytest.mark.parametrize(
    ("target", "why"), [("../secret", "outside the dump"), ("gone", "leads nowhere"), ("x", "leads nowhere")]
)
def test_links_to_elsewhere_are_listed_and_not_followed(tmp_path: Path, target: str, why: str) -> None:
    (tmp_path / "secret").touch()
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "x").symlink_to(target)
    names, _, [problem] = list_folder(tmp_path / "dump")
    assert (names, problem.file) == ([], "x")
    assert why in problem.sentence


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(NotADump, match="cannot be listed"):
        list_folder(tmp_path / "gone")


def test_a_member_lies_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "x").touch()
    assert member_path(tmp_path / "dump", "x") == tmp_path / "dump" / "x"
    assert member_path(tmp_path / "dump", "not there yet") == tmp_path / "dump" / "not there yet"


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc/passwd", "a\0b", "link"])
def test_what_is_no_member_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "x").touch()
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "link").symlink_to("../x")
    with pytest.raises(BadFile, match="not a file of this folder") as caught:
        member_path(tmp_path / "dump", name)
    assert str(caught.value).isprintable()


def test_a_folder_is_listed_once_for_all_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_npy(tmp_path, {"a": A})
    listed: list[object] = []
    real = os.scandir

    def noted(path: Path) -> object:
        listed.append(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", noted)
    at = DumpPath(tmp_path)
    for reader in readers():
        reader(at)
    assert listed == [tmp_path]


def test_suffixes_count_in_any_case(tmp_path: Path) -> None:
    for name in ("b.NPY", "a10.npy", "a9.npy", "c.txt"):
        (tmp_path / name).touch()
    assert DumpPath(tmp_path).with_suffix(".npy") == ["a9.npy", "a10.npy", "b.NPY"]


def test_files_by_suffix_as_their_names_end(tmp_path: Path) -> None:
    """Whatever is known of all endings before: the same names as looking at each."""
    names = ("a.pt", "B.PT", "pt", "c.pt.bak", ".pt", "d.index.json", "e.", "f", "g.npy")
    suffixes = ((".pt",), (".pt", ".pth"), (".json",), (".index.json",), (".npy", ".PT".lower()), (".max",), ("",))
    for count in range(len(names) + 1):
        folder = tmp_path / str(count)
        folder.mkdir()
        for name in names[:count]:
            (folder / name).touch()
        for wanted in suffixes:
            at = DumpPath(folder)
            assert at.with_suffix(*wanted) == [name for name in at.files if name.lower().endswith(wanted)], wanted
