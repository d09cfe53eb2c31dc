"""Finding out what lies at a path."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tensordiff.dump import open_dump
from tensordiff.dump.model import Problem
from tensordiff.errors import BadFile, DumpError, NotADump
from tests.making import SAMPLES, numbers, save, save_npy, truncate, write

A = numbers(4)


@pytest.mark.parametrize(
    ("name", "format_"),
    [("reference", "torch-hook"), ("reference/0", "torch-hook"), ("max", "max"), ("golden", "tensordiff")],
)
def test_the_samples(name: str, format_: str) -> None:
    assert open_dump(SAMPLES / name).format == format_


def test_a_path_may_be_text(tmp_path: Path) -> None:
    assert len(open_dump(str(save(tmp_path / "d.safetensors", {"a": A})))) == 1


@pytest.mark.parametrize("name", ["model.safetensors", "MODEL.SAFETENSORS", "0f3a9b"])
def test_a_file_is_known_by_its_look(tmp_path: Path, name: str) -> None:
    save(tmp_path / "x.safetensors", {"a": A}).rename(tmp_path / name)
    assert open_dump(tmp_path / name).format == "safetensors"


def test_a_npy_under_any_name(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", A)
    (tmp_path / "x.npy").rename(tmp_path / "dump")
    assert open_dump(tmp_path / "dump").format == "numpy"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "no such file or folder"),
        (lambda path: path.mkdir(), "is an empty folder"),
        (lambda path: path.write_text("hello"), "is not a tensor file we know"),
        (lambda path: path.write_bytes(b""), "is not a tensor file we know"),
        (lambda path: path.symlink_to(path), "."),
    ],
    ids=["nothing", "empty folder", "text", "empty file", "link to itself"],
)
def test_what_is_no_dump(tmp_path: Path, make: object, sentence: str) -> None:
    assert callable(make)
    make(tmp_path / "x")
    with pytest.raises(NotADump, match=sentence) as caught:
        open_dump(tmp_path / "x")
    assert str(caught.value).startswith(str(tmp_path / "x"))


def test_a_name_too_long(tmp_path: Path) -> None:
    with pytest.raises(NotADump, match="file name too long"):
        open_dump(tmp_path / ("a" * 5000))


def test_control_characters_in_a_path_are_escaped() -> None:
    with pytest.raises(NotADump, match=r"\\x1b\[31m") as caught:
        open_dump("\x1b[31mred")
    assert str(caught.value).isprintable()


def test_a_folder_of_other_things_names_what_is_inside(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(NotADump, match="holds no tensors we know") as caught:
        open_dump(tmp_path)
    assert "did you mean" not in str(caught.value)
    (tmp_path / "run").mkdir()
    with pytest.raises(NotADump, match="holds no tensors we know") as caught:
        open_dump(tmp_path)
    assert "did you mean" not in str(caught.value)  # it is no dump either
    save(tmp_path / "run" / "a.safetensors", {"a": np.ones(3, np.float32)})
    with pytest.raises(NotADump, match=f"did you mean {tmp_path}/run"):
        open_dump(tmp_path)
    save(tmp_path / "other" / "a.safetensors", {"a": np.ones(3, np.float32)})
    with pytest.raises(NotADump, match=r"2 of its folders are dumps of their own \(other, run\): name one"):
        open_dump(tmp_path)


def test_a_dump_some_levels_down_is_named(tmp_path: Path) -> None:
    save(tmp_path / "experiment" / "run_1" / "dump" / "a.safetensors", {"a": np.ones(3, np.float32)})
    with pytest.raises(NotADump, match=f"did you mean {tmp_path}/experiment/run_1/dump"):
        open_dump(tmp_path)


# --- steps --------------------------------------------------------------------------------------


def test_numbered_folders_are_steps_in_natural_order(tmp_path: Path) -> None:
    for step in (10, 2, 0):
        save_npy(tmp_path / str(step), {"a": A})
    dump = open_dump(tmp_path)
    assert [entry.step for entry in dump.entries] == [0, 2, 10]
    assert (dump.path, dump.ordered) == (tmp_path, False)


def test_steps_are_ordered_if_all_are(tmp_path: Path) -> None:
    write(tmp_path / "0", {"a": A})
    assert open_dump(tmp_path).ordered
    save_npy(tmp_path / "1", {"a": A})
    assert not open_dump(tmp_path).ordered


def test_problems_of_steps_say_which(tmp_path: Path) -> None:
    save(tmp_path / "0" / "a.safetensors", {"a": A})
    truncate(save(tmp_path / "0" / "b.safetensors", {"b": A}))
    assert [problem.file for problem in open_dump(tmp_path).problems] == ["0/b.safetensors"]


def test_a_step_without_tensors_is_unread(tmp_path: Path) -> None:
    save_npy(tmp_path / "0", {"a": A})
    (tmp_path / "01").mkdir()
    (tmp_path / "01" / "a.tmp").write_text("cut off")
    [problem] = open_dump(tmp_path).problems
    assert (problem.file, problem.is_unread) == ("01", True)


def test_other_folders_beside_steps_are_left_alone(tmp_path: Path) -> None:
    for name in ("0", "logs", "²"):
        save_npy(tmp_path / name, {"a": A})
    (tmp_path / "1").mkdir()
    (tmp_path / "2").write_text("no folder")
    assert [entry.step for entry in open_dump(tmp_path).entries] == [0]


def test_two_folders_of_one_step(tmp_path: Path) -> None:
    for name in ("0", "00", "1"):
        save_npy(tmp_path / name, {"a": A})
    dump = open_dump(tmp_path)
    assert [entry.step for entry in dump.entries] == [0, 1]
    assert dump.problems == (Problem("00", "is left out: 0 is step 0 too", True),)


def test_a_step_that_links_out_of_the_dump_is_not_followed(tmp_path: Path) -> None:
    save_npy(tmp_path / "dump" / "0", {"a": A})
    save_npy(tmp_path / "secret", {"b": A})
    (tmp_path / "dump" / "1").symlink_to(tmp_path / "secret")
    dump = open_dump(tmp_path / "dump")
    assert [entry.name for entry in dump.entries] == ["a"]
    assert [(problem.file, problem.is_unread) for problem in dump.problems] == [("1", True)]


def test_a_step_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    truncate(save(tmp_path / "0" / "a.safetensors", {"a": A}))
    with pytest.raises(BadFile, match=r"a\.safetensors"):
        open_dump(tmp_path)


def test_a_step_that_cannot_be_read_leaves_the_others(tmp_path: Path) -> None:
    for step in ("0", "1", "2"):
        save(tmp_path / step / "a.safetensors", {"a": A})
    truncate(tmp_path / "1" / "a.safetensors")
    dump = open_dump(tmp_path)
    assert [entry.step for entry in dump.entries] == [0, 2]
    [problem] = dump.problems
    assert (problem.file, problem.is_unread) == ("1/a.safetensors", True)
    assert "truncated" in problem.sentence


def test_a_step_that_holds_two_dumps_leaves_the_others(tmp_path: Path) -> None:
    save_npy(tmp_path / "0", {"a": A})
    for name in ("torch_layers", "max_layers"):
        (tmp_path / "1" / name).mkdir(parents=True)
    [problem] = open_dump(tmp_path).problems
    assert (problem.file, problem.is_unread) == ("1", True)
    assert "holds two dumps" in problem.sentence


def test_ten_thousand_names_are_listed_and_no_file_opened(tmp_path: Path, opens: list[str]) -> None:
    for i in range(10_000):
        os.mknod(tmp_path / f"layers.{i}-output.npy")
    assert len(open_dump(tmp_path)) == 10_000
    assert opens == []


@pytest.mark.parametrize("junk", [b"", b"x" * 64, b"<!DOCTYPE html><html></html>"])
def test_a_bad_file_of_one_format_does_not_hide_a_good_one_of_another(tmp_path: Path, junk: bytes) -> None:
    save_npy(tmp_path, {"a": A})
    (tmp_path / "inputs.safetensors").write_bytes(junk)
    dump = open_dump(tmp_path)
    assert [entry.name for entry in dump.entries] == ["a"]
    (problem,) = dump.problems
    assert problem.file == "inputs.safetensors" and problem.is_unread


def test_two_formats_whose_files_are_all_bad(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"x" * 64)
    (tmp_path / "a.npz").write_bytes(b"x" * 64)
    with pytest.raises(BadFile, match=r"a\.safetensors"):
        open_dump(tmp_path)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
PAGE = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>"


@pytest.mark.parametrize("name", ["a.safetensors", "a.pt", "a.npy", "a.npz", "a.gguf", "pytorch_model.bin", "0f3a9b"])
@pytest.mark.parametrize(("content", "way_out"), [(POINTER, "git lfs pull"), (PAGE, "download it again")])
def test_a_file_that_was_never_fetched(tmp_path: Path, name: str, content: bytes, way_out: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DumpError, match=way_out):
        dump = open_dump(tmp_path / name)
        dump.entries[0].read()


def test_a_pointer_beside_files_that_were_fetched(tmp_path: Path) -> None:
    save(tmp_path / "a.safetensors", {"a": A})
    (tmp_path / "b.safetensors").write_bytes(POINTER)
    (problem,) = open_dump(tmp_path).problems
    assert problem.file == "b.safetensors" and "git lfs pull" in problem.sentence


def test_a_checkpoint_of_pointers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(POINTER)
    with pytest.raises(NotADump, match=r"pytorch_model\.bin is a Git LFS pointer .* git lfs pull"):
        open_dump(tmp_path)


@pytest.mark.parametrize(
    ("name", "way_out"),
    [("a.onnx", "capture onnx:"), ("a.h5", "h5py"), ("a.pkl", "may run code"), ("a.xyz", "torch.save or numpy.savez")],
)
def test_a_file_of_another_kind_has_a_way_out(tmp_path: Path, name: str, way_out: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(NotADump, match=way_out) as caught:
        open_dump(tmp_path / name)
    assert ".bin, .ckpt)" in str(caught.value)
