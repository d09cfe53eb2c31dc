from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given

from tensordiff.dump import open_dump
from tensordiff.errors import BadFile, NotADump
from tests.dump.file_damage import FUZZ, allocating_under, keeps_promise, mutated
from tests.dump.readers.safetensors_samples import craft, opened, random_tensor, refusal, row

LIES: dict[str, tuple[Any, str]] = {
    "past the end": ({"x": row("U8", [9], 0, 9)}, "truncated"),
    "far past the end": ({"x": row("U8", [1 << 60], 0, 1 << 60)}, "truncated"),
    "backwards": ({"x": row("U8", [1], 4, 3)}, "impossible data_offsets"),
    "negative offset": ({"x": row("U8", [1], -1, 0)}, "impossible data_offsets"),
    "bool offset": ({"x": row("U8", [1], False, True)}, "impossible data_offsets"),
    "float offset": ({"x": row("U8", [1], 0, 1.0)}, "impossible data_offsets"),
    "negative dims": ({"x": row("U8", [-2, -2], 0, 4)}, "impossible dtype or shape"),
    "bool dim": ({"x": row("U8", [True], 0, 1)}, "impossible dtype or shape"),
    "float dim": ({"x": row("U8", [1.0], 0, 1)}, "impossible dtype or shape"),
    "no list": ({"x": row("U8", {"1": 1}, 0, 1)}, "impossible dtype or shape"),
    "rank 65": ({"x": row("U8", [1] * 65, 0, 1)}, "impossible dtype or shape"),
    "dtype is a number": (
        {"x": {"dtype": 8, "shape": [1], "data_offsets": [0, 1]}},
        "impossible dtype or shape",
    ),
    "size is not the shape's": ({"x": row("F32", [2], 0, 4)}, "4 bytes"),
    "half a byte": ({"x": row("F4", [1], 0, 1)}, "F4"),
    "overlap": ({"x": row("U8", [4], 0, 4), "y": row("U8", [4], 3, 7)}, "overlap"),
    "same bytes": ({"x": row("U8", [4], 0, 4), "y": row("U8", [4], 0, 4)}, "overlap"),
    "three offsets": ({"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 2]}}, "as they should be"),
    "no offsets": ({"x": {"dtype": "U8", "shape": [1]}}, "as they should be"),
    "no object": ({"x": 1}, "as they should be"),
    "a list": ([], "not a JSON object"),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, "__metadata__"),
    "metadata no object": ({"__metadata__": []}, "__metadata__"),
    "not JSON": (b"{]", "not valid JSON"),
    "not UTF-8": (b'{"\xff": 1}', "not valid JSON"),
    "a number too long": (b'{"x": ' + b"9" * 5000 + b"}", "not valid JSON"),
    "twice the same": (b'{"x": 1, "x": 1}', "'x' stands in it twice"),
    "twice in a row": (
        b'{"x": {"dtype": "U8", "dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}',
        "twice",
    ),
}


@pytest.mark.parametrize(("header", "word"), LIES.values(), ids=LIES)
def test_a_header_that_lies(tmp_path: Path, header: object, word: str) -> None:
    assert word in refusal(tmp_path, craft(header, b"\0" * 8))


@pytest.mark.parametrize("depth", [900, 950, 990, 1000, 100_000])
def test_deep_nesting(tmp_path: Path, depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    refusal(tmp_path, craft(nested))
    refusal(tmp_path, craft(b'{"x": {"dtype": "U8", "shape": ' + nested + b', "data_offsets": [0, 1]}}', b"\0"))


@pytest.mark.parametrize("length", [0, 1, 3, 100_000_001, 1 << 40, (1 << 64) - 1])
def test_a_header_length_that_lies(tmp_path: Path, length: int) -> None:
    with allocating_under(1 << 20):
        assert "header" in refusal(tmp_path, struct.pack("<Q", length) + b"{}")


@pytest.mark.parametrize("shape", [[0, 1 << 62, 1 << 62], [0, 1 << 63], [1 << 70, 0], [0, 10**1000]])
def test_absurd_shapes_without_elements(tmp_path: Path, shape: list[int]) -> None:
    [entry] = opened(tmp_path, craft({"x": row("F32", shape, 0, 0)})).entries
    with pytest.raises(BadFile, match="impossible shape"):
        entry.read()


def test_gaps_are_let_be_and_an_empty_header_is_an_empty_dump(tmp_path: Path) -> None:
    dump = opened(tmp_path, craft({"x": row("U8", [1], 8, 9), "y": row("U8", [1], 64, 65)}, bytes(range(70))))
    assert [e.read().item() for e in dump.entries] == [8, 64]
    assert len(opened(tmp_path, craft({}))) == 0


def test_truncation_anywhere_is_one_sentence(tmp_path: Path) -> None:
    whole = safetensors.torch.save({"a": torch.arange(6.0), "b": torch.ones(3, dtype=torch.int64)})
    for length in range(len(whole)):
        refusal(tmp_path, whole[:length])


def test_a_file_cut_after_opening(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    safetensors.torch.save_file({"a": torch.arange(6.0)}, path)
    [entry] = open_dump(path).entries
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(BadFile, match="does not fit"):
        entry.read()


STRANGE_NAMES = {
    "parents": "../../etc/passwd", "absolute": "/abs", "slash": "a/b", "markup": "[/0]",
    "escape": "\x1b[31mred\x07", "empty": "", "space": " ", "half a character": "\ud800",
    "long": "x" * 8_000,
    "parts": "layer(2)-output_1",
}  # fmt: skip


@pytest.mark.parametrize("name", STRANGE_NAMES.values(), ids=STRANGE_NAMES)
def test_names_from_strangers(tmp_path: Path, name: str) -> None:
    [entry] = opened(tmp_path, craft({name: row("U8", [1], 0, 1)}, b"\3")).entries
    assert (entry.name, entry.read().item()) == (name, 3)
    message = refusal(tmp_path, craft({name: row("U8", [2], 0, 1)}, b"\3"))
    assert len(message) < 400
    assert str(BadFile("f", message)).isprintable()


def test_things_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.safetensors")
    with pytest.raises(BadFile, match="fifo"):
        open_dump(tmp_path / "fifo.safetensors")
    with pytest.raises(NotADump, match="empty"):
        open_dump(tmp_path)
    (tmp_path / "loop.safetensors").symlink_to("loop.safetensors")
    with pytest.raises(NotADump):
        open_dump(tmp_path / "loop.safetensors")
    safetensors.torch.save_file({"a": torch.ones(1)}, tmp_path / "ok.safetensors")
    dump = open_dump(tmp_path)
    assert [e.name for e in dump.entries] == ["a"]
    assert [p.file for p in dump.problems] == ["fifo.safetensors", "loop.safetensors"]


def test_a_link_to_outside_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "dump").mkdir()
    safetensors.torch.save_file({"secret": torch.ones(1)}, tmp_path / "secret.safetensors")
    safetensors.torch.save_file({"a": torch.ones(1)}, tmp_path / "dump" / "ok.safetensors")
    (tmp_path / "dump" / "link.safetensors").symlink_to(tmp_path / "secret.safetensors")
    dump = open_dump(tmp_path / "dump")
    assert [e.name for e in dump.entries] == ["a"]
    assert [p.file for p in dump.problems] == ["link.safetensors"]


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(NotADump, match="empty"):
        open_dump(tmp_path)


def test_one_name_twice_among_many_is_found(tmp_path: Path) -> None:
    header = json.dumps({f"n{i}": 1 for i in range(50_000)})[:-1] + ', "n49999": 1}'
    assert "'n49999'" in refusal(tmp_path, craft(header.encode()))


VALID = safetensors.torch.save(
    {
        "a.b-output": random_tensor(torch.float32, 2, 3),
        "a.b-input_0": random_tensor(torch.bfloat16, 4),
        "w": random_tensor(torch.uint8, 2, 2).view(torch.float4_e2m1fn_x2),
        "empty": torch.zeros(0, 3),
    },
    metadata={"order": '["a.b-input_0", "a.b-output", "w", "empty"]'},
)


@FUZZ
@given(mutated(VALID))
def test_damage(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "t.safetensors"
    path.write_bytes(data)
    keeps_promise(path)


def test_the_file_that_is_damaged_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    path.write_bytes(VALID)
    dump = keeps_promise(path)
    assert dump is not None
    assert [e.name for e in dump.entries] == ["a.b-input_0", "a.b-output", "w", "empty"]


def test_a_name_with_escapes_is_read_and_its_twin_refused(tmp_path: Path) -> None:
    """What is not plain goes another way than most headers do."""
    one = b'"\\u0061": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}'
    [entry] = opened(tmp_path, craft(b"{" + one + b"}", b"\5")).entries
    assert (entry.name, entry.read().tolist()) == ("a", [5])
    hidden = b'"a": {"dtyp\\u0065": "U8", "shap\\u0065": [1], "data_offset\\u0073": [1, 2]}'
    assert "twice" in refusal(tmp_path, craft(b"{" + one + b", " + hidden + b"}", b"\5\6"))


def test_a_row_within_a_row_is_not_a_tensor(tmp_path: Path) -> None:
    row_in_metadata = b'{"__metadata__": {"dtype": "U8"}, "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}'
    dump = opened(tmp_path, craft(row_in_metadata, b"\5"))
    assert [entry.name for entry in dump.entries] == ["a"] and dump.facts == {"dtype": "U8"}
