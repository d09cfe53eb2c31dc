"""What looks like tensors and was not read: counted, named, and never said to agree; ordinary files are let be."""

from __future__ import annotations

import gzip
import os
import pickle
import shutil
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tensordiff.dump import leftovers as module
from tensordiff.dump import open_dump
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.making import numbers, save, save_npy, truncate, write

A, B = numbers(64), numbers(64, seed=1)
Make = Callable[[Path], object]


def unread(dump: Path) -> list[str]:
    return [problem.file for problem in open_dump(dump).problems if problem.is_unread]


def verdict(dump: Path) -> str:
    """What a dump compared with itself comes to: everything that was read agrees."""
    session = Session.open(Request(dump, dump))
    return session.outcome(session.rows()).verdict


def save_pt(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path)
    return path


def link(path: Path, target: str | Path) -> Path:
    path.symlink_to(target)
    return path


def pipe(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    return path


def bind(path: Path) -> Path:
    """Leave a socket at a path; a socket's own address may be no longer than a hundred characters."""
    with socket.socket(socket.AF_UNIX) as made:
        before = Path.cwd()
        os.chdir(path.parent)
        try:
            made.bind(path.name)
        finally:
            os.chdir(before)
    return path


def pickled(path: Path, value: object) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps(value))
    return path


def zipped(path: Path, name: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, b"x")
    return path


def npz(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    np.savez(path, b=B)
    return path


NPY: dict[str, tuple[Make, str]] = {
    "gguf": (lambda d: (d / "more.gguf").write_bytes(b"GGUF"), "more.gguf"),
    "packed": (lambda d: (d / "b.npy.gz").write_bytes(gzip.compress(b"x")), "b.npy.gz"),
    "unfinished": (lambda d: (d / "b.npy.tmp").write_bytes(b"x"), "b.npy.tmp"),
    "a copy": (lambda d: shutil.copy(npz(d.parent / "b.npz"), d / "b.npz.bak"), "b.npz.bak"),
    "torch under another name": (lambda d: save_pt(d / "more.dat", torch.ones(3)), "more.dat"),
    "damaged torch": (lambda d: truncate(save_pt(d / "more.x", torch.ones(3))), "more.x"),
    "pickle": (lambda d: pickled(d / "b.pkl", {"b": B}), "b.pkl"),
    "pickle of tensors": (lambda d: pickled(d / "b.PICKLE", [torch.ones(3)]), "b.PICKLE"),
    "pickle in a folder": (lambda d: pickled(d / "layers" / "b.pkl", B), "layers"),
    "zip": (lambda d: zipped(d / "more.zip", "layers/b.npy"), "more.zip"),
    "zip in a folder": (lambda d: zipped(d / "layers" / "more.zip", "b.safetensors"), "layers"),
    "no suffix": (lambda d: shutil.copy(d / "a.npy", d / "b"), "b"),
    "safetensors by its look": (lambda d: save(d / "x.safetensors", {"b": B}).rename(d / "0f3a"), "0f3a"),
    "folder of another format": (lambda d: save_pt(d / "layers" / "b.pt", torch.ones(3)), "layers"),
    "folder without suffixes": (lambda d: save_pt(d / "layers" / "b", torch.ones(3)), "layers"),
    "step": (lambda d: save_npy(d / "0", {"b": B}), "0"),
    "link out": (lambda d: (save_npy(d.parent / "o", {"b": B}), link(d / "b.npy", d.parent / "o/b.npy")), "b.npy"),
    "link to a folder outside": (
        lambda d: (save_npy(d.parent / "o", {"b": B}), link(d / "layers", d.parent / "o")),
        "layers",
    ),
    "link to nowhere": (lambda d: link(d / "b.npy", "gone.npy"), "b.npy"),
    "link to itself": (lambda d: link(d / "b.npy", "b.npy"), "b.npy"),
    "link to a device": (lambda d: link(d / "b.npy", "/dev/null"), "b.npy"),
    "pipe": (lambda d: pipe(d / "b.npy"), "b.npy"),
    "pipe in a folder": (lambda d: pipe(d / "x" / "b.npy"), "x"),
    "socket": (lambda d: bind(d / "b.npy"), "b.npy"),
}


@pytest.mark.parametrize("what", NPY)
def test_beside_a_folder_of_npy(tmp_path: Path, what: str) -> None:
    dump = save_npy(tmp_path / "d", {"a": A})
    assert (unread(dump), verdict(dump)) == ([], "agrees")
    make, name = NPY[what]
    make(dump)
    assert (unread(dump), verdict(dump)) == ([name], "unknown")
    assert [entry.name for entry in open_dump(dump).entries] == ["a"]


@pytest.mark.parametrize("name", ["more.pt", "MORE.PTH", "more.bin", "more.safetensors", "more.npz", "MORE.NPZ"])
def test_files_of_two_formats_are_one_dump(tmp_path: Path, name: str) -> None:
    dump = save_npy(tmp_path / "d", {"a": A})
    if name.endswith("safetensors"):
        save(dump / name, {"b": B})
    elif name.lower().endswith("npz"):
        npz(dump / "more.npz").rename(dump / name)
    else:
        save_pt(dump / name, {"b": torch.ones(3)})
    assert (unread(dump), verdict(dump)) == ([], "agrees")
    assert sorted(entry.layer.lower() for entry in open_dump(dump).entries) in (["a", "b"], ["a", "more"])


def test_of_a_name_that_two_formats_have_one_is_read_and_the_other_named(tmp_path: Path) -> None:
    dump = save_npy(tmp_path / "d", {"a": A})
    save(dump / "more.safetensors", {"a": B})
    assert (unread(dump), verdict(dump)) == (["a.npy"], "unknown")


@pytest.mark.parametrize("below", ["layers", "x/y/z"])
def test_a_tree_of_npy_is_one_dump(tmp_path: Path, below: str) -> None:
    dump = save_npy(tmp_path / "d", {"a": A})
    save_npy(dump / below, {"b": B})
    assert (unread(dump), verdict(dump)) == ([], "agrees")
    assert [entry.name for entry in open_dump(dump).entries] == ["a", f"{below.replace('/', '.')}.b"]


def test_bin_files_of_torch_after_one_that_is_not(tmp_path: Path) -> None:
    save_pt(tmp_path / "x.pt", torch.ones(3))
    save_pt(tmp_path / "y.bin", torch.ones(3))
    (tmp_path / "a.bin").write_bytes(b"raw floats")
    assert unread(tmp_path) == ["y.bin"]


FORMATS: dict[str, Make] = {
    "tensordiff": lambda d: write(d, {"a": A}),
    "safetensors": lambda d: save(d / "a.safetensors", {"a": A}),
    "torch": lambda d: save_pt(d / "a.pt", torch.ones(3)),
    "torch, one file": lambda d: save_pt(d / "a.pt", {"x": torch.ones(3), "y": torch.ones(3)}),
    "torch-hook": lambda d: (save_pt(d / "a.pt", torch.ones(3)), (d / "tensor_names.txt").write_text("a\n")),
    "npz": lambda d: npz(d / "a.npz"),
    "steps": lambda d: save_npy(d / "0", {"a": A}),
}


@pytest.mark.parametrize("format_", FORMATS)
def test_beside_every_format(tmp_path: Path, format_: str) -> None:
    dump = tmp_path / "d"
    FORMATS[format_](dump)
    assert (unread(dump), verdict(dump)) == ([], "agrees")
    (dump / "x.gguf").write_bytes(b"GGUF")
    save_npy(dump / "layers", {"b": B})
    assert (sorted(unread(dump)), verdict(dump)) == (["layers", "x.gguf"], "unknown")


def test_a_shard_that_no_manifest_names(tmp_path: Path) -> None:
    write(tmp_path / "d", {"a": A})
    save(tmp_path / "d" / "tensors-00007.safetensors", {"b": B})
    assert unread(tmp_path / "d") == ["tensors-00007.safetensors"]


def test_a_shard_that_was_begun_and_holds_nothing(tmp_path: Path) -> None:
    write(tmp_path / "d", {"a": A})
    save(tmp_path / "d" / "tensors-00001.safetensors", {}, ordered=False)
    assert open_dump(tmp_path / "d").problems == ()


@pytest.mark.parametrize("name", ["old_2", "2.bak", "logs"])
def test_a_folder_beside_steps(tmp_path: Path, name: str) -> None:
    for step in ("0", "1"):
        save_npy(tmp_path / step, {"a": A})
    (tmp_path / name).mkdir()
    assert unread(tmp_path) == []
    save_npy(tmp_path / name, {"a": A, "b": B})
    [problem] = open_dump(tmp_path).problems
    assert (problem.file, problem.is_unread) == (name, True)
    assert f"holds 2 tensor files that were not read ({name}/a.npy, {name}/b.npy)" in problem.sentence
    assert verdict(tmp_path) == "unknown"


def test_what_lies_in_a_step_and_was_not_read(tmp_path: Path) -> None:
    for step in ("0", "1"):
        save_npy(tmp_path / step, {"a": A})
    save_pt(tmp_path / "1" / "layers" / "b.pt", torch.ones(3))
    (tmp_path / "0" / "x.h5").write_bytes(b"x")
    assert unread(tmp_path) == ["0/x.h5", "1/layers"]


def test_a_file_beside_steps(tmp_path: Path) -> None:
    save_npy(tmp_path / "0", {"a": A})
    (tmp_path / "x.distcp").write_bytes(b"PK")
    assert unread(tmp_path) == ["x.distcp"]


def test_many_files_are_counted_and_few_named(tmp_path: Path) -> None:
    save_npy(tmp_path, {"a": A})
    save_npy(tmp_path / "layers", {f"l{i}": A[:1] for i in range(1200)})
    save(tmp_path / "b.safetensors", {"b": B})  # so that it is no tree of one kind
    [problem] = open_dump(tmp_path).problems
    assert "holds 1,200 tensor files that were not read (layers/l0.npy, layers/l1.npy, layers/l2.npy, …)" in (
        problem.sentence
    )


def test_more_than_anyone_looks_at_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LOOKED_AT", 10)
    save_npy(tmp_path, {"a": A})
    (tmp_path / "many").mkdir()
    for i in range(11):
        (tmp_path / "many" / f"{i}.txt").touch()
    [problem] = open_dump(tmp_path).problems
    assert (problem.file, problem.is_unread) == ("many", True)
    assert "too many to be looked at" in problem.sentence


def test_links_in_folders_beside_are_not_followed(tmp_path: Path, opens: list[str]) -> None:
    save_pt(tmp_path / "secret", torch.ones(3))
    dump = save_npy(tmp_path / "d", {"a": A})
    (dump / "x").mkdir()
    link(dump / "x" / "secret", tmp_path / "secret")
    link(dump / "x" / "up", tmp_path)
    link(dump / "x" / "around", dump / "x")
    opens.clear()
    assert open_dump(dump).problems == ()
    assert opens == []


def test_a_folder_deeper_than_python_recurses(tmp_path: Path) -> None:
    save_npy(tmp_path, {"a": A})
    below = tmp_path
    for _ in range(1200):
        below /= "x"
        below.mkdir()
    assert unread(tmp_path) == []
    (below / "b.npy").touch()
    assert unread(tmp_path) == ["x"]
    (below / "b.npy").unlink()
    while below != tmp_path:  # pytest recurses to remove it, and fails as we would have
        below.rmdir()
        below = below.parent


# --- what is let be -----------------------------------------------------------------------------

DOCUMENTS = (
    "README.md", "config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "vocab.txt",
    "merges.txt", "model.safetensors.index.json", "a.npy.json", "req.safetensors.lock", "LICENSE", ".gitattributes",
    "report.html", "heat.png", "plot.svg", "results.csv", "run.log", "session.tensordiff.toml", "manifest.json",
    "Makefile", "chat_template.jinja", "rules.toml", "tokens.bin", "notes", "module_calls.txt", "a.npy.sha256",
)  # fmt: skip


def test_documents_and_reports_are_let_be(tmp_path: Path) -> None:
    dump = save_npy(tmp_path / "d", {"a": A})
    for name in DOCUMENTS:
        (dump / name).write_text('{"a": "some text"}\n')
    for folder in ("reports", "logs/2026", "empty", "__pycache__"):
        (dump / folder).mkdir(parents=True)
        (dump / folder / "report.html").write_text("<p>")
        (dump / folder / "tokens.bin").write_bytes(bytes(100))
    pickled(dump / "arguments.pkl", {"lr": 1e-3})
    zipped(dump / "report.zip", "report.html")
    (dump / "half.zip").write_bytes(b"PK")
    (dump / ".git" / "objects").mkdir(parents=True)
    save_npy(dump / ".git", {"b": B})
    link(dump / "latest", "reports")
    link(dump / "c.npy", "a.npy")
    assert open_dump(dump).problems == ()


def test_what_torch_saved_as_a_pickle_is_called_what_it_is(tmp_path: Path) -> None:
    """Its reader opens it by itself; a pickle of arrays is opened by none."""
    dump = save_npy(tmp_path / "d", {"a": A})
    save_pt(dump / "new.pkl", torch.ones(3))
    torch.save(torch.ones(3), dump / "old.pkl", _use_new_zipfile_serialization=False)
    pickled(dump / "plain.pkl", B)
    told = {problem.file: problem.sentence.partition("; ")[2] for problem in open_dump(dump).problems}
    ways = {file: "compare it by itself" in sentence for file, sentence in told.items()}
    assert ways == {"new.pkl": True, "old.pkl": True, "plain.pkl": False}


def test_a_zip_that_needs_a_newer_reader_is_let_be(tmp_path: Path) -> None:
    dump = save_npy(tmp_path / "d", {"a": A})
    zipped(dump / "more.zip", "b.npy")
    data = bytearray((dump / "more.zip").read_bytes())
    data[data.index(b"PK\x01\x02") + 6] = 255  # the version that is needed to unpack it
    (dump / "more.zip").write_bytes(data)
    assert (unread(dump), verdict(dump)) == ([], "agrees")


def test_a_hugging_face_checkpoint_is_let_be(tmp_path: Path) -> None:
    save(tmp_path / "model-00001-of-00002.safetensors", {"a": A}, ordered=False)
    save(tmp_path / "model-00002-of-00002.safetensors", {"b": A}, ordered=False)
    for name in ("config.json", "model.safetensors.index.json", "tokenizer.json", "README.md", "tf_model.h5"):
        (tmp_path / name).write_text("{}")
    for name in ("pytorch_model.bin", "optimizer.pt", "scheduler.pt", "training_args.bin", "rng_state_0.pth"):
        save_pt(tmp_path / name, {"a": torch.ones(3)})
    save_pt(tmp_path / "original" / "consolidated.00.pth", {"a": torch.ones(3)})
    save(tmp_path / "checkpoint-500" / "model.safetensors", {"a": A})
    assert open_dump(tmp_path).problems == ()
    save_pt(tmp_path / "activations.pt", {"a": torch.ones(3)})
    save(tmp_path / "2_Dense" / "model.safetensors", {"a": A})
    assert unread(tmp_path) == ["activations.pt", "2_Dense"]


def test_the_same_names_without_a_checkpoint_count(tmp_path: Path) -> None:
    save(tmp_path / "layers.safetensors", {"a": A})
    save_pt(tmp_path / "optimizer.pt", torch.ones(3))
    assert unread(tmp_path) == []
    assert [entry.name for entry in open_dump(tmp_path).entries] == ["a", "optimizer"]


def test_the_folder_of_a_lone_file_does_not_matter(tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", {"a": A})
    save_npy(tmp_path, {"b": B})
    assert open_dump(path).problems == ()
