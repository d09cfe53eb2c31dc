"""Parts of a split checkpoint: whoever has not all of them is told so, and never that two such agree."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tensordiff.dump import open_dump
from tensordiff.dump.checkpoint_parts import missing_parts
from tensordiff.weights.comparison import compare_weights
from tests.weights.making import llama, write_gguf, write_sharded


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], []),
        (["a.safetensors", "1-of-2", "x-of-y.pt", "model-00000-of-00000.bin"], []),
        (["m-00001-of-00002.bin", "m-00002-of-00002.bin", "n-0-of-2.pt", "n-1-of-2.pt"], []),
        (["m-00002-of-00003.bin"], [("m-00001-of-00003.bin", "and 1 more of 3 parts were not read")]),
        (["m-00001-of-00002.bin", "n-00001-of-00002.bin", "n-00002-of-00002.bin"], [("m-00002-of-00002.bin", "was")]),
        (["m-1-of-999999.bin"], [("m-2-of-999999.bin", "and 999997 more of 999999 parts were not read")]),
    ],
)
def test_which_are_missing(files: list[str], expected: list[tuple[str, str]]) -> None:
    found = list(missing_parts(files))
    assert [problem.file for problem in found] == [file for file, _ in expected]
    assert all(one.sentence.startswith(told) for one, (_, told) in zip(found, expected, strict=True))
    assert all(problem.is_unread for problem in found)


def test_a_download_that_stopped_never_agrees(tmp_path: Path) -> None:
    whole = write_sharded(llama(6), tmp_path / "whole")
    shutil.copytree(whole, tmp_path / "half")
    (tmp_path / "half" / "model-00002-of-00002.safetensors").unlink()
    half = open_dump(tmp_path / "half")
    assert compare_weights(half, half).exit_status == 2
    found = compare_weights(open_dump(whole), half)
    assert (found.exit_status, found.counts["missing"]) == (2, 15)
    assert "model-00002-of-00002.safetensors: was not read" in found.doubts[0]


def test_one_part_by_itself(tmp_path: Path) -> None:
    weights = llama(6)
    names = list(weights)
    for k, some in enumerate((names[:15], names[15:])):
        write_gguf({name: weights[name] for name in some}, tmp_path / "gguf" / f"m-{k + 1:05}-of-00002.gguf")
    part = open_dump(tmp_path / "gguf" / "m-00001-of-00002.gguf")
    assert part.unread[0].endswith("is one of 2 parts, and the others were not read; give their folder")
    assert compare_weights(part, part).verdict == "unknown"
    whole = open_dump(tmp_path / "gguf")
    assert compare_weights(open_dump(write_sharded(weights, tmp_path / "hf")), whole).verdict == "agrees"


def test_a_part_that_lacks_what_the_index_names_never_agrees(tmp_path: Path) -> None:
    whole = write_sharded(llama(6), tmp_path / "whole")
    index, part = whole / "model.safetensors.index.json", "model-00002-of-00002.safetensors"
    names = {entry.name: "model-00001-of-00002.safetensors" for entry in open_dump(whole).entries}
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    assert open_dump(whole).problems == ()
    index.write_text(json.dumps({"weight_map": names | {f"lost.{k}": part for k in range(5)}}))
    (problem,) = open_dump(whole).problems
    assert (problem.file, problem.is_unread) == (part, True)
    assert "lacks 5 ('lost.0', 'lost.1', 'lost.2', …)" in problem.sentence
    assert compare_weights(open_dump(whole), open_dump(whole)).exit_status == 2


NO_INDEX = {
    "empty": b"",
    "without tensors": b"{}",
    "a list": b"[1]",
    "a number for a file": b'{"weight_map": {"a": 1}}',
    "no text": b'{"weight_map": {"\xff": "b"}}',
    "too deep": b'{"more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("what", NO_INDEX)
def test_what_is_no_index_names_nothing(tmp_path: Path, what: str) -> None:
    whole = write_sharded(llama(6), tmp_path / "whole")
    (whole / "model.safetensors.index.json").write_bytes(NO_INDEX[what])
    assert open_dump(whole).problems == ()
