"""Files that become shorter between being mapped and being read: their pairs are unknown, with a sentence."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tensordiff.compare import comparer
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.measure.dispatch import MeasureInput, measure_many
from tensordiff.compare.row import Row
from tensordiff.dump import open_dump
from tensordiff.dump.lint import Finding, read_facts
from tensordiff.errors import BadFile
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.util.mappings import count_losses, raise_unclaimed
from tests.making import numbers, save, save_npy, write

NAMES = ("a", "b", "c", "d")
TENSORS = {name: numbers(300, 300, seed=seed) for seed, name in enumerate(NAMES)}


def save_pt(folder: Path, _: object) -> Path:
    folder.mkdir()
    for name, tensor in TENSORS.items():
        torch.save(torch.from_numpy(tensor), folder / f"{name}.pt")
    return folder


def save_one_pt(folder: Path, _: object) -> Path:
    torch.save({name: torch.from_numpy(tensor) for name, tensor in TENSORS.items()}, folder.with_suffix(".pt"))
    return folder.with_suffix(".pt")


def save_npz(folder: Path, _: object) -> Path:
    np.savez(folder.with_suffix(".npz"), a=TENSORS["a"], b=TENSORS["b"], c=TENSORS["c"], d=TENSORS["d"])
    return folder.with_suffix(".npz")


MAKE: dict[str, Callable[..., Path]] = {
    "tensordiff": write,
    "safetensors": lambda folder, tensors: save(folder.with_suffix(".safetensors"), tensors),
    "npy": save_npy,
    "npz": save_npz,
    "torch, a file a tensor": save_pt,
    "torch, one file": save_one_pt,
}


def file_of(dump: Path, name: str) -> Path:
    """The file that holds a tensor."""
    if dump.is_file():
        return dump
    found = sorted(path for path in dump.iterdir() if path.suffix in (".npy", ".pt", ".safetensors"))
    return next((path for path in found if path.stem == name), found[0])


def shortening(monkeypatch: pytest.MonkeyPatch, path: Path, left: int, *, compiled: bool) -> None:
    """Cut a file when its tensors are mapped and about to be measured, by one of the passes."""

    def cut_first(inputs: Iterable[MeasureInput], **_: Any) -> list[Diff]:
        held = list(inputs)
        os.truncate(path, left)
        return measure_many(held, compiled=compiled)

    monkeypatch.setattr(comparer, "measure_many", cut_first)


def measured(reference: Path, candidate: Path) -> tuple[Session, dict[str, Row]]:
    session = Session.open(Request(reference, candidate))
    return session, {row.pair.name: row for row in session.rows()}


@pytest.mark.parametrize("compiled", [False, True], ids=["numpy", "compiled"])
@pytest.mark.parametrize("format_", MAKE)
@pytest.mark.parametrize("left", [0, 5000])
def test_a_file_cut_before_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str, compiled: bool, left: int
) -> None:
    reference, candidate = MAKE[format_](tmp_path / "r", TENSORS), MAKE[format_](tmp_path / "c", TENSORS)
    _, rows = measured(reference, candidate)
    assert {row.verdict.name for row in rows.values()} == {"agrees"}
    before, path = count_losses(), file_of(candidate, "c")
    shortening(monkeypatch, path, left, compiled=compiled)
    session, rows = measured(reference, candidate)
    lost = rows["c"].verdict
    assert lost.name == "unknown"
    assert f"{path}: became shorter while its tensor 'c' was read: {left:,} of " in lost.why
    whole = {name for name, row in rows.items() if row.verdict.name == "agrees"}
    assert whole == ({"a", "b", "d"} if format_ in ("npy", "torch, a file a tensor") else set())
    assert session.outcome(rows.values()).exit_status == 2
    raise_unclaimed(before)  # the rows have said it


def test_a_few_bytes_at_the_end_which_are_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, candidate = save_npy(tmp_path / "r", TENSORS), save_npy(tmp_path / "c", TENSORS)
    path = candidate / "b.npy"
    shortening(monkeypatch, path, path.stat().st_size - 4, compiled=False)
    _, rows = measured(reference, candidate)
    assert [name for name, row in rows.items() if row.verdict.name == "unknown"] == ["b"]
    assert "became shorter" in rows["b"].verdict.why


def test_a_file_cut_before_it_is_unpacked(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, 1 << 20, np.uint8)
    np.savez_compressed(tmp_path / "r.npz", a=noise, b=noise)
    dump = open_dump(tmp_path / "r.npz")
    assert dump.entries[1].spec.size == 1 << 20
    os.truncate(tmp_path / "r.npz", 0)
    for _ in range(2):
        with pytest.raises(BadFile, match="became shorter"):
            dump.entries[1].read()


def test_a_third_dump_that_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, candidate, golden = (save_npy(tmp_path / name, TENSORS) for name in "rcg")
    shortening(monkeypatch, golden / "a.npy", 0, compiled=False)
    session = Session.open(Request(reference, candidate, golden=golden))
    rows = {row.pair.name: row.verdict for row in session.rows()}
    assert (rows["a"].name, rows["b"].name) == ("unknown", "agrees")
    assert f"{golden}/a.npy: became shorter" in rows["a"].why


def test_an_expression_that_copies_what_is_gone(tmp_path: Path) -> None:
    reference, candidate = (save(tmp_path / f"{name}.safetensors", TENSORS) for name in "rc")
    rules = tmp_path / "rules.toml"
    rules.write_text('[[map]]\nreference = "cat(a, b)"\ncandidate = "cat(a, b)"\n')
    session = Session.open(Request(reference, candidate, rules=rules))
    assert session.candidate.entries[0].read().size  # it is mapped from here on
    os.truncate(candidate, 8192)
    rows = {row.pair.candidate.name: row.verdict for row in session.rows()}
    assert rows["cat(a, b)"].name == "unknown"
    assert "c.safetensors: became shorter while its tensor " in rows["cat(a, b)"].why


def test_lint_says_it_of_the_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = open_dump(save_npy(tmp_path / "d", TENSORS))
    real = np.ascontiguousarray

    def cut_first(array: Any) -> Any:
        os.truncate(tmp_path / "d" / "b.npy", 0)
        return real(array)

    monkeypatch.setattr(np, "ascontiguousarray", cut_first)
    found = [item for item in read_facts(dump) if isinstance(item, Finding)]
    assert [(item.level, item.where) for item in found] == [("error", "b")]
